"""Unpacking untrusted archives: only regular files, only below the target folder, only up to a sane size.

zipfile and tarfile (with its "data" filter) write the files. The checks before that are ours, because the libraries
rewrite unsafe names instead of refusing the archive, let links through, and have no limit on sizes.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath

from depict.data.prepare.download import MAKE_ROOM
from depict.errors import UserError, one_line
from depict.io.files import need_space
from depict.terminal import progress_bar


@dataclass(frozen=True)
class Limits:
    """What an archive may contain. The largest known one (Cityscapes) has 12 GB in 20,000 files."""

    entries: int = 500_000
    size: int = 100 << 30
    ratio: int = 100
    """Unpacked size over packed size, for archives that unpack to more than `small`."""
    small: int = 32 << 20


_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError)
"""What the standard library raises for damaged archives; the last one for names that are not the UTF-8 they claim."""


@dataclass(frozen=True)
class _Entry:
    """A member of an archive; `extract` writes it below a folder, under its full name."""

    name: str
    size: int
    is_folder: bool
    is_file: bool
    extract: Callable[[Path], object]

    @property
    def parts(self) -> tuple[str, ...]:
        return PurePosixPath(self.name).parts


def unpack(archive: Path, root: Path, folders: Mapping[str, str], limits: Limits = Limits()) -> None:  # noqa: B008
    """Unpack folders of a zip or tar file: {path in the archive, where each part may be a pattern: path in `root`}.

    Everything is unpacked into a temporary folder and then renamed, so that a folder that exists is complete; existing
    folders are kept. An archive with anything unsafe in it is refused before a file is written.
    """
    missing = {inside: root / target for inside, target in folders.items() if not (root / target).exists()}
    work = root / f".{archive.name}.unpacking"
    try:
        with _opened(archive) as entries:
            chosen = _choose(archive, entries, list(missing), limits)
            files = [entry for group in chosen.values() for entry in group]
            need_space(root, sum(entry.size for entry in files), f"unpacking '{archive.name}'", MAKE_ROOM)
            shutil.rmtree(work, ignore_errors=True)
            _extract(archive, work, files)
        for inside, target in missing.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            depth = len(PurePosixPath(inside).parts)
            work.joinpath(*chosen[inside][0].parts[:depth]).rename(target)
    except _DAMAGED as error:
        raise UserError(f"'{archive}' is damaged ({one_line(error)}): remove it and run again.") from error
    except OSError as error:
        raise UserError(f"cannot unpack '{archive}': {error.strerror or error}.") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[Iterator[_Entry]]:
    with archive.open("rb") as file:  # zipfile.is_zipfile would also accept a tar that ends with a zip
        is_zip = file.read(2) == b"PK"
    if is_zip:
        with zipfile.ZipFile(archive) as packed:
            yield _zip_entries(archive, packed)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as packed_tar:
            yield _tar_entries(packed_tar)
    else:
        raise UserError(f"'{archive}' is neither a zip nor a tar file: remove it and run again.")


def _zip_entries(archive: Path, packed: zipfile.ZipFile) -> Iterator[_Entry]:
    for info in packed.infolist():
        if info.flag_bits & 1:
            raise UserError(f"'{archive}' is encrypted: unpack it yourself.")
        file_type = stat.S_IFMT(info.external_attr >> 16)
        is_file = not info.is_dir() and file_type in (0, stat.S_IFREG)
        yield _Entry(info.orig_filename, info.file_size, info.is_dir(), is_file, partial(packed.extract, info))


def _tar_entries(packed: tarfile.TarFile) -> Iterator[_Entry]:
    for info in packed:
        extract = partial(packed.extract, info, filter="data")
        yield _Entry(info.name, info.size, info.isdir(), info.isreg(), extract)


def _choose(archive: Path, entries: Iterator[_Entry], folders: list[str], limits: Limits) -> dict[str, list[_Entry]]:
    """The files in each of the folders; refuses an archive with unsafe entries, or without one of the folders."""
    chosen: dict[str, list[_Entry]] = {inside: [] for inside in folders}
    refused = f"'{archive}' is refused:"
    total, packed_size = 0, archive.stat().st_size
    for count, entry in enumerate(entries, 1):
        total += entry.size
        if count > limits.entries or total > limits.size:
            raise UserError(f"{refused} it holds more than {limits.entries} files or {limits.size / 1e9:.0f} GB.")
        if total > limits.small and total > limits.ratio * packed_size:
            raise UserError(f"{refused} it unpacks to more than {limits.ratio} times its size, like a zip bomb.")
        absolute = entry.name.startswith("/") or re.match("[A-Za-z]:", entry.name)
        if not entry.name or absolute or ".." in entry.parts or re.search(r"[\\\x00]", entry.name):
            raise UserError(f"{refused} its entry {entry.name[:80]!r} would be written outside the folder.")
        if entry.is_folder:
            continue
        for inside, files in chosen.items():
            if _is_below(entry.parts, inside):
                if not entry.is_file:
                    raise UserError(f"{refused} its entry {entry.name[:80]!r} is a link or a device, not a file.")
                files.append(entry)
    for inside, files in chosen.items():
        depth = len(PurePosixPath(inside).parts)
        if len({entry.parts[:depth] for entry in files}) != 1:
            number = "several folders" if files else "no folder"
            raise UserError(f"'{archive}' holds {number} '{inside}': it is not the expected archive.")
    return chosen


def _is_below(parts: tuple[str, ...], inside: str) -> bool:
    """Whether a path is in a folder given by a pattern for each part."""
    patterns = PurePosixPath(inside).parts
    return len(parts) > len(patterns) and all(map(fnmatchcase, parts, patterns))


def _extract(archive: Path, work: Path, files: list[_Entry]) -> None:
    size = sum(entry.size for entry in files)
    with progress_bar(total=size, unit="B", unit_scale=True, desc=f"unpacking {archive.name}") as bar:
        for entry in files:
            entry.extract(work)
            bar.update(entry.size)
