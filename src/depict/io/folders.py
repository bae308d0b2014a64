"""The pictures in a folder, in natural order."""

from __future__ import annotations

import os
import re
from collections.abc import Set
from pathlib import Path

PICTURES = {".apng", ".avif", ".bmp", ".dib", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png"}
PICTURES |= {".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"}
"""Suffixes of the files that are read from folders; a file that is given by itself may have any suffix."""


def natural(path: Path) -> list[list[tuple[bool, int, str]]]:
    """A sort key that compares numbers in names by value: frame2 before frame10, folder by folder."""
    return [
        [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name) if part]
        for name in path.parts
    ]


def list_folder(folder: Path, without: Set[Path] = frozenset()) -> tuple[list[Path], list[Path], list[OSError]]:
    """All files below a folder, the links to folders, and the errors of folders that cannot be listed.

    Hidden files are left out. Links to files are followed. Links to folders are not: they may be circular.
    """
    found: list[Path] = []
    links: list[Path] = []
    errors: list[OSError] = []
    for parent, folders, files in os.walk(folder, onerror=errors.append):
        folders[:] = [name for name in folders if not name.startswith(".") and Path(parent, name) not in without]
        # Path.is_symlink raises where a folder may be listed but not entered.
        links += [Path(parent, name) for name in folders if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118
        found += [path for name in files if not name.startswith(".") and (path := Path(parent, name)) not in without]
    return sorted(found, key=natural), sorted(links, key=natural), errors
