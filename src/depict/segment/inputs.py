"""Finding the pictures and videos that files, folders and patterns stand for, and naming their outputs.

The name of an input is its path below the folder that all inputs have in common, without the suffix, so that outputs
mirror the folder tree. Pictures that would share a name (a.jpg and a.png) keep their suffix. So does a picture whose
output would have the name of a folder (a.jpg next to the folder a.png).
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from depict.errors import UserError
from depict.io.folders import PICTURES, list_folder, natural
from depict.segment.video import check_installed

VIDEOS = {".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"}
"""Suffixes of videos, which are read only if they are given by themselves."""

OUTPUT_SUFFIXES = (".png", ".tif", ".npz", ".geojson")
"""Suffixes of the outputs of a picture, which have its name: no folder may have the same."""


@dataclass(frozen=True)
class Input:
    """A file to be read, or a folder that cannot be listed."""

    path: Path
    name: str
    """Relative path of its outputs, without suffix; for a video, the folder of its frames."""
    error: str | None = None
    """Why the folder cannot be listed; None for a file."""

    @property
    def video(self) -> bool:
        """Whether it is read frame by frame."""
        return self.error is None and self.path.suffix.lower() in VIDEOS


def find_inputs(given: Sequence[str], out: Path, output_names: Sequence[str] = ()) -> tuple[list[Input], list[Path]]:
    """The inputs in order, and the paths in the given folders that are ignored (other files, links to folders).

    Folders are searched recursively, in natural order (2 before 10), without hidden files. Outputs of an earlier call
    never become inputs: the folder `out` is left out, and if it is given itself, the entries `output_names` in it are.
    Folders that cannot be listed come last, with their error.
    """
    if not given:
        raise UserError("no pictures given: name files, folders or patterns such as 'frames/*.png'.")
    files: dict[Path, None] = {}
    ignored: list[Path] = []
    errors: dict[Path, str] = {}
    roots = []
    outputs = {_absolute(out / name) for name in output_names}
    for text in given:
        for path in _expand(text):
            if not outputs.isdisjoint((path, *path.parents)):
                ignored.append(path)
            elif path.is_dir():
                contents, links, failed = list_folder(path, outputs | {_absolute(out)})
                files |= dict.fromkeys(file for file in contents if file.suffix.lower() in PICTURES)
                ignored += [file for file in contents if file.suffix.lower() not in PICTURES] + links
                errors |= {Path(e.filename): f"cannot read '{e.filename}': {e.strerror}." for e in failed}
                roots.append(path)
            else:
                files[path] = None
                roots.append(path.parent)
    if not files:
        if errors:
            raise UserError(next(iter(errors.values())))
        raise UserError(f"no picture in '{given[0]}' ({len(ignored)} other files): name the files themselves.")
    root = Path(os.path.commonpath(roots))
    inputs = _named(list(files), root)
    for video in (one.path for one in inputs if one.video):
        check_installed(video)
    unlisted = [Input(path, path.relative_to(root).as_posix(), errors[path]) for path in sorted(errors, key=natural)]
    return inputs + unlisted, ignored


def _expand(text: str) -> list[Path]:
    """The paths that a path or pattern stands for."""
    if os.path.lexists(text):
        return [_absolute(text)]
    if not glob.has_magic(text):
        raise UserError(f"there is no file or folder '{text}'.")
    matches = [_absolute(match) for match in glob.iglob(text, recursive=True)]  # noqa: PTH207 - it may be absolute
    if not matches:
        raise UserError(f"nothing matches '{text}'.")
    return sorted(matches, key=natural)


def _absolute(path: str | Path) -> Path:
    """The path without `..`, so that no name leads out of the output folder; links are not resolved."""
    return Path(os.path.normpath(Path(path).absolute()))


def _named(files: list[Path], root: Path) -> list[Input]:
    """Every file with a name that no other has, even on file systems that ignore case."""
    whole = [file.relative_to(root) for file in files]
    # The frames of a video go to a folder of its full name, which no other input can have.
    short = [path if path.suffix.lower() in VIDEOS else path.with_suffix("") for path in whole]
    uses = Counter(name for pair in zip(whole, short, strict=True) for name in {_key(path) for path in pair})
    folders = {_key(parent) for path in whole for parent in path.parents}
    blocked = {folder.removesuffix(end) for folder in folders for end in OUTPUT_SUFFIXES if folder.endswith(end)}
    inputs = []
    for file, full, path in zip(files, whole, short, strict=True):
        while file.suffix.lower() in VIDEOS and f"{_key(path)}.mp4" in uses.keys() | folders:
            path = path.with_name(path.name + "_")  # the overlays of clip.avi are clip.avi.mp4
        if file.suffix.lower() not in VIDEOS and (uses[_key(path)] > 1 or _key(path) in blocked):
            path = full
            while _key(path) in blocked or (path != full and _key(path) in uses):  # rare: any new name will do
                path = path.with_name(path.name + "_")
            uses[_key(path)] += 1
        inputs.append(Input(file, path.as_posix()))
    return inputs


def _key(path: Path) -> str:
    return path.as_posix().casefold()
