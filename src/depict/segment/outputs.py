"""What segmenting a picture leaves on the disk: label map, overlay, probabilities, and a summary of all pictures.

FOLDER/labels/NAME.png           the class of each pixel
FOLDER/overlays/NAME.png         colors over the picture, with a legend
FOLDER/probabilities/NAME.npz    `probabilities` float16 (H, W, C) and `classes`
FOLDER/summary.json              size and shares of the classes of every picture, and what failed
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from depict.errors import UserError, unknown
from depict.io.files import atomic_path, write_json
from depict.io.images import MAX_PIXELS
from depict.viz.overlays import label_picture, overlay

KINDS = ("labels", "overlays", "probabilities")
"""The folders of outputs."""
OTHER = "(other)"
"""Pixels of the classes that are not shown."""
Row = dict[str, Any]
Bands = Iterable[tuple[int, int, np.ndarray]]


def choose_classes(classes: Sequence[str], wanted: str | None) -> tuple[int, ...]:
    """Indices of the classes in a list such as sky,road; all of them if nothing is said."""
    if wanted is None:
        return tuple(range(len(classes)))
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    for name in names:
        if name not in classes:
            raise unknown("class", name, classes)
    if not names:
        raise UserError("--classes names no class: give names such as sky,road.")
    return tuple(sorted({classes.index(name) for name in names}))


@dataclass(frozen=True)
class Outputs:
    """What is written where. The label map is written last: where it is, the others are, too."""

    folder: Path
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]
    shown: tuple[int, ...]
    """Classes that are shown and written; the others become the largest value of a label map, 255 or 65535."""
    overlays: bool = True
    probabilities: bool = False
    overwrite: bool = False

    @property
    def legend(self) -> list[dict[str, Any]]:
        """What the values of a label map mean, and the colors of the overlay."""
        entries = [{"value": i, "name": self.classes[i], "color": list(self.palette[i])} for i in self.shown]
        if len(self.shown) < len(self.classes):
            entries.append({"value": int(self.table.max()), "name": OTHER})
        return entries

    @property
    def table(self) -> np.ndarray:
        """What is written for each class, (C,), in 8 bits if they hold all values."""
        complete = len(self.shown) == len(self.classes)
        dtype = np.uint8 if len(self.classes) + (not complete) <= 256 else np.uint16
        table = np.full(len(self.classes), np.iinfo(dtype).max, dtype)
        table[list(self.shown)] = self.shown
        return table

    def path(self, kind: str, name: str) -> Path:
        """Of the output of a kind: labels, overlays or probabilities."""
        return self.folder / kind / f"{name}.{'npz' if kind == 'probabilities' else 'png'}"

    def existing(self, name: str) -> np.ndarray | None:
        """The label map, if all outputs of a picture are there and are to be kept."""
        kinds = ["labels"] + ["overlays"] * self.overlays + ["probabilities"] * self.probabilities
        if self.overwrite or not all(self.path(kind, name).is_file() for kind in kinds):
            return None
        try:
            with Image.open(self.path("labels", name)) as picture:
                if picture.width * picture.height <= MAX_PIXELS and picture.mode in ("P", "I;16"):
                    return np.asarray(picture)
        except (OSError, SyntaxError, ValueError):
            pass  # damaged by others: made again
        return None

    def write(self, name: str, image: np.ndarray, labels: np.ndarray, shares: dict[int, float]) -> None:
        """Overlay and label map of a picture (H, W, 3) and its written labels (H, W)."""
        if self.overlays:
            picture = overlay(image, labels, self.classes, self.palette, shares)
            with atomic_path(self.path("overlays", name)) as temporary:
                picture.save(temporary, "png", compress_level=1)
        with atomic_path(self.path("labels", name)) as temporary:
            label_picture(labels, self.palette).save(temporary, "png")

    def write_probabilities(self, name: str, bands: Bands, height: int, width: int) -> np.ndarray:
        """Write the probabilities of a picture, (start, stop, (C, stop - start, W)) each; gives the labels (H, W)."""
        labels = np.empty((height, width), np.uint16)
        with (
            atomic_path(self.path("probabilities", name)) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            with archive.open("classes.npy", "w") as file:
                np.save(file, np.array([self.classes[index] for index in self.shown]))
            with archive.open("probabilities.npy", "w", force_zip64=True) as file:
                shape = (height, width, len(self.shown))
                header = {"descr": "<f2", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for start, stop, band in bands:
                    labels[start:stop] = band.argmax(0)
                    file.write(band[list(self.shown)].transpose(1, 2, 0).astype("<f2").tobytes())
        return labels

    def describe(self, labels: np.ndarray, shares: dict[int, float]) -> Row:
        """Size and the share of each shown class, for the summary."""
        rounded = {self.classes[index]: round(share, 6) for index, share in shares.items()}
        if len(shares) < len(self.classes):
            rounded[OTHER] = round(max(0.0, 1 - sum(shares.values())), 6)
        return {"height": labels.shape[0], "width": labels.shape[1], "shares": rounded}


class Summary:
    """The file summary.json of an output folder: how its outputs were made, and a row for each picture.

    It grows over several calls for the same folder. Outputs made otherwise, or of another file, are never taken for
    those that are asked for; and files that are no outputs are never taken for such, nor written over.
    """

    def __init__(self, folder: Path, about: dict[str, Any], overwrite: bool) -> None:
        self.path = folder / "summary.json"
        self.about = about
        self.rows: dict[tuple[str, str], Row] = {}
        filled = [folder / kind for kind in KINDS if (folder / kind).is_dir() and any((folder / kind).iterdir())]
        before = self._read()  # only now: of several processes one may have begun to write meanwhile
        if filled and not before:
            raise UserError(
                f"'{filled[0]}' holds files that are not known to be outputs, since there is no '{self.path}': "
                "give another --out."
            )
        differing = [key for key in about if key in before and before[key] != about[key]]
        if before and not differing:
            self.rows = {(row["name"], row["source"]): row for row in before["pictures"]}
        elif before and not overwrite:
            raise UserError(
                f"the outputs in '{folder}' were made with another setting ({differing[0]}: "
                f"{json.dumps(before[differing[0]])}): give another --out, or --overwrite."
            )

    @property
    def sources(self) -> dict[str, str]:
        """The file that each name's outputs were made of."""
        return {name: source for (name, source), row in self.rows.items() if row["status"] != "failed"}

    def write(self, rows: Iterable[Row], passed: Sequence[Path]) -> None:
        """Add rows and write the file."""
        sources = self.sources
        for row in sorted(rows, key=lambda row: row["order"]):
            name, source = row["name"], row["source"]
            if row["status"] != "failed" and name in sources:
                self.rows.pop((name, sources[name]), None)
            self.rows[name, source] = {key: value for key, value in row.items() if key != "order"}
        pictures = list(self.rows.values())
        counts = {status: sum(row["status"] == status for row in pictures) for status in ("written", "kept", "failed")}
        passed_over = [readable(path) for path in passed]
        write_json(self.path, {**self.about, **counts, "pictures": pictures, "passed_over": passed_over})

    def _read(self) -> dict[str, Any]:
        try:
            before = json.loads(self.path.read_bytes())
            for row in before["pictures"]:
                _ = row["name"], row["source"], row["status"]
            return before
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"'{self.path}' is not a summary of depict: remove it, or give another --out.") from error


def readable(path: str | os.PathLike[str]) -> str:
    """A path as text that can be written and printed, also if its bytes are no UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
