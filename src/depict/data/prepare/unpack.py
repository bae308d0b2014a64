"""Unpacking an archive that a stranger made: only plain files, only below the target, only as much as is sane."""

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
from typing import IO

from depict.data.prepare.download import MAKE_ROOM
from depict.errors import UserError
from depict.io.files import need_space


@dataclass(frozen=True)
class Limits:
    """What an archive may hold. The largest that we know (Cityscapes) has 12 GB in 20 000 files."""

    entries: int = 500_000
    size: int = 100 << 30
    ratio: int = 100
    """Unpacked over packed size, of archives that unpack to more than `small`."""
    small: int = 32 << 20


@dataclass(frozen=True)
class _Entry:
    """A member of an archive: `plain` says that it is an ordinary file, `open` gives its bytes."""

    name: str
    size: int
    folder: bool
    plain: bool
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, root: Path, folders: Mapping[str, str], limits: Limits = Limits()) -> None:  # noqa: B008
    """Unpack some folders of a zip or tar file: {path inside, where each part may be a pattern: path below `root`}.

    Everything is first unpacked beside its place and then renamed, so that a folder that exists is whole; folders
    that exist already are left alone. An archive with anything unsafe in it is refused before a file is written.
    """
    wanted = {inside: root / place for inside, place in folders.items() if not (root / place).exists()}
    work = root / f".{archive.name}.unpacking"
    try:
        with _opened(archive) as entries:
            chosen = _inspect(archive, entries(), list(wanted), limits)
            for inside in wanted:
                if not any(pattern == inside for _, pattern, _ in chosen):
                    raise UserError(f"'{archive}' holds no folder '{inside}': it is not the archive that was expected.")
            need_space(root, sum(entry.size for entry, _, _ in chosen), f"unpacking '{archive.name}'", MAKE_ROOM)
            shutil.rmtree(work, ignore_errors=True)
            _write(archive, work, chosen)
        for inside, place in wanted.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            (work / _flat(inside)).rename(place)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError) as error:
        raise UserError(f"'{archive}' is damaged ({' '.join(str(error).split())}): remove it and run again.") from error
    except OSError as error:
        raise UserError(f"cannot unpack '{archive}': {error.strerror or error}.") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[Callable[[], Iterator[_Entry]]]:
    with archive.open("rb") as file:  # zipfile.is_zipfile would also take a tar that ends with a zip
        is_zip = file.read(2) == b"PK"
    if is_zip:
        with zipfile.ZipFile(archive) as packed:
            yield lambda: _zip_entries(archive, packed)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as packed_tar:
            yield lambda: _tar_entries(packed_tar)
    else:
        raise UserError(f"'{archive}' is neither a zip nor a tar file: remove it and run again.")


def _zip_entries(archive: Path, packed: zipfile.ZipFile) -> Iterator[_Entry]:
    for info in packed.infolist():
        if info.flag_bits & 1:
            raise UserError(f"'{archive}' is encrypted: unpack it yourself.")
        kind = stat.S_IFMT(info.external_attr >> 16)
        plain = not info.is_dir() and kind in (0, stat.S_IFREG)
        yield _Entry(info.orig_filename, info.file_size, info.is_dir(), plain, partial(packed.open, info))


def _tar_entries(packed: tarfile.TarFile) -> Iterator[_Entry]:
    def opener(info: tarfile.TarInfo) -> IO[bytes]:
        file = packed.extractfile(info)
        assert file is not None  # only asked of regular files
        return file

    for info in packed:
        yield _Entry(info.name, info.size, info.isdir(), info.isreg(), partial(opener, info))


def _inspect(
    archive: Path, entries: Iterator[_Entry], wanted: list[str], limits: Limits
) -> list[tuple[_Entry, str, PurePosixPath]]:
    """The files to write, each with the wanted folder it is in and its path below that; refuses what is unsafe."""
    refused = f"'{archive}' is refused:"
    total, chosen, packed_size = 0, [], archive.stat().st_size
    for count, entry in enumerate(entries, 1):
        total += entry.size
        if count > limits.entries or total > limits.size:
            raise UserError(f"{refused} it holds more than {limits.entries} files or {limits.size / 1e9:.0f} GB.")
        if total > limits.small and total > limits.ratio * packed_size:
            raise UserError(f"{refused} it unpacks to more than {limits.ratio} times its size, like a zip bomb.")
        path = PurePosixPath(entry.name)
        if not entry.name or path.is_absolute() or ".." in path.parts or re.search(r"[\\\x00]|^[A-Za-z]:", entry.name):
            raise UserError(f"{refused} its entry {entry.name[:80]!r} would be written outside the folder.")
        if entry.folder:
            continue
        for inside in wanted:
            if (below := _below(path, inside)) is not None:
                if not entry.plain:
                    raise UserError(f"{refused} its entry {entry.name[:80]!r} is a link or a device, not a file.")
                chosen.append((entry, inside, below))
    return chosen


def _below(path: PurePosixPath, inside: str) -> PurePosixPath | None:
    """The path relative to the folder `inside`, if it lies in it."""
    patterns = PurePosixPath(inside).parts
    if len(path.parts) <= len(patterns) or not all(map(fnmatchcase, path.parts, patterns)):
        return None
    return PurePosixPath(*path.parts[len(patterns) :])


def _write(archive: Path, work: Path, chosen: list[tuple[_Entry, str, PurePosixPath]]) -> None:
    from tqdm import tqdm

    bar = tqdm(total=sum(e.size for e, _, _ in chosen), unit="B", unit_scale=True, desc=f"unpacking {archive.name}")
    with bar:
        for entry, inside, below in chosen:
            place = work / _flat(inside) / below
            place.parent.mkdir(parents=True, exist_ok=True)
            with entry.open() as source, place.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            bar.update(entry.size)


def _flat(inside: str) -> str:
    """One folder name for each wanted folder."""
    return inside.replace("/", "+").replace("*", "any")
