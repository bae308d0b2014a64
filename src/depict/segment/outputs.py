"""The files that `depict segment` writes for each picture.

FOLDER/labels/NAME.png           the class of each pixel
FOLDER/overlays/NAME.png         the classes in colors over the picture, with a legend
FOLDER/probabilities/NAME.npz    `probabilities` float16 (H, W, C) and `classes`
"""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from depict.errors import UserError, unknown
from depict.io.files import atomic_path
from depict.io.images import MAX_PIXELS
from depict.viz.overlays import label_picture, overlay

FOLDERS = ("labels", "overlays", "probabilities")
OTHER = "(other)"
"""Name of the pixels whose class is not shown."""
Bands = Iterable[tuple[int, int, np.ndarray]]


def choose_classes(classes: Sequence[str], text: str | None) -> tuple[int, ...]:
    """Indices of the classes in a list such as `sky,road`; of all classes for None."""
    if text is None:
        return tuple(range(len(classes)))
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in classes:
            raise unknown("class", name, classes)
    if not names:
        raise UserError("--classes names no class: give names such as sky,road.")
    return tuple(sorted({classes.index(name) for name in names}))


@dataclass(frozen=True)
class Outputs:
    """What is written where. The label map comes last: if it exists, so do the other files."""

    folder: Path
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]
    shown: tuple[int, ...]
    """Classes that are shown; pixels of others get the largest value of a label map, 255 or 65535."""
    overlays: bool = True
    probabilities: bool = False
    overwrite: bool = False

    @functools.cached_property
    def label_values(self) -> np.ndarray:
        """The value in a label map of each class, (C,); uint8 if 8 bits hold all values, else uint16."""
        complete = len(self.shown) == len(self.classes)
        dtype = np.uint8 if len(self.classes) + (not complete) <= 256 else np.uint16
        values = np.full(len(self.classes), np.iinfo(dtype).max, dtype)
        values[list(self.shown)] = self.shown
        return values

    @property
    def legend(self) -> list[dict[str, Any]]:
        """Name and color of each value in a label map."""
        entries = [{"value": i, "name": self.classes[i], "color": list(self.palette[i])} for i in self.shown]
        if len(self.shown) < len(self.classes):
            entries.append({"value": int(self.label_values.max()), "name": OTHER})
        return entries

    def path(self, folder: str, name: str) -> Path:
        """The output of a picture in one of FOLDERS."""
        return self.folder / folder / f"{name}.{'npz' if folder == 'probabilities' else 'png'}"

    def existing_labels(self, name: str) -> np.ndarray | None:
        """The label map of a picture, if all its outputs exist and are to be kept."""
        folders = ["labels"] + ["overlays"] * self.overlays + ["probabilities"] * self.probabilities
        if self.overwrite or not all(self.path(folder, name).is_file() for folder in folders):
            return None
        try:
            with Image.open(self.path("labels", name)) as picture:
                if picture.width * picture.height <= MAX_PIXELS and picture.mode in ("P", "I;16"):
                    return np.asarray(picture)
        except (OSError, SyntaxError, ValueError):
            pass  # damaged: it is made again
        return None

    def write(self, name: str, image: np.ndarray, labels: np.ndarray, shares: dict[int, float]) -> None:
        """Write overlay and label map of an image (H, W, 3) with the label values (H, W)."""
        if self.overlays:
            picture = overlay(image, labels, self.classes, self.palette, shares)
            with atomic_path(self.path("overlays", name)) as temporary:
                picture.save(temporary, "png", compress_level=1)
        with atomic_path(self.path("labels", name)) as temporary:
            label_picture(labels, self.palette).save(temporary, "png")

    def write_probabilities(self, name: str, bands: Bands, height: int, width: int) -> np.ndarray:
        """Write the probabilities of a picture as they come; returns the class (H, W) of the largest.

        `bands` are (start, stop, probabilities (C, stop - start, W)) from top to bottom.
        """
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

    def describe(self, labels: np.ndarray, shares: dict[int, float]) -> dict[str, Any]:
        """Size of a picture and the share of each shown class, for the summary."""
        rounded = {self.classes[index]: round(share, 6) for index, share in shares.items()}
        if len(shares) < len(self.classes):
            rounded[OTHER] = round(max(0.0, 1 - sum(shares.values())), 6)
        return {"height": labels.shape[0], "width": labels.shape[1], "shares": rounded}
