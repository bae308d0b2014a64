"""The folder of a run while it is being trained: one training at a time, a state to go on from, a list of metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from depict.config import Config, to_dict
from depict.errors import UserError
from depict.files import atomic_path
from depict.model import read_run, with_defaults

# What may differ between the first call and one that goes on: it does not change the result.
FREE = ("data.workers", "data.root", "train.device", "train.save_every", "train.tracker")
NAMED = 4
"""Settings that a refusal names: one that was changed may have changed others with it."""


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[None]:
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
    different = [name for name in names if name not in FREE and before.get(name) != now.get(name)]
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
