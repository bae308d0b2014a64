"""Georeferenced and very large TIFFs: segmented block by block, with the coordinates of the input.

Blocks overlap by a window. They begin at multiples of the stride, so that each block sees the same windows as the
whole picture would, and the seam between two blocks runs through the middle of the window that they share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depict.errors import UserError
from depict.inference.predictors import Predictor
from depict.inference.sliding import SlidingWindow
from depict.io.geotiff import read_rgb
from depict.io.images import MAX_PIXELS

if TYPE_CHECKING:
    from rasterio.io import DatasetReader
    from rasterio.windows import Window

BLOCK = 4096
"""Side of a block in pixels, about: as much of a picture is in memory."""


@dataclass
class Block:
    """The part of a raster that one block is responsible for."""

    window: Window
    """Where it is."""
    image: np.ndarray
    """uint8 RGB (h, w, 3)."""
    valid: np.ndarray
    """Where the raster has data, bool (h, w)."""
    labels: np.ndarray
    """The class of each pixel, uint8 or int16 (h, w)."""
    confidence: np.ndarray | None
    """The probability of that class, float32 (h, w), if it is asked for."""


def predict_blocks(predictor: Predictor, raster: DatasetReader, confidence: bool = False) -> Iterator[Block]:
    """The labels of a raster of any size, block by block, row by row; together the blocks are the raster."""
    from rasterio.windows import Window

    sliding, size = predictor.sliding, (raster.height, raster.width)
    fixed = sliding.short_edge is None and not sliding.full_image
    if not fixed and math.prod(size) > MAX_PIXELS:
        raise UserError(
            f"'{raster.name}' has {raster.width} x {raster.height} pixels, more than {MAX_PIXELS}: give --tile N, "
            "the short edge of the training images in pixels."
        )
    if fixed:
        rows, columns = (spans(length, *span_steps(sliding, axis)) for axis, length in enumerate(size))
    else:
        rows, columns = ([Span(0, length, 0, length)] for length in size)
    for row in rows:
        for column in columns:
            read = Window(column.start, row.start, column.stop - column.start, row.stop - row.start)
            image, valid = read_rgb(raster, read)
            inside = row.inside, column.inside
            labels, certain = predict_labels(predictor, image, confidence)
            own = Window(column.first, row.first, column.last - column.first, row.last - row.first)
            kept = None if certain is None else certain[inside]
            yield Block(own, image[inside], valid[inside], labels[inside], kept)


def predict_labels(predictor: Predictor, image: np.ndarray, confidence: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Labels (H, W) of an image (H, W, 3), and the probability of each label, float32 (H, W), if it is asked for."""
    if not confidence:
        return predictor.labels(image), None
    labels = np.empty(image.shape[:2], np.uint8 if len(predictor.classes) <= 256 else np.int16)
    certain = np.empty(image.shape[:2], np.float32)
    for start, stop, band in predictor.probabilities(image):
        labels[start:stop] = band.argmax(0)
        certain[start:stop] = band.max(0)
    return labels, certain


def span_steps(sliding: SlidingWindow, axis: int) -> tuple[int, int]:
    """The step from block to block and their overlap along an axis, in pixels of the raster."""
    scale = min(sliding.scales)
    window, stride = sliding.window[axis] / scale, sliding.stride[axis] / scale
    return round(max(1, (BLOCK - window) // stride) * stride), math.ceil(window)


class Span(NamedTuple):
    """A block along one axis."""

    start: int
    """What it reads, until `stop`."""
    stop: int
    first: int
    """What it is responsible for, until `last`."""
    last: int

    @property
    def inside(self) -> slice:
        """The part that it is responsible for, in what it reads."""
        return slice(self.first - self.start, self.last - self.start)


def spans(length: int, step: int, overlap: int) -> list[Span]:
    """Blocks that begin at multiples of `step`, share `overlap` pixels with the next, and cover `length` pixels.

    The last one is up to half the overlap longer: the last window of the picture, which ends at its edge, must not
    cross a seam.
    """
    starts = list(range(0, max(1, length - overlap - overlap // 2), step))
    stops = [*(start + overlap for start in starts[1:]), length]
    seams = [0, *(start + overlap // 2 for start in starts[1:]), length]
    return [Span(*ends) for ends in zip(starts, stops, seams[:-1], seams[1:], strict=True)]
