"""Which pictures and videos a user means by files, folders and patterns; in what order; under which names.

A name is the path below the folder that all inputs have in common, without its ending, so that outputs mirror the tree.
Where two pictures would share a name (a.jpg and a.png), both keep their ending; so does a picture whose output would
have the name of a folder (a.jpg beside the folder a.png).
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from depict.errors import UserError
from depict.io.images import MAX_PIXELS

PICTURES = {".apng", ".avif", ".bmp", ".dib", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png"}
PICTURES |= {".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"}
"""Endings that are taken from a folder; a file that is named itself may have any."""
VIDEOS = {".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"}
"""Endings that make a file that is named itself a video."""


@dataclass(frozen=True)
class Input:
    """One file to be read, or a folder that cannot be."""

    path: Path
    name: str
    """Where its outputs go: a relative path without ending; for a video the folder of its frames."""
    error: str | None = None
    """Why the folder cannot be read; None for a file."""

    @property
    def video(self) -> bool:
        """Whether it is read frame by frame."""
        return self.error is None and self.path.suffix.lower() in VIDEOS


def find_inputs(given: Sequence[str], without: Path, own: Sequence[str] = ()) -> tuple[list[Input], list[Path]]:
    """Inputs in order, and what is passed over in the given folders: files without a picture's ending, linked folders.

    Folders are searched to the bottom and read in natural order (2 before 10); hidden files and the folder `without`,
    where outputs go, are left out. If `without` is itself given, only what has one of the names `own` in it is;
    a path that leads there is passed over: no output of an earlier call becomes an input. Folders that cannot be listed
    come last, with the error.
    """
    if not given:
        raise UserError("no pictures were given: name files, folders or patterns such as 'frames/*.png'.")
    files: dict[Path, None] = {}
    passed: list[Path] = []
    errors: dict[Path, str] = {}
    roots = []
    outputs = {_absolute(without / name) for name in own}
    for text in given:
        for path in _expanded(text):
            if not outputs.isdisjoint((path, *path.parents)):
                passed.append(path)
            elif path.is_dir():
                inside, links, failed = _inside(path, outputs | {_absolute(without)})
                files |= dict.fromkeys(file for file in inside if file.suffix.lower() in PICTURES)
                passed += [file for file in inside if file.suffix.lower() not in PICTURES] + links
                errors |= {Path(one.filename): f"cannot read '{one.filename}': {one.strerror}." for one in failed}
                roots.append(path)
            else:
                files[path] = None
                roots.append(path.parent)
    if not files:
        if errors:
            raise UserError(next(iter(errors.values())))
        raise UserError(f"there is no picture in '{given[0]}' ({len(passed)} other files); name the files themselves.")
    root = Path(os.path.commonpath(roots))
    inputs = _named(list(files), root)
    if any(one.video for one in inputs) and importlib.util.find_spec("av") is None:
        video = next(one.path for one in inputs if one.video)
        raise UserError(f"to read the video '{video}', PyAV is needed: pip install av.")
    locked = [Input(path, path.relative_to(root).as_posix(), errors[path]) for path in sorted(errors, key=natural)]
    return inputs + locked, passed


def _expanded(text: str) -> list[Path]:
    if os.path.lexists(text):
        return [_absolute(text)]
    if not glob.has_magic(text):
        raise UserError(f"there is no file or folder '{text}'.")
    found = [_absolute(match) for match in glob.iglob(text, recursive=True)]  # noqa: PTH207 - it may be absolute
    if not found:
        raise UserError(f"nothing matches '{text}'.")
    return sorted(found, key=natural)


def _absolute(path: str | Path) -> Path:
    """Without `..`, so that no name leads out of the output folder; links keep their own names."""
    return Path(os.path.normpath(Path(path).absolute()))


def _inside(folder: Path, without: set[Path]) -> tuple[list[Path], list[Path], list[OSError]]:
    """All files below a folder, the links to folders, and why folders could not be listed.

    Links to files are followed, links to folders are not: they may go in circles.
    """
    found: list[Path] = []
    links: list[Path] = []
    errors: list[OSError] = []
    for parent, folders, files in os.walk(folder, onerror=errors.append):
        folders[:] = [name for name in folders if not name.startswith(".") and Path(parent, name) not in without]
        # That of pathlib raises where a folder may be listed but not entered.
        links += [Path(parent, name) for name in folders if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118
        found += [path for name in files if not name.startswith(".") and (path := Path(parent, name)) not in without]
    return sorted(found, key=natural), sorted(links, key=natural), errors


def natural(path: Path) -> list[list[tuple[bool, int, str]]]:
    """A key that sorts numbers within names by value: frame2 before frame10, folder by folder."""
    return [
        [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name) if part]
        for name in path.parts
    ]


def _named(files: list[Path], root: Path) -> list[Input]:
    whole = [file.relative_to(root) for file in files]
    # A video's frames go to a folder of its full name, which no other input can have.
    short = [path if path.suffix.lower() in VIDEOS else path.with_suffix("") for path in whole]
    # Names that differ in case only are one on some file systems.
    claims = Counter(name for pair in zip(whole, short, strict=True) for name in {_key(path) for path in pair})
    folders = {_key(parent) for path in whole for parent in path.parents}
    blocked = {folder[:-4] for folder in folders if folder.endswith((".png", ".npz"))}
    inputs = []
    for file, full, path in zip(files, whole, short, strict=True):
        if file.suffix.lower() not in VIDEOS and (claims[_key(path)] > 1 or _key(path) in blocked):
            path = full
            # What all endings do not tell apart is rare enough to be told apart by anything.
            while _key(path) in blocked or (path != full and _key(path) in claims):
                path = path.with_name(path.name + "_")
            claims[_key(path)] += 1
        inputs.append(Input(file, path.as_posix()))
    return inputs


def _key(path: Path) -> str:
    return path.as_posix().casefold()


def frame_count(path: Path) -> int | None:
    """How many frames a video announces, if it does."""
    import av

    try:
        with av.open(str(path)) as container:
            return container.streams.video[0].frames or None
    except (av.FFmpegError, IndexError):
        return None


def video_frames(path: Path, rank: int = 0, world: int = 1) -> Iterator[tuple[int, np.ndarray]]:
    """Number from 1 and RGB (H, W, 3) of every world-th frame of a video, upright."""
    import av

    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise UserError(f"'{path}' has no pictures in it, only sound or text.")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for number, frame in enumerate(container.decode(stream)):
                if number % world == rank:
                    if frame.width * frame.height > MAX_PIXELS:
                        raise UserError(f"'{path}' has frames of {frame.width} x {frame.height} pixels: too large.")
                    yield number + 1, np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
    except av.FFmpegError as error:
        raise UserError(f"'{path}' is not a readable video: {error.strerror}") from error
