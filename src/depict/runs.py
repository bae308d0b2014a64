"""A run on disk: a folder with config.yaml, weights, metrics, and the state that a training resumes from.

`save` writes a model as a run and `load` reads it back. A training locks its folder, writes its
metrics and its state there, and compares its settings with those of the folder before it resumes.
Files are replaced atomically.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import depict
from depict.config.ranges import check_ranges
from depict.config.resolve import with_defaults
from depict.config.schema import Config
from depict.data import create_dataset
from depict.data.dataset import Dataset, every_nth, hold_out
from depict.data.fingerprint import Fingerprint, differences
from depict.data.palette import Color
from depict.devices import most_parameters
from depict.errors import UserError, did_you_mean, one_line
from depict.io.checksums import tensors_checksum
from depict.io.classes import check_classes, check_colors
from depict.io.files import LOCK, atomic_path, locked_folder, remove_unfinished, utf8_path
from depict.io.hub import local_run
from depict.io.shipped import shipped_models
from depict.io.yaml import from_dict, read_yaml, to_dict, write_yaml
from depict.model import SegmentationModel

FORMAT = 3
"""Version of the run folder, raised whenever its content changes."""
CONFIG = "config.yaml"
"""The resolved settings, the classes with their colors, and a stamp."""
WEIGHTS = "model.safetensors"
"""The best weights by validation."""
LAST = "last.safetensors"
"""The weights after the last step."""
METRICS = "metrics.jsonl"
CURVES = "curves.png"
"""Loss, mIoU and learning rate so far; redrawn at each validation, like PREVIEW."""
PREVIEW = "preview.png"
"""A few validation images with ground truth, prediction and errors."""
DATA = "data.json"
"""The fingerprint of the data that it is trained on."""
STATE = "state"
"""The folder of what a training resumes from."""
CHECKSUM = "checksum"
"""Key in the metadata of a safetensors file."""
MODEST = 1 << 24
"""Parameters of a model that is built even if the weights turn out not to fit it."""

# These settings do not change the result.
MAY_CHANGE_ON_RESUME = ("data.workers", "data.root", "train.device", "train.save_every", "train.tracker")
# More epochs extend a finished run; by default they also change how often it is validated.
MAY_CHANGE_ON_EXTENSION = ("train.epochs", "train.validate_every")
MAX_NAMED = 4
"""Differences that an error lists: one changed setting may have changed others with it."""


# A model as a run.


def save(model: SegmentationModel, run: str | Path) -> None:
    """Write a run folder with the model's weights and configuration."""
    save_config(model, Path(run))
    save_tensors(model.state_dict(), Path(run) / WEIGHTS)


def load(run: str | Path, last: bool = False) -> SegmentationModel:
    """Return the model of a run folder, a shipped one by its name, or that of `hf-hub:user/name`.

    It is in evaluation mode, on the CPU. Its weights are the best ones by validation, or those after the `last` step.
    """
    folder = local_run(run)
    config, classes = read_run(folder)
    config.encoder.pretrained = False
    path = folder / (LAST if last else WEIGHTS)
    if not path.exists():
        raise UserError(f"'{folder}' has no {path.name}: it is not trained yet, or is not a run folder.")
    tensors = load_tensors(path)
    with most_parameters(4 * sum(tensor.numel() for tensor in tensors.values()) + MODEST):
        model = SegmentationModel(config, list(classes), list(classes.values()))
    load_weights(model, tensors, path)
    return model.eval()


def dataset_of(model: SegmentationModel, name: str | None, root: Path | None, split: str = "val") -> Dataset:
    """The data set `name` at `root`; by default the one that the model was trained on.

    The split `holdout` holds the training images that --data.holdout kept from the training.
    """
    trained = model.config.data
    if name is None and trained.name is None:
        raise UserError("this run does not record its data set: give --data NAME and --root DIR.")
    name = name or str(trained.name)
    root = root or (trained.root if name == trained.name else None)
    if split != "holdout":
        return create_dataset(name, root, split)
    if trained.holdout is None or name != trained.name:
        raise UserError(f"no images of '{name}' were held out: this split needs a run trained with --data.holdout.")
    return hold_out(every_nth(create_dataset(name, root, trained.train_split), trained.every), trained.holdout)[1]


