"""A run on disk: config.yaml, weights, metrics, and the state that a training resumes from.

`save` and `load` are how models become folders and come back; a training locks its folder and keeps its state there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import depict
from depict.config.resolve import with_defaults
from depict.config.schema import Config
from depict.data import create_dataset
from depict.data.dataset import Color, Dataset
from depict.errors import UserError
from depict.io.files import atomic_path
from depict.io.hub import local_run
from depict.io.yaml import from_dict, read_yaml, to_dict, write_yaml
from depict.model import SegmentationModel

FORMAT = 1
"""Version of the run folder; raised when an older depict could not read a newer folder."""
WEIGHTS = "model.safetensors"
"""The best weights by validation."""
LAST = "last.safetensors"
"""The weights after the last step."""

# What may differ between the first call and one that goes on: it does not change the result.
MAY_CHANGE_ON_RESUME = ("data.workers", "data.root", "train.device", "train.save_every", "train.tracker")
NAMED = 4
"""Settings that a refusal names: one that was changed may have changed others with it."""


def save(model: SegmentationModel, run: str | Path) -> None:
    """Write a run folder: `model.safetensors` and `config.yaml`, each atomically."""
    save_config(model, Path(run))
    save_tensors(model.state_dict(), Path(run) / WEIGHTS)


def save_config(model: SegmentationModel, folder: Path) -> None:
    """Write the model's configuration, its classes and a stamp to config.yaml."""
    classes = {name: list(color) for name, color in zip(model.classes, model.palette, strict=True)}
    header = {"format": FORMAT, "stamp": stamp(model.config.seed)}
    write_yaml(folder / "config.yaml", header | to_dict(model.config) | {"classes": classes})


def load(run: str | Path, last: bool = False) -> SegmentationModel:
    """Give back the model of a run folder or of `hf-hub:user/name`, in evaluation mode on the CPU.

    It is the best one of the training by validation, or the `last` one.
    """
    folder = local_run(run)
    config, classes = read_run(folder)
    config.encoder.pretrained = False
    model = SegmentationModel(config, list(classes), list(classes.values()))
    path = folder / (LAST if last else WEIGHTS)
    try:
        state = load_file(path)
    except FileNotFoundError as error:
        raise UserError(
            f"'{folder}' has no {path.name}: the run was not trained yet, or is not a run folder."
        ) from error
    except (SafetensorError, OSError) as error:
        raise UserError(f"'{path}' is damaged or unreadable: {' '.join(str(error).split())}") from error
    load_weights(model, state, path)
    return model.eval()


