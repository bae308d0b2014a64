"""summary.json of an output folder: how its outputs were made, and the result for each picture."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from depict.errors import UserError
from depict.io.files import write_json
from depict.segment.outputs import FOLDERS

FILE = "summary.json"
Row = dict[str, Any]
"""One picture: name, source, order, status (written, kept or failed); size, shares and confidence, or the error."""


class Summary:
    """The summary of a folder, which grows over several calls.

    Files that depict did not write are never overwritten, and outputs that were made with other settings are never kept
    as the requested ones.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], overwrite: bool) -> None:
        self.path = folder / FILE
        self.settings = settings
        self.rows: dict[tuple[str, str], Row] = {}
        filled = [folder / name for name in FOLDERS if (folder / name).is_dir() and any((folder / name).iterdir())]
        before = self._read()  # after looking into the folders, since another process may begin to write meanwhile
        if filled and not before:
            raise UserError(
                f"'{filled[0]}' holds files that may not be outputs, since there is no '{self.path}': "
                "choose another --out."
            )
        different = [key for key in settings if key in before and before[key] != settings[key]]
        if before and not different:
            self.rows = {(row["name"], row["source"]): row for row in before["pictures"]}
        elif filled and not overwrite:
            raise UserError(
                f"the outputs in '{folder}' were made with another setting ({different[0]}: "
                f"{json.dumps(before[different[0]])}): choose another --out, or give --overwrite."
            )

    def write(self, rows: Iterable[Row], ignored: Sequence[Path], by_confidence: bool = False) -> list[Row]:
        """Add rows and write the file; returns all rows in their order: as they came, or the least certain first."""
        sources = {name: source for (name, source), row in self.rows.items() if row["status"] != "failed"}
        for row in sorted(rows, key=lambda row: row["order"]):
            name, source = row["name"], row["source"]
            if row["status"] != "failed" and name in sources:
                self.rows.pop((name, sources[name]), None)
            self.rows[name, source] = {key: value for key, value in row.items() if key != "order"}
        pictures = list(self.rows.values())
        if by_confidence:
            pictures.sort(key=lambda row: row.get("confidence", 2.0))  # failed ones last
        counts = {status: sum(row["status"] == status for row in pictures) for status in ("written", "kept", "failed")}
        paths = [printable(path) for path in ignored]
        write_json(self.path, {**self.settings, **counts, "pictures": pictures, "ignored": paths})
        return pictures

    def _read(self) -> dict[str, Any]:
        try:
            before = json.loads(self.path.read_bytes())
            for row in before["pictures"]:
                _ = row["name"], row["source"], row["status"]
            return before
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"'{self.path}' is not a summary of depict: remove it, or choose another --out.") from error


def printable(path: str | os.PathLike[str]) -> str:
    """A path as text that can be written and printed, even if its bytes are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
