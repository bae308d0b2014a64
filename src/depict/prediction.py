"""What `model.predict` gives: labels, confidence, probabilities and pictures of one image. Needs no torch."""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image

from depict.errors import UserError, unknown
from depict.inference.predictors import Predictor, Scores
from depict.io.files import atomic_path
from depict.io.folders import PICTURES, list_folder
from depict.io.geotiff import create_raster, is_georeferenced, on_earth, open_raster, read_rgb
from depict.io.images import MAX_PIXELS, read_image, to_rgb
from depict.io.polygons import Feature, label_polygons, write_geojson
from depict.viz.overlays import OPACITY, label_picture, label_shares, overlay

if TYPE_CHECKING:
    from depict.data.palette import Color
    from depict.io.images import ImageLike

MAX_BYTES = 2 << 30
"""Larger arrays of probabilities are refused: a photo with 150 classes has 7 GB of them."""
DISPLAYED = 960
"""Longest side in pixels of the picture in a notebook."""


@dataclass(repr=False, eq=False)
class Prediction:
    """The classes of one image. It keeps the image and the network's low-resolution scores."""

    image: np.ndarray
    """uint8 RGB (H, W, 3)."""
    labels: np.ndarray
    """The class of each pixel, an index into `names`: uint8 (int16 beyond 256 classes), (H, W)."""
    names: tuple[str, ...]
    """Of all classes of the model."""
    palette: tuple[Color, ...]
    path: Path | None = None
    """The file, if the image was given by its path."""
    scores: Scores = field(kw_only=True)

    @functools.cached_property
    def classes(self) -> dict[str, float]:
        """The classes in the image and the share of it that each covers, largest first."""
        present = sorted(((s, -i) for i, s in self._shares.items() if s > 0), reverse=True)
        return {self.names[-index]: share for share, index in present}

    @functools.cached_property
    def confidence(self) -> np.ndarray:
        """The probability of the predicted class at each pixel, float32 (H, W)."""
        confidence = np.empty(self.labels.shape, np.float32)
        for start, stop, band in self.scores.probabilities():
            confidence[start:stop] = band.max(0)
        return confidence

    def probabilities(self, classes: Sequence[str] | None = None, size: tuple[int, int] | None = None) -> np.ndarray:
        """The probability of each class, or of these classes, at each pixel: float32 (C, H, W).

        `size` is the height and width of the result, by default the image's own.
        """
        chosen = [self._index(name) for name in (self.names if classes is None else classes)]
        height, width = size or self.labels.shape
        if (needed := 4 * len(chosen) * height * width) > MAX_BYTES:
            raise UserError(
                f"the probabilities of {len(chosen)} classes at {height} x {width} pixels would take "
                f"{needed / 1e9:.1f} GB: choose fewer classes, or a smaller size=(height, width)."
            )
        values = np.empty((len(chosen), height, width), np.float32)
        for start, stop, band in self.scores.probabilities(size):
            values[:, start:stop] = band[chosen]
        return values

    def overlay(self, opacity: float = OPACITY) -> Image.Image:
        """The image under a tint and the outlines of the classes, with a legend below."""
        return overlay(self.image, _unsigned(self.labels), self.names, self.palette, self._shares, opacity)

    def polygons(self, classes: Sequence[str] | None = None, smallest: int = 0) -> list[Feature]:
        """The connected regions of these classes, or of all, as GeoJSON features; needs rasterio.

        Coordinates are longitude and latitude if the image was read from a georeferenced TIFF, otherwise pixels (x
        right, y down). Regions of less than `smallest` pixels become part of their largest neighbor.
        """
        chosen = None if classes is None else [self._index(name) for name in classes]
        found = label_polygons(self.labels, self.names, chosen, smallest)
        if self.path is None or not is_georeferenced(self.path):
            return list(found)
        with open_raster(self.path) as raster:
            return list(on_earth(found, raster))

    def save(self, path: str | Path) -> None:
        """Write a file, whose suffix says what: .png or .tif, .geojson, .npz.

        .png is the label map. .tif, too, with the coordinates of the georeferenced TIFF that the image was read from.
        .geojson has the polygons, .npz the probabilities in float16. `overlay()` returns a picture with its own `save`.
        """
        path = Path(path)
        writers = {
            ".png": self._save_labels,
            ".tif": self._save_raster,
            ".geojson": self._save_polygons,
            ".npz": self._save_probabilities,
        }
        if path.suffix.lower() not in writers:
            raise UserError(f"'{path}' must end in {', '.join(writers)}.")
        writers[path.suffix.lower()](path)

    def __repr__(self) -> str:
        height, width = self.labels.shape
        shares = [f"{name} {100 * share:.1f} %" for name, share in self.classes.items()]
        rest = f", {len(shares) - 3} more" if len(shares) > 3 else ""
        name = f"{self.path}, " if self.path else ""
        return f"Prediction({name}{width} x {height} pixels: {', '.join(shares[:3])}{rest})"

    def _repr_png_(self) -> bytes:
        """The overlay, which notebooks show, scaled down if it is large."""
        factor = min(1.0, DISPLAYED / max(self.labels.shape))
        rows, columns = (((np.arange(max(1, int(n * factor))) + 0.5) / factor).astype(int) for n in self.labels.shape)
        image = Image.fromarray(self.image).resize((len(columns), len(rows)), reducing_gap=2)
        labels = _unsigned(self.labels)[rows][:, columns]
        buffer = io.BytesIO()
        overlay(np.asarray(image), labels, self.names, self.palette, self._shares).save(buffer, "png")
        return buffer.getvalue()

    @functools.cached_property
    def _shares(self) -> dict[int, float]:
        return label_shares(self.labels, range(len(self.names)))

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise unknown("class", name, self.names)
        return self.names.index(name)

    def _save_labels(self, path: Path) -> None:
        with atomic_path(path) as temporary:
            label_picture(_unsigned(self.labels), self.palette).save(temporary, "png")

    def _save_raster(self, path: Path) -> None:
        if self.path is None or not is_georeferenced(self.path):
            raise UserError(f"'{path}' cannot be written: the image is not from a georeferenced TIFF. Save it as .png.")
        labels = _unsigned(self.labels)
        with open_raster(self.path) as like, create_raster(path, like, labels.dtype, palette=self.palette) as raster:
            raster.write(labels, 1)

    def _save_polygons(self, path: Path) -> None:
        write_geojson(path, self.polygons())

    def _save_probabilities(self, path: Path) -> None:
        shown, (height, width) = range(len(self.names)), self.labels.shape
        with atomic_path(path) as temporary:
            write_probabilities(temporary, self.names, shown, (height, width), self.scores.probabilities())


