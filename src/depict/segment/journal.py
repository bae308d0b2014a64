"""The record of what outputs were made from, written as they are: a call that resumes can prove what it keeps.

OUT/.journal/RANK.jsonl has a line when the outputs of a picture are begun, and one when they are complete, with the
checksums of the picture and of every output. After a crash the last line of a picture tells which of the two it is.
"""

from __future__ import annotations

import json
import os
import threading
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from depict.errors import UserError
from depict.io.checksums import checksum, file_checksum
from depict.io.geotiff import open_raster

FOLDER = ".journal"
PNG_END = b"IEND\xaeB`\x82"
ADVICE = "choose another --out, or give --overwrite"


class Journal:
    """The journal of an output folder, for one process. `settings` identifies how outputs are made.

    Processes of one call work on different pictures, so each has a file of its own.
    """

    def __init__(self, out: Path, settings: str, rank: int = 0) -> None:
        self.out, self.settings, self.lock = out, settings, threading.Lock()
        self.path = out / FOLDER / f"{rank}.jsonl"
        lines = [line for path in sorted((out / FOLDER).glob("*.jsonl")) for line in _read_lines(path)]
        lines.sort(key=lambda line: line["call"])  # a later call may have another number of processes
        self.records = {line["name"]: line for line in lines}
        """The last line of each picture."""
        self.call = 1 + max((line["call"] for line in lines), default=0)

    def keeps(self, name: str, source: str, content: str, files: Iterable[Path]) -> bool:
        """Whether these files are the complete outputs of the picture `source` with the checksum `content`.

        Raises an error if they must not be replaced: outputs of another picture, files that depict did not write, and
        outputs that were changed. Those that cannot be read may be replaced.
        """
        record, files = self.records.get(name), list(files)
        if record is None:
            for path in files:
                if path.exists():
                    raise UserError(f"'{path}' was not written by depict: {ADVICE}.")
            return False
        written = record.get("outputs")
        if written is None:
            return False
        if source != record["source"] and content != record["content"]:
            raise UserError(f"'{source}' would overwrite the outputs of '{record['source']}': {ADVICE}.")
        if (content, self.settings) != (record["content"], record["settings"]):
            return False
        intact = [self._is_as_written(path, written) for path in files]
        return all(intact)

    def begin(self, name: str, source: str) -> None:
        """Note that the outputs of a picture will be written: until they are complete, they may be anything."""
        self._append({"name": name, "call": self.call, "source": source})

    def finish(self, name: str, source: str, content: str, files: Iterable[Path]) -> None:
        """Note that these files are the complete outputs of a picture with the checksum `content`."""
        outputs = {self._key(path): file_checksum(path) for path in files}
        line = {"name": name, "call": self.call, "source": source, "content": content, "settings": self.settings}
        self._append(line | {"outputs": outputs})

    def content_below(self, start: str) -> str:
        """The checksum of all outputs of the pictures whose names begin with `start`."""
        below = [self.records[name].get("outputs") for name in sorted(self.records) if name.startswith(start)]
        return checksum(json.dumps(below).encode())

    def _is_as_written(self, path: Path, written: dict[str, str]) -> bool:
        if self._key(path) not in written or not path.is_file():
            return False
        if file_checksum(path) == written[self._key(path)]:
            return True
        if _is_readable(path):
            raise UserError(f"'{path}' was changed after depict wrote it: {ADVICE}.")
        return False

    def _key(self, path: Path) -> str:
        return path.relative_to(self.out).as_posix()

    def _append(self, line: dict[str, Any]) -> None:
        """Write a line and wait until it is on the disk."""
        try:
            with self.lock:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab") as file:
                    file.write(b"\n" + json.dumps(line).encode())  # a crash may have cut the line before
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"cannot write '{self.path}': {error.strerror or error}") from error


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a journal; those that a crash has cut are left out."""
    lines = []
    for text in path.read_bytes().split(b"\n"):
        try:
            line = json.loads(text.decode())
            finished = "outputs" in line
            texts = [line[key] for key in ("name", "source", *(("content", "settings") if finished else ()))]
            sound = all(isinstance(value, str) for value in [*texts, *line.get("outputs", {}).values()])
            if sound and type(line["call"]) is int:
                lines.append(line)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            continue
    return lines


def _is_readable(path: Path) -> bool:
    """Whether a file is complete; videos are taken to be."""
    try:
        match path.suffix:
            case ".png":
                with Image.open(path) as picture:
                    picture.verify()  # the checksums of all parts but the last
                return path.read_bytes().endswith(PNG_END)
            case ".tif":
                with open_raster(path) as raster:
                    for _, window in raster.block_windows(1):
                        raster.read(1, window=window)
            case ".npz":
                return zipfile.is_zipfile(path)
            case ".geojson":
                json.loads(path.read_bytes())
    except Exception:  # a damaged file can raise almost anything in a decoder
        return False
    return True
