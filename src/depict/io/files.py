"""Atomic writing of files, JSON, and a check of free disk space."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from depict.errors import UserError

LOCK = ".lock"
"""The file in a folder that is locked."""


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` if the block succeeds, remove it otherwise.

    A reader sees the old file or the complete new one, even after a crash or a power failure.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=f".part{path.suffix}", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror or error}") from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked_folder(folder: Path, busy: str) -> Iterator[None]:
    """Create a folder and lock it; if another process has, raise the error `busy`. A process that is killed unlocks."""
    from filelock import FileLock, Timeout

    if folder.exists() and not folder.is_dir():
        raise UserError(f"'{folder}' is a file: choose another --out, a new or an empty folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder '{folder}': {error.strerror}: choose another --out.") from error
    try:
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout as error:
        raise UserError(busy) from error


def remove_unfinished(folder: Path, pattern: str = "*") -> None:
    """Remove what killed processes left of `atomic_path` in the folder, or with "**/*" also below it."""
    for path in folder.glob(pattern):
        if path.name.startswith(".") and ".part" in path.suffixes[-2:]:
            path.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8, atomically. A byte of a file name that is not UTF-8 becomes an escape, which JSON reads back."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def utf8_path(path: Path) -> Iterator[str]:
    """The path for libraries that open only names in UTF-8; while the block runs, another name leads to such a file."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder, f"file{path.suffix}")
            link.symlink_to(path.absolute())
            yield str(link)
    else:
        yield str(path)


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """Read a JSON object that depict wrote; `advice` says what to do if the file is damaged."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' is damaged or unreadable: {advice}.") from error
    return content


def need_space(folder: Path, size: int, what: str, advice: str) -> None:
    """Raise an error unless `size` bytes, and 64 MB to spare, are free on the disk of `folder`."""
    free, needed = shutil.disk_usage(folder).free, size + (64 << 20)
    if needed > free:
        raise UserError(
            f"{what} needs {needed / 1e9:.2f} GB, but only {free / 1e9:.2f} GB are free at '{folder}': {advice}."
        )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