def predict(predictor: Predictor, images: Any) -> Any:
    """The `Prediction` of an image or file; a list of them for a list, an iterator for a folder or another iterable.

    An image is a PIL image, an array or a tensor. Folders are searched recursively, in natural order.
    """
    if isinstance(images, str | Path) and Path(images).is_dir():
        files, _, errors = list_folder(Path(images))
        if errors:
            raise UserError(f"cannot read '{errors[0].filename}': {errors[0].strerror}.")
        pictures = [file for file in files if file.suffix.lower() in PICTURES]
        if not pictures:
            raise UserError(f"no picture in '{images}'.")
        return predictions(predictor, pictures)
    if isinstance(images, list | tuple):
        return list(predictions(predictor, images))
    if isinstance(images, str | Path | Image.Image | np.ndarray) or hasattr(images, "detach"):
        return next(predictions(predictor, [images]))
    if isinstance(images, Iterable):
        return predictions(predictor, images)
    raise UserError(f"give an image, a path, or a list of them, not a {type(images).__name__}.")


def predictions(predictor: Predictor, images: Iterable[ImageLike | str | Path]) -> Iterator[Prediction]:
    """Predict one image after the other, as they come."""
    waiting: list[tuple[np.ndarray, Path | None]] = []

    def pixels() -> Iterator[np.ndarray]:
        for image in images:
            if isinstance(image, str | Path):
                waiting.append((_read(Path(image)), Path(image)))
            else:
                waiting.append((to_rgb(image), None))
            yield waiting[-1][0]

    for scores in predictor.scores(pixels()):
        image, path = waiting.pop(0)
        yield Prediction(image, scores.labels(), predictor.classes, predictor.palette, path, scores=scores)


def _read(path: Path) -> np.ndarray:
    if not is_georeferenced(path):
        return read_image(path)
    with open_raster(path) as raster:
        if raster.width * raster.height > MAX_PIXELS:
            raise UserError(f"'{path}' has more than {MAX_PIXELS} pixels, the limit: use `depict segment --tile`.")
        return read_rgb(raster)[0]


def write_probabilities(
    file: Path | BinaryIO,
    names: Sequence[str],
    chosen: Sequence[int],
    size: tuple[int, int],
    bands: Iterable[tuple[int, int, np.ndarray]],
) -> None:
    """Write `probabilities` float16 (H, W, chosen) and `classes` as .npz while the bands come.

    `bands` are (start, stop, probabilities (C, stop - start, W)) from top to bottom.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("classes.npy", "w") as part:
            np.save(part, np.array([names[index] for index in chosen]))
        with archive.open("probabilities.npy", "w", force_zip64=True) as part:
            header = {"descr": "<f2", "fortran_order": False, "shape": (*size, len(chosen))}
            np.lib.format.write_array_header_1_0(part, header)
            for _, _, band in bands:
                part.write(band[list(chosen)].transpose(1, 2, 0).astype("<f2").tobytes())


def record_bands(
    bands: Iterable[tuple[int, int, np.ndarray]], labels: np.ndarray, confidence: np.ndarray
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Pass bands of probabilities on, and write the class with the largest and its value to `labels`, `confidence`."""
    for start, stop, band in bands:
        labels[start:stop] = band.argmax(0)
        confidence[start:stop] = band.max(0)
        yield start, stop, band


def _unsigned(labels: np.ndarray) -> np.ndarray:
    """int16 labels as uint16, which pictures hold."""
    return labels if labels.dtype == np.uint8 else labels.astype(np.uint16)
