"""An attack on depict: does it ever give a silent wrong answer, run untrusted code, or end in a traceback?

Trainings and batches are killed at random moments, bits are flipped, and files, names and settings are hostile. Prints
how often each was tried, and every failure; the exit code is 1 if there is one. `docs/reliability.md` says what is
promised. About 30 minutes on two cores, with --quick three.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attempts import Attack, Attempts, depict, in_child
from depict.errors import UserError
from depict.runs import load
from hostile_inputs import bad_settings, hostile_files, hostile_names
from mixed_images import segment, small_run
from support.layouts import picture, save
from support.several_processes import ENVIRONMENT, free_port
from support.strange_files import account, make_mixed
from support.trainings import losses


def difference(run: Path, whole: Path) -> str | None:
    """How a run differs from one that nothing disturbed."""
    for name in ("last.safetensors", "model.safetensors"):
        if not (run / name).exists():
            return f"{run.name}: no {name}"
        if (run / name).read_bytes() != (whole / name).read_bytes():
            return f"{run.name}: {name} differs"
    if losses(run) != losses(whole):
        return f"{run.name}: the losses differ"
    left = [path.name for path in run.rglob(".*.part*")]
    return f"{run.name}: {left} left over" if left else None


def kills(attack: Attack) -> Attempts:
    """Trainings killed at random moments and resumed: the result must be that of one that was not."""
    settings = {
        "workers 0": [],
        "workers 2": ["--data.workers", "2"],
        "cached features": ["--freeze-encoder", "--cache-features"],
    }
    for name, more in settings.items():
        folder = attack.new(f"kills-{name.replace(' ', '-')}")
        whole = in_child(depict(*attack.command(folder / "whole", *more)))
        if whole.code:
            yield f"resume, {name}", whole.problem
            continue
        for number in range(attack.times(3, 20)):
            out, count = folder / str(number), 0
            for _ in range(int(attack.random.integers(1, 4))):
                ended = in_child(depict(*attack.command(out, *more)), float(attack.random.uniform(0, whole.seconds)))
                count += ended.code == -signal.SIGKILL
            for _ in range(count):
                yield f"kill, {name}", None
            ended = in_child(depict(*attack.command(out, *more)))
            yield f"resume, {name}", ended.problem or difference(out, folder / "whole")


def several_processes(attack: Attack) -> Attempts:
    """The same with several processes of torchrun, which are all killed at once."""
    for processes in (2,) if attack.quick else (2, 3):
        folder, name = attack.new(f"processes-{processes}"), f"{processes} processes"
        seconds, _ = _torchrun(attack, folder / "whole", processes)
        for number in range(attack.times(1, 4)):
            moment = float(attack.random.uniform(0.5, 1)) * seconds
            if _torchrun(attack, folder / str(number), processes, moment)[1]:
                yield f"kill, {name}", None
            _torchrun(attack, folder / str(number), processes)
            yield f"resume, {name}", difference(folder / str(number), folder / "whole")


def _torchrun(attack: Attack, out: Path, processes: int, kill_after: float | None = None) -> tuple[float, bool]:
    """The seconds that a training took, and whether it was killed."""
    launcher = ["torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", str(free_port())]
    words = [sys.executable, "-m", *launcher, "-m", "depict.cli", *attack.command(out, "--batch", "6")]
    started = time.perf_counter()
    process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(kill_after)
    except subprocess.TimeoutExpired:
        _kill_all(f"--out {out} ")
        process.wait()
    return time.perf_counter() - started, process.returncode == -signal.SIGKILL


def _kill_all(words: str) -> None:
    """SIGKILL every process with these words in its command: torchrun's workers are in sessions of their own."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if words in entry.read_bytes().decode(errors="replace").replace("\0", " "):
                os.kill(int(entry.parent.name), signal.SIGKILL)


def flip(path: Path, random: np.random.Generator) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(random.integers(len(content)))] ^= 1 << int(random.integers(8))
    path.write_bytes(content)


def flipped_bits(attack: Attack) -> Attempts:
    """One bit of the state, the weights or the feature cache: noticed, or without effect on the result."""
    folder = attack.new("flips")
    whole, cut = folder / "whole", folder / "cut"
    seconds = in_child(depict(*attack.command(whole))).seconds
    for share in np.linspace(0.5, 1, 20):  # killed late enough to have two states
        shutil.rmtree(cut, ignore_errors=True)
        ended = in_child(depict(*attack.command(cut)), seconds * float(share))
        if ended.code == -signal.SIGKILL and (cut / "state" / "last.pt").exists():
            break
    for number in range(attack.times(4, 40)):
        out = Path(shutil.copytree(cut, folder / f"state-{number}"))
        flip(out / "state" / "last.pt", attack.random)
        ended = in_child(depict(*attack.command(out)))
        yield "flipped bit, state", ended.problem or (None if ended.code == 2 else difference(out, whole))
        shutil.rmtree(out)
    expected = load(whole).state_dict()
    for number in range(attack.times(20, 300)):
        out = Path(shutil.copytree(whole, folder / f"weights-{number}"))
        flip(out / "model.safetensors", attack.random)
        yield "flipped bit, weights", _loads_otherwise(out, expected)
        shutil.rmtree(out)
    cached = ["--freeze-encoder", "--cache-features"]
    in_child(depict(*attack.command(folder / "cached", *cached)))
    for number in range(attack.times(3, 20)):
        files = sorted(
            path for path in Path(os.environ["DEPICT_CACHE"]).rglob("*") if path.is_file() and path.stat().st_size
        )
        flip(files[int(attack.random.integers(len(files)))], attack.random)
        ended = in_child(depict(*attack.command(folder / f"cached-{number}", *cached)))
        yield "flipped bit, cache", ended.problem or difference(folder / f"cached-{number}", folder / "cached")


