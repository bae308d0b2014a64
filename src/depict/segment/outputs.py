"""The files that `depict segment` writes for each picture.

FOLDER/labels/NAME.png           the class of each pixel
FOLDER/overlays/NAME.png         the classes in colors over the picture, with a legend
FOLDER/confidence/NAME.png       the probability of that class, 0 to 255
FOLDER/polygons/NAME.geojson     the connected regions of each class
FOLDER/probabilities/NAME.npz    `probabilities` float16 (H, W, C) and `classes`

A raster (a georeferenced or very large TIFF, `raster.py`) gets labels/NAME.tif and confidence/NAME.tif. The frames of a
video get one overlay, a video, and `collected.py` writes what is made of all pictures together.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from depict.errors import UserError, unknown
from depict.io.files import atomic_path
from depict.io.images import MAX_PIXELS
from depict.io.polygons import label_polygons, write_geojson
from depict.prediction import write_probabilities
from depict.viz.overlays import OPACITY, label_picture, overlay

FOLDERS = ("labels", "overlays", "confidence", "polygons", "probabilities")
OTHER = "(other)"
"""Name of the pixels whose class is not shown."""
Bands = Iterable[tuple[int, int, np.ndarray]]
Kind = Literal["picture", "frame", "raster"]


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
    confidence: bool = False
    polygons: bool = False
    probabilities: bool = False
    overwrite: bool = False
    opacity: float = OPACITY
    settings: str = ""
    """Identifies the model and the settings that outputs are made with."""

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

    def files(self, name: str, kind: Kind = "picture") -> dict[str, Path]:
        """The outputs of a picture that are requested, by their folder."""
        image = "tif" if kind == "raster" else "png"
        wanted = {
            "labels": (True, image),
            "overlays": (self.overlays and kind != "frame", "png"),
            "confidence": (self.confidence, image),
            "polygons": (self.polygons, "geojson"),
            "probabilities": (self.probabilities, "npz"),
        }
        return {folder: self.folder / folder / f"{name}.{end}" for folder, (on, end) in wanted.items() if on}

    def existing_score(self, name: str, kind: Kind = "picture") -> dict[str, float]:
        """The confidence of a picture whose outputs are kept, for the summary; nothing if none is requested."""
        path = self.files(name, kind).get("confidence")
        levels = None if path is None else read_picture(path, ("L",))
        return {} if levels is None else {"confidence": confidence_score(levels)}

    def write(
        self,
        name: str,
        kind: Kind,
        image: np.ndarray,
        labels: np.ndarray,
        shares: dict[int, float],
        confidence: np.ndarray | None,
    ) -> None:
        """Write the outputs of an image (H, W, 3) with label values (H, W) and confidence levels (H, W).

        The probabilities are already written.
        """
        files = self.files(name, kind)
        if "overlays" in files:
            picture = overlay(image, labels, self.classes, self.palette, shares, self.opacity)
            with atomic_path(files["overlays"]) as temporary:
                picture.save(temporary, "png", compress_level=1)
        if confidence is not None:
            with atomic_path(files["confidence"]) as temporary:
                Image.fromarray(confidence).save(temporary, "png")
        if "polygons" in files:
            write_geojson(files["polygons"], label_polygons(labels, self.classes, self.shown))
        with atomic_path(files["labels"]) as temporary:
            label_picture(labels, self.palette).save(temporary, "png")

    def write_probabilities(self, name: str, bands: Bands, height: int, width: int) -> None:
        """Write the probabilities of a picture as they come: bands (start, stop, (C, stop - start, W))."""
        with atomic_path(self.folder / "probabilities" / f"{name}.npz") as temporary:
            write_probabilities(temporary, self.classes, self.shown, (height, width), bands)

    def describe(self, size: Sequence[int], shares: dict[int, float]) -> dict[str, Any]:
        """Size (H, W) of a picture and the share of each shown class, for the summary."""
        rounded = {self.classes[index]: round(share, 6) for index, share in shares.items()}
        if len(shares) < len(self.classes):
            rounded[OTHER] = round(max(0.0, 1 - sum(shares.values())), 6)
        return {"height": size[0], "width": size[1], "shares": rounded}


def confidence_levels(confidence: np.ndarray) -> np.ndarray:
    """Probabilities in 0..1 as uint8."""
    return np.round(255 * confidence).astype(np.uint8)


def confidence_score(levels: np.ndarray) -> float:
    """The confidence of a picture: the mean over its pixels, in 0..1."""
    return round(float(levels.mean(dtype=np.float64)) / 255, 4)


def read_picture(path: Path, modes: Sequence[str]) -> np.ndarray | None:
    """A picture that depict wrote; None if it is damaged, missing or of another kind."""
    try:
        with Image.open(path) as picture:
            if picture.width * picture.height <= MAX_PIXELS and picture.mode in modes:
                return np.asarray(picture)
    except (OSError, SyntaxError, ValueError):
        pass
    return None