# config.yaml


def save_config(model: SegmentationModel, folder: Path) -> None:
    """Write the model's settings, its classes and a stamp to config.yaml."""
    classes = {name: list(color) for name, color in zip(model.classes, model.palette, strict=True)}
    header = {"format": FORMAT, "stamp": stamp(model.config.seed)}
    write_yaml(folder / CONFIG, header | to_dict(model.config) | {"classes": classes})


def read_run(folder: Path) -> tuple[Config, dict[str, Color]]:
    """The settings of a run folder, and the color of each class."""
    path = folder / CONFIG
    if folder.suffix.lower() == ".onnx" and folder.is_file():
        raise UserError(f"'{folder}' is an exported model, which only `depict segment` reads: give its run instead.")
    if not path.is_file():
        guess = did_you_mean(folder, shipped_models())
        if folder.is_file() and (folder.parent / CONFIG).is_file():
            guess = f" Give the folder '{folder.parent}'."
        reason = f"there is no {CONFIG} in it" if folder.exists() else "it does not exist"
        raise UserError(f"'{folder}' is not a run folder: {reason}.{guess}")
    values = read_yaml(path)
    version = values.pop("format", None)
    if version != FORMAT:
        raise UserError(
            f"'{path}' has format {version}, this depict reads format {FORMAT}: train again, or use the depict that "
            "wrote it."
        )
    values.pop("stamp", None)
    classes = values.pop("classes", None)
    if not isinstance(classes, dict) or not all(isinstance(color, list) for color in classes.values()):
        raise UserError(f"'{path}' does not list its classes as `name: [red, green, blue]`.")
    names, palette = check_classes(classes, f"'{path}'"), check_colors(classes.values(), f"'{path}'")
    config = from_dict(Config, values, f"'{path}'")
    check_ranges(config, f"'{path}'")
    return config, dict(zip(names, palette, strict=True))


