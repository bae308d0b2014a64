"""Hostile files, names and settings: a part of `attack.py`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from attempts import Attack, Attempts, depict, in_child
from depict import cli
from depict.config.presets import load_config
from depict.config.ranges import check_ranges, flag
from depict.data.prepare.unpack import unpack
from depict.errors import UserError
from depict.interchange.checkpoint import import_checkpoint
from depict.io.images import read_image
from depict.runs import load
from mixed_images import small_run
from support.bad_settings import as_config, as_flags, as_yaml, bad_numbers, numeric_settings
from support.hostile_files import NAMES, archives, checkpoints, is_clean, onnx_files, pictures, yaml_files
from support.layouts import picture, save, stripes


def hostile_files(attack: Attack) -> Attempts:
    """Untrusted files are read or refused in one line, in bounded memory; no code runs, nothing is written outside."""
    folder = attack.new("files")
    marker = folder / "code ran"
    run = small_run(folder / "run")
    config = (run / "config.yaml").read_text()
    count = attack.times(30, 300)
    kinds: dict[str, tuple[Iterator[Path], Callable[[Path], Any]]] = {
        "checkpoint": (checkpoints(attack.new("files/checkpoints"), marker, attack.random, count), _import),
        "archive": (archives(attack.new("files/archives"), attack.random, count), partial(_unpack, folder / "root")),
        "YAML": (yaml_files(attack.new("files/yaml"), config, attack.random, count), partial(_read_settings, run)),
        "picture": (pictures(attack.new("files/pictures"), attack.random, count), _read_picture),
    }
    try:
        import onnx  # noqa: F401

        kinds["ONNX"] = (onnx_files(attack.new("files/onnx"), attack.random, count), _predict)
    except ImportError:
        print("the package onnx is not installed: no ONNX files are tried")
    for kind, (paths, read) in kinds.items():
        for path in paths:
            problem = in_child(partial(read, path)).problem
            problem = f"{path.name}: {problem}" if problem else None
            if marker.exists():
                marker.unlink()
                problem = f"{path.name}: its code ran"
            outside = [found for found in folder.rglob("*evil*") if folder / "root" not in found.parents]
            yield f"hostile file, {kind}", problem or (f"{path.name}: wrote {outside}" if outside else None)


def _import(path: Path) -> None:
    import_checkpoint(path, heads=3)


def _unpack(root: Path, path: Path) -> None:
    root.mkdir(exist_ok=True)
    shutil.rmtree(root / "there", ignore_errors=True)
    unpack(path, root, {"top": "there"})


def _read_settings(run: Path, path: Path) -> None:
    broken = Path(shutil.copytree(run, path.with_suffix("")))
    shutil.copy(path, broken / "config.yaml")
    try:
        load(broken)
    except UserError:
        load_config(str(path))
    finally:
        shutil.rmtree(broken)


def _read_picture(path: Path) -> None:
    read_image(path)


def _predict(path: Path) -> None:
    from depict.inference.onnx_predictor import OnnxPredictor

    OnnxPredictor(path).labels(picture(40, 60))


def hostile_names(attack: Attack) -> Attempts:
    """Data sets and pictures of such names: every command works, and prints nothing that is not escaped."""
    run = small_run(attack.folder / "names run")
    for kind, name in NAMES.items():
        root = attack.folder / "names" / f"{kind} {name}"
        for number in range(8):
            save(root / "images" / f"x{name}{number}.png", picture(40, 48, number))
            save(root / "masks" / f"x{name}{number}.png", stripes([0, 1, 2], 40, 48))
        (root / "images" / f"y{name}.txt.png").write_text("not a picture")
        for words, code in (
            (("check", "--data", "folder", "--root", root), 1),
            (("segment", run, root / "images", "--out", root / "out", "--device", "cpu"), 1),
            (("train", "--out", root / name, "--data", "folder", "--root", root), 2),
        ):
            ended = in_child(depict(*words))
            problem = None if ended.code == code else f"exit code {ended.code}: {ended.printed[-300:]!r}"
            yield (
                f"hostile name, {words[0]}",
                problem or (None if is_clean(ended.printed) else f"{kind} is printed raw"),
            )


def bad_settings(attack: Attack) -> Attempts:
    """Every numeric setting with numbers that it cannot be: as a flag, in a file and in Python."""
    path = attack.new("settings") / "settings.yaml"
    for name in numeric_settings():
        for number in bad_numbers(name):
            path.write_text(as_yaml(name, number))
            yield "bad setting, Python", _refused(partial(check_ranges, as_config(name, number)), flag(name))
            yield "bad setting, YAML", _refused(partial(load_config, str(path)), name.rpartition(".")[2])
        numbers = bad_numbers(name)[: 1 if attack.quick else None]
        ended = in_child(partial(_flags, name, numbers, path.parent / "run"))
        for _ in numbers:
            yield "bad setting, flag", None if ended.code == 0 else f"{flag(name)}: {ended.printed[-300:]!r}"


def _refused(call: Callable[[], Any], name: str) -> str | None:
    try:
        call()
    except UserError as error:
        return None if name in str(error) and len(str(error)) < 500 else f"{name}: {str(error)[:200]}"
    except Exception as error:  # what must not happen
        return f"{name}: {type(error).__name__}: {error}"
    return f"{name}: accepted"


def _flags(name: str, numbers: tuple[float, ...], out: Path) -> int:
    for number in numbers:
        try:
            code: Any = cli.main(["train", "--out", str(out), "--data", "scenes", *as_flags(name, number)])
        except SystemExit as stop:  # tyro's own box, for what is not of the right type
            code = stop.code
        if code != 2 or out.exists():
            return 1
    return 0
