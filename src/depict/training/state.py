"""The files in the folder `state` of a run: the last two states of a training, each with its checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from depict.errors import UserError, is_out_of_memory
from depict.io.checksums import file_checksum
from depict.io.files import atomic_path
from depict.runs import STATE

LAST = Path(STATE) / "last.pt"
PREVIOUS = Path(STATE) / "previous.pt"
"""The state before the last one, in case that is damaged."""


def save_state(folder: Path, values: dict[str, Any]) -> None:
    """Replace the state that a training resumes from; the one before it is kept, too.

    The file ends with the checksum of what comes before; torch.load does not mind.
    """
    last = folder / LAST
    with atomic_path(last) as temporary:
        try:
            with temporary.open("wb") as file:
                torch.save(values, file)
        except RuntimeError as error:
            # torch hides the system's error (such as no space) behind one of its own; report the
            # system's.
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None
        with temporary.open("ab") as file:
            file.write(file_checksum(temporary).encode())
        if last.exists():
            last.replace(folder / PREVIOUS)


def recover_state(folder: Path) -> str | None:
    """Make sure that the saved state is the one that was written, or put the one before it in its place.

    Returns what a user should know about it.
    """
    last, previous = folder / LAST, folder / PREVIOUS
    if previous.exists() and not last.exists():  # killed between the two renames of a save
        previous.replace(last)
    if not last.exists() or _is_as_written(last):
        return None
    if not (previous.exists() and _is_as_written(previous)):
        raise UserError(
            f"'{last}' is damaged, and there is no state before it: remove '{last.parent}' to train from the start, or "
            "choose another --out."
        )
    previous.replace(last)
    return f"'{last}' was damaged: the training resumes from the state before it."


def _is_as_written(state: Path) -> bool:
    """Whether the content of a state has the checksum at its end."""
    digest = hashlib.sha256()
    written = len(digest.hexdigest())
    with state.open("rb") as file:
        left = state.stat().st_size - written
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
        return file.read() == digest.hexdigest().encode()


def load_state(folder: Path) -> dict[str, Any] | None:
    """The saved state, or None before the first save."""
    path = folder / LAST
    if not path.exists():
        return None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the bytes of a foreign file may raise anything
        if is_out_of_memory(error):
            raise
        raise foreign_state(folder) from error


def foreign_state(folder: Path) -> UserError:
    """The error for a state that does not fit the training."""
    return UserError(
        f"'{folder / LAST}' is not a state of this training: remove '{(folder / LAST).parent}' to train from the "
        "start, or choose another --out."
    )