def stamp(seed: int) -> dict[str, Any]:
    """How a run was made: versions, commit, seed, command and time."""
    libraries = ["torch", "timm", "accelerate", *(["transformers"] if "transformers" in sys.modules else [])]
    return {
        "depict": depict.__version__,
        **{name: importlib.metadata.version(name) for name in libraries},
        "python": sys.version.split()[0],
        "commit": commit(),
        "seed": seed,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """The commit of the checkout that depict runs from; None if it was installed as a package."""
    file = Path(depict.__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(file.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # fails in a virtual environment inside another repository
        return git("rev-parse", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return None


# Weights


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors, atomically, with their checksum."""
    with atomic_path(path) as temporary:
        try:
            plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(plain, temporary, metadata={CHECKSUM: tensors_checksum(plain)})
        except SafetensorError as error:  # a full disk
            raise OSError(str(error)) from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors that `save_tensors` wrote; raises if they are no longer the same."""
    try:
        with utf8_path(path) as name, safe_open(name, "pt") as file:
            written = (file.metadata() or {}).get(CHECKSUM)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
    except (SafetensorError, OSError) as error:
        raise UserError(f"'{path}' is damaged or unreadable: {one_line(error)}.") from error
    if written is None:
        raise UserError(f"'{path}' has no checksum: it is damaged, or depict did not write it (see depict.runs.save).")
    if written != tensors_checksum(tensors):
        raise UserError(f"'{path}' is damaged: its values do not have the checksum that was written with them.")
    return tensors


def load_weights(model: nn.Module, state: dict[str, Tensor], source: Path) -> None:
    """Load all tensors of `state` strictly; an error names the first that does not fit."""
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
            raise UserError(f"'{source}' does not fit the model: it has '{name}', which the model does not have.")
    model.load_state_dict(state)


# A folder in use by a training


@contextlib.contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Create the folder and lock it; a second training is refused."""
    with locked_folder(folder, f"another training is running in '{folder}': wait for it, or choose another --out."):
        remove_unfinished(folder)
        remove_unfinished(folder / STATE)
        yield


def check_same(folder: Path, config: Config) -> None:
    """Refuse to resume a folder with other settings than its own, except more epochs, or a folder of other files."""
    if not (folder / CONFIG).exists():
        if any(path.name not in (LOCK, DATA) for path in folder.iterdir()):
            raise UserError(f"'{folder}' holds other files and no run: choose an empty or a new folder for --out.")
        return
    trained = read_run(folder)[0]
    # The decoder's defaults are not those of its dataclass, which has None for all.
    trained = dataclasses.replace(trained, decoder=with_defaults(trained.decoder))
    more_epochs = (config.train.epochs or 0) > (trained.train.epochs or 0)
    refuse_difference(folder, trained, config, MAY_CHANGE_ON_EXTENSION if more_epochs else ())


def refuse_difference(folder: Path, trained: Config, config: Config, may_change: Sequence[str] = ()) -> None:
    """Raise if two configurations would give different results, naming the settings that differ."""
    before, now = _flat(to_dict(trained)), _flat(to_dict(config))
    names = sorted(before.keys() | now.keys())
    ignored = (*MAY_CHANGE_ON_RESUME, *may_change)
    different = [name for name in names if name not in ignored and before.get(name) != now.get(name)]
    if different:
        listed = [f"{name} = {before.get(name)}, not {now.get(name)}" for name in different[:MAX_NAMED]]
        listed += [f"and {len(different) - MAX_NAMED} more"] if len(different) > MAX_NAMED else []
        raise UserError(
            f"'{folder}' was trained with {'; '.join(listed)}: give the same settings to resume, or another --out."
        )


def check_data(folder: Path, present: Fingerprint, accept: bool) -> str | None:
    """Refuse to resume on other data than the run's own, unless `accept`; the folder then has the present fingerprint.

    Returns what a user should know about it.
    """
    path, changes = folder / DATA, []
    if any((folder / trained).exists() for trained in (STATE, WEIGHTS)):
        try:
            before = json.loads(path.read_bytes())
            changes = differences(before, present)
            classes = len(before["classes"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            changes, classes = [f"'{path}', which describes them, is missing or damaged"], len(present["classes"])
        if classes != (now := len(present["classes"])):
            raise UserError(
                f"'{folder}' was trained on {classes} classes, the data now have {now}: choose another --out."
            )
        if not changes:
            return None
        if not accept:
            raise UserError(
                f"'{folder}' was trained on other data: {'; '.join(changes)}: restore the data, choose another --out, "
                "or give --accept-data-change to continue with the data as they are."
            )
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(present, indent=0))
    return f"continuing with changed data: {'; '.join(changes)}." if changes else None


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


class Metrics:
    """`metrics.jsonl`: one JSON object per line, in the order of iterations."""

    def __init__(self, folder: Path, iteration: int):
        """Keep the lines up to `iteration`; a resumed training repeats what came after it."""
        self.path = folder / METRICS
        lines = [line for line in read_metrics(folder) if line["iteration"] <= iteration]
        with atomic_path(self.path) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def write(self, **values: Any) -> None:
        """Append a line."""
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise UserError(f"cannot write '{self.path}': {error.strerror or error}") from error


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All lines of a run's metrics, without a last line that a crash has cut; any other foreign line is refused."""
    path = folder / METRICS
    *lines, rest = path.read_bytes().split(b"\n") if path.exists() else [b""]
    metrics = []
    for number, line in enumerate([*lines, rest], 1):
        values = _parse_metrics(line)
        if values is not None:
            metrics.append(values)
        elif number <= len(lines) and line.strip():
            raise UserError(f"line {number} of '{path}' was not written by a training: remove it to continue.")
    return metrics


def _parse_metrics(line: bytes) -> dict[str, Any] | None:
    """A line of metrics: numbers by name (None for an undefined one), one of them the iteration. Else None."""
    try:
        values = json.loads(line.decode())
        sound = type(values["iteration"]) is int and all(type(v) in (int, float, type(None)) for v in values.values())
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return values if sound else None