def _loads_otherwise(run: Path, expected: dict[str, Any]) -> str | None:
    try:
        state = load(run).state_dict()
    except UserError as error:
        return None if "\n" not in str(error) else f"more than one line: {error}"
    except Exception as error:  # what must not happen
        return f"{type(error).__name__}: {error}"
    return None if all(tensor.equal(expected[name]) for name, tensor in state.items()) else "other weights were loaded"


def segment_kills(attack: Attack) -> Attempts:
    """A batch is killed; on another folder with the same names, the command says so or writes that folder's results."""
    folder = attack.new("segment")
    run = small_run(folder / "run")
    for name, seed in (("a", 0), ("b", 100)):
        for number in range(40):
            save(folder / name / f"{number}.png", picture(120, 160, seed + number))
    clean = in_child(depict("segment", run, folder / "b", "--out", folder / "clean", "--device", "cpu"))
    for number in range(attack.times(3, 20)):
        out = folder / f"out {number}"
        for source in ("a", "b")[: int(attack.random.integers(1, 3))]:
            words = ("segment", run, folder / source, "--out", out, "--device", "cpu")
            ended = in_child(depict(*words), float(attack.random.uniform(0.1, 0.9)) * clean.seconds)
            if ended.code == -signal.SIGKILL:
                yield "kill, segment", None
        words = ("segment", run, folder / "b", "--out", out, "--device", "cpu")
        for what, more in (("refused or right", ()), ("right with --overwrite", ("--overwrite",))):
            ended = in_child(depict(*words, *more))
            summary = json.loads((out / "summary.json").read_text())
            failed = {row["name"] for row in summary["pictures"] if row["status"] == "failed"}
            wrong = [path.name for path in out.rglob(".*.part*")]
            for path in (path for kind in ("labels", "overlays") for path in (folder / "clean" / kind).iterdir()):
                made = out / path.relative_to(folder / "clean")
                if (path.stem not in failed or more) and (not made.exists() or made.read_bytes() != path.read_bytes()):
                    wrong.append(path.name)
            yield f"segment another folder, {what}", ended.problem or (f"wrong: {wrong[:3]}" if wrong else None)


def soak(attack: Attack) -> Attempts:
    """Many mixed and damaged pictures through one `depict segment`: all accounted for, memory flat."""
    folder = attack.new("soak").resolve()
    side = attack.times(400, 1200)
    expected = make_mixed(folder / "mixed", attack.times(80, 1500), (side, side))
    code, _, resident = segment(small_run(folder / "run"), folder / "mixed", folder / "out", 2)
    wrong = account(folder / "mixed", folder / "out", expected)
    for _ in expected:
        yield "picture in the soak", None
    third = len(resident) // 3
    early, late = max(resident[third : 2 * third]) >> 20, max(resident[2 * third :]) >> 20
    print(f"soak: peak of {early} MB in the second third of the run, {late} MB in the last")
    grown = None if attack.quick or late <= 1.1 * early + 20 else f"memory grew from {early} to {late} MB"
    yield "soak", (f"exit code {code}" if code != 1 else None) or (f"{wrong[:3]}" if wrong else grown)
    if not attack.quick:
        yield "picture of 13,000 x 13,000 in pca", _large_picture(folder)


def _large_picture(folder: Path) -> str | None:
    Image.new("RGB", (13_000, 13_000)).save(folder / "large.png", compress_level=1)
    words = ("--encoder", "vit_tiny_patch16_224", "--encoder.pretrained", "False", "--short-edge", "224")
    ended = in_child(depict("pca", folder / "large.png", *words, "--device", "cpu", "--out", folder / "pca.png"))
    print(f"pca of 13,000 x 13,000 pixels: {ended.growth >> 20} MB")
    return None if ended.code == 0 and ended.growth < 3 << 30 else f"exit code {ended.code}, {ended.growth >> 20} MB"


SECTIONS = (kills, several_processes, flipped_bits, segment_kills, hostile_files, hostile_names, bad_settings, soak)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer attempts of everything")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[section.__name__ for section in SECTIONS], help="one section")
    options = parser.parse_args()
    started, counts, failures = time.perf_counter(), Counter[str](), []
    with tempfile.TemporaryDirectory() as name:
        os.environ["DEPICT_CACHE"] = str(Path(name, "cache"))
        attack = Attack(Path(name), options.seed, options.quick)
        for section in SECTIONS:
            if options.only in (None, section.__name__):
                print(f"{time.perf_counter() - started:6.0f} s  {section.__name__}", flush=True)
                for what, problem in section(attack):
                    counts[what] += 1
                    if problem:
                        failures.append(what)
                        print(f"FAILED {what}: {problem}", flush=True)
    width = max(map(len, counts))
    for what, count in counts.items():
        print(f"{what:<{width}}  {count:>6}  {failures.count(what):>4} failed")
    seconds = time.perf_counter() - started
    print(f"{sum(counts.values())} attempts, {len(failures)} failures, {seconds:.0f} s, seed {options.seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
