"""Georeferenced and very large TIFFs: segmented block by block, with the coordinates of the input.

Blocks overlap by a window. They begin at multiples of the stride, so that each block sees the same windows as the
whole picture would, and the seam between two blocks runs through the middle of the window that they share.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from depict.errors import UserError
from depict.inference.predictors import Predictor
from depict.inference.sliding import SlidingWindow
from depict.io.files import atomic_path
from depict.io.geotiff import create_raster, is_georeferenced, on_earth, open_raster, read_rgb, tiff_pixels
from depict.io.images import MAX_PIXELS
from depict.io.polygons import raster_polygons, write_geojson
from depict.prediction import record_bands
from depict.segment.outputs import Outputs, confidence_levels
from depict.viz.overlays import overlay

if TYPE_CHECKING:
    from rasterio.io import DatasetReader
    from rasterio.windows import Window

BLOCK = 4096
"""Side of a block in pixels, about: as much of a picture is in memory."""
OVERLAY = 4096
"""Longest side in pixels of an overlay; larger rasters are scaled down."""


def is_raster(path: Path) -> bool:
    """Whether a file is read in blocks: a TIFF that is georeferenced or has too many pixels to be read at once."""
    return is_georeferenced(path) or tiff_pixels(path) > MAX_PIXELS


def segment_raster(predictor: Predictor, path: Path, outputs: Outputs, name: str) -> dict[str, Any]:
    """Segment a raster and write its outputs; returns its entries in the summary.

    Pixels without data get the value of pixels whose class is not shown, and confidence 0.
    """
    if outputs.probabilities:
        raise UserError("probabilities of georeferenced and very large TIFFs are not written: use --confidence.")
    files, values = outputs.files(name, "raster"), outputs.label_values
    missing = int(np.iinfo(values.dtype).max)
    nodata = None if missing < len(outputs.classes) else missing
    with open_raster(path) as raster, contextlib.ExitStack() as stack:
        labels_to = stack.enter_context(create_raster(files["labels"], raster, values.dtype, nodata, outputs.palette))
        confidence_to = None
        if "confidence" in files:
            confidence_to = stack.enter_context(create_raster(files["confidence"], raster, np.uint8))
        for block in predict_blocks(predictor, raster, outputs.confidence):
            labels = values[block.labels]
            if nodata is not None:
                labels[~block.valid] = nodata
            labels_to.write(labels, 1, window=block.window)
            if confidence_to is not None and block.confidence is not None:
                confidence_to.write(confidence_levels(block.confidence * block.valid), 1, window=block.window)
    facts, shares = raster_facts(path, outputs, name)
    with open_raster(path) as raster, open_raster(files["labels"]) as written:
        if "overlays" in files:
            with atomic_path(files["overlays"]) as temporary:
                _overlay(raster, written, outputs, shares).save(temporary, "png", compress_level=1)
        if "polygons" in files:
            polygons = raster_polygons(written, outputs.classes, outputs.shown)
            write_geojson(files["polygons"], on_earth(polygons, written))
    return facts


def raster_facts(path: Path, outputs: Outputs, name: str) -> tuple[dict[str, Any], dict[int, float]]:
    """The entries in the summary of a raster whose outputs are written, and the share of each class.

    Shares and confidence are of the pixels that have data.
    """
    files, missing = outputs.files(name, "raster"), int(np.iinfo(outputs.label_values.dtype).max)
    counts, covered, levels = np.zeros(missing + 1, np.int64), 0, 0.0
    with contextlib.ExitStack() as stack:
        raster, written = (stack.enter_context(open_raster(each)) for each in (path, files["labels"]))
        certain = stack.enter_context(open_raster(files["confidence"])) if "confidence" in files else None
        size = (raster.height, raster.width)
        if any((each.height, each.width) != size for each in (written, certain) if each is not None):
            raise UserError(f"'{files['labels']}' has another size than '{path}'.")
        for window in _windows(*size):
            valid = raster.dataset_mask(window=window) > 0
            covered += int(valid.sum())
            counts += np.bincount(written.read(1, window=window)[valid], minlength=len(counts))
            if certain is not None:
                levels += float(certain.read(1, window=window)[valid].sum(dtype=np.float64))
    shares = {index: int(counts[index]) / max(1, covered) for index in outputs.shown}
    score = {} if certain is None else {"confidence": round(levels / max(1, covered) / 255, 4)}
    return outputs.describe(size, shares) | score, shares


def _overlay(raster: DatasetReader, written: DatasetReader, outputs: Outputs, shares: dict[int, float]) -> Image.Image:
    """The overlay of a raster, scaled down if it is large."""
    factor = min(1.0, OVERLAY / max(raster.height, raster.width))
    size = max(1, round(factor * raster.height)), max(1, round(factor * raster.width))
    image, _ = read_rgb(raster, size=size)
    labels = written.read(1, out_shape=size)
    return overlay(image, labels, outputs.classes, outputs.palette, shares, outputs.opacity)


def _windows(height: int, width: int) -> Iterator[Window]:
    """A raster in squares of at most BLOCK pixels."""
    from rasterio.windows import Window

    for top, left in itertools.product(range(0, height, BLOCK), range(0, width, BLOCK)):
        yield Window(left, top, min(BLOCK, width - left), min(BLOCK, height - top))


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
    """The probability of that class, float32 (h, w), if it is requested."""


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
    """Labels (H, W) of an image (H, W, 3), and the probability of each label, float32 (H, W), if it is requested."""
    if not confidence:
        return predictor.labels(image), None
    labels, certain = np.empty(image.shape[:2], np.uint16), np.empty(image.shape[:2], np.float32)
    deque(record_bands(predictor.probabilities(image), labels, certain), maxlen=0)
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