def dataset_of(model: SegmentationModel, name: str | None, root: Path | None, split: str = "val") -> Dataset:
    """The data set `name` at `root`; by default the one that the model was trained on."""
    trained = model.config.data
    if name is None and trained.name is None:
        raise UserError("this run does not record its data set: give --data NAME and --root DIR.")
    name = name or str(trained.name)
    return create_dataset(name, root or (trained.root if name == trained.name else None), split)


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors, whole or not at all."""
    with atomic_path(path) as temporary:
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
        except SafetensorError as error:  # what the library makes of a full disk
            raise OSError(str(error)) from error


def load_weights(model: nn.Module, state: dict[str, Tensor], source: Path) -> None:
    """Load every tensor of `state` strictly; what does not fit is named."""
    own = model.state_dict()
    for name, tensor in own.items():
        if name not in state:
            raise UserError(f"'{source}' does not fit the model: it lacks '{name}'.")
        if state[name].shape != tensor.shape:
            hint = ""
            by_class = name.startswith(("decoder.mask_norm", "decoder.class_embeddings", "decoder.head"))
            if by_class and state[name].ndim and state[name].shape[0] != tensor.shape[0]:
                hint = f" It is for {state[name].shape[0]} classes, the model has {tensor.shape[0]}."
            raise UserError(
                f"'{source}' does not fit the model: '{name}' has shape {tuple(state[name].shape)}, "
                f"not {tuple(tensor.shape)}.{hint}"
            )
    for name in state:
        if name not in own:
            raise UserError(f"'{source}' does not fit the model: it has '{name}', which the model has not.")
    model.load_state_dict(state)


def read_run(folder: Path) -> tuple[Config, dict[str, Color]]:
    """The configuration of a run folder, and the color of each class."""
    path = folder / "config.yaml"
    if folder.suffix.lower() == ".onnx" and folder.is_file():
        raise UserError(
            f"'{folder}' is an exported model, which only `depict segment` takes: give the run that it was made of."
        )
    if not path.is_file():
        raise UserError(f"'{folder}' is not a run folder: there is no config.yaml in it.")
    values = read_yaml(path)
    version = values.pop("format", None)
    if version != FORMAT:
        raise UserError(
            f"'{path}' has format {version}, this depict reads format {FORMAT}: use the depict that wrote it."
        )
    values.pop("stamp", None)
    try:
        classes: dict[str, Color] = {str(k): (int(r), int(g), int(b)) for k, (r, g, b) in values.pop("classes").items()}
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"'{path}' does not list its classes as `name: [red, green, blue]`.") from error
    return from_dict(Config, values, f"'{path}'"), classes


def stamp(seed: int) -> dict[str, Any]:
    """What would be asked of a run later on."""
    libraries = {name: importlib.metadata.version(name) for name in ("torch", "timm", "accelerate")}
    return {
        "depict": depict.__version__,
        **libraries,
        "python": sys.version.split()[0],
        "commit": commit(),
        "seed": seed,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """The commit of the checkout that depict runs from; None when it was installed as a package."""
    file = Path(depict.__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(file.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # or an environment inside someone's own repository would count
        return git("rev-parse", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return None


@contextlib.contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold the folder for this training; a second one is refused. The system lets go of it if we are killed."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            for left in (*folder.glob(".*.part*"), *folder.glob("state/.*.part*")):  # by one that was killed
                left.unlink()
            yield
    except Timeout as error:
        raise UserError(f"another training is at work in '{folder}': wait for it, or take another --out.") from error


def check_same(folder: Path, config: Config) -> None:
    """Refuse to go on with another configuration than the folder's."""
    if not (folder / "config.yaml").exists():
        if any(path.name != ".lock" for path in folder.iterdir()):
            raise UserError(f"'{folder}' holds other files and no run: take an empty or a new folder for --out.")
        return
    trained = read_run(folder)[0]
    # An older depict may not have known an option that has a default by now.
    trained = dataclasses.replace(trained, decoder=with_defaults(trained.decoder))
    refuse_difference(folder, trained, config)


def refuse_difference(folder: Path, trained: Config, config: Config) -> None:
    """Name the settings in which two configurations would give different results."""
    before, now = _flat(to_dict(trained)), _flat(to_dict(config))
    names = sorted(before.keys() | now.keys())
    different = [name for name in names if name not in MAY_CHANGE_ON_RESUME and before.get(name) != now.get(name)]
    if different:
        told = [f"{name} = {before.get(name)}, not {now.get(name)}" for name in different[:NAMED]]
        told += [f"and {len(different) - NAMED} more"] if len(different) > NAMED else []
        raise UserError(
            f"'{folder}' was trained with {'; '.join(told)}: give the same settings to go on, or another --out."
        )


class State:
    """What training goes on from, in one file that is replaced whole."""

    def __init__(self, folder: Path):
        self.path = folder / "state" / "last.pt"

    def save(self, values: dict[str, Any]) -> None:
        """Replace the state."""
        with atomic_path(self.path) as temporary:
            try:
                with temporary.open("wb") as file:
                    torch.save(values, file)
            except RuntimeError as error:
                # torch turns the system's answer (no space, say) into one of its own; the first is the one to tell.
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None

    def load(self) -> dict[str, Any] | None:
        """The state, or None before the first save."""
        if not self.path.exists():
            return None
        try:
            return torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file raises whatever its bytes happen to mean
            raise UserError(
                f"'{self.path}' is damaged: remove it to train from the start, or take another --out."
            ) from error


class Metrics:
    """`metrics.jsonl`: a line per report, in order of iterations."""

    def __init__(self, folder: Path, iteration: int):
        """Keep the lines up to `iteration`: what came after it is trained, and told, again."""
        self.path = folder / "metrics.jsonl"
        lines = [line for line in read_metrics(folder) if line["iteration"] <= iteration]
        with atomic_path(self.path) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def write(self, **values: Any) -> None:
        """Add a line."""
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise UserError(f"cannot write '{self.path}': {error.strerror or error}") from error


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All lines of a run's metrics; a last line cut by a crash is left out."""
    path = folder / "metrics.jsonl"
    lines = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            lines.append(json.loads(line))
    return lines


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
