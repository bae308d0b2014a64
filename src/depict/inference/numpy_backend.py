"""Sliding windows, scales and flips in numpy, for a network that does not run in torch: the twin of `torch_backend.py`.

The geometry is shared (`sliding.py`, `resample.py`), and memory is bounded in the same way: each
window keeps its logits on the patch grid, and the result at full size is rendered from them in
bands of rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from depict.inference.resample import AxisMap, argmax_labels, bands, bilinear, interpolate
from depict.inference.sliding import Layout, NetworkSpec, SlidingWindow

Network = Callable[[np.ndarray], np.ndarray]
"""Normalized images (B, 3, h, w) -> logits (B, C, h', w')."""
Floats = NDArray[np.floating]

# Pixels per call of the network, as in torch_backend.py on a CPU.
PIXELS = 2 * 512 * 512


def predict(network: Network, image: np.ndarray, sliding: SlidingWindow, spec: NetworkSpec) -> np.ndarray:
    """The class of each pixel of an image, uint8 (H, W, 3) -> (H, W), uint8 (int16 beyond 256 classes)."""
    return apply(network, image, sliding, spec).labels()


def probabilities(
    network: Network, image: np.ndarray, sliding: SlidingWindow, spec: NetworkSpec
) -> Iterator[tuple[int, int, Floats]]:
    """Bands (start, stop, probabilities (C, stop - start, W)) from top to bottom; each is overwritten by the next."""
    yield from apply(network, image, sliding, spec).probabilities()


def resize_image(image: np.ndarray, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Bilinear on uint8 (3, H, W), without antialiasing: bit for bit what torch does on x86 processors.

    Columns are resized first. Their result is rounded to uint8, and so is that of the rows.
    """
    if size == image.shape[1:]:
        return image
    rows, columns = _fixed_point(image.shape[1], size[0]), _fixed_point(image.shape[2], size[1])
    used, taps = np.unique(rows.indices, return_inverse=True)
    narrowed = np.empty((3, len(used), size[1]), np.uint8)
    for start, stop in bands(len(used), 64):
        narrowed[:, start:stop] = _rounded(_columns(image[:, used[start:stop]], columns))
    resized = np.empty((3, *size), np.uint8)
    taps = taps.reshape(rows.indices.shape)
    for start, stop in bands(size[0], 64):
        low, high = (narrowed[:, taps[start:stop, tap]] * rows.weights[start:stop, tap, None] for tap in (0, 1))
        resized[:, start:stop] = _rounded(low + high)
    return resized


def _fixed_point(inputs: int, outputs: int) -> AxisMap:
    """Bilinear interpolation of one axis as torch does it on uint8, with weights of at most 15 bits.

    In float32 their products with uint8 and the sums are exact, so that no integers are needed.
    """
    position = (np.arange(outputs) + 0.5) * (inputs / outputs) - 0.5
    low = np.floor(position).astype(np.int64)
    share = position - low
    indices = np.stack([low, low + 1], 1).clip(0, inputs - 1)
    weights = np.stack([1 - share, share], 1)
    weights[indices[:, 0] == indices[:, 1]] = (1, 0)  # beyond the edge: all on the first tap
    one = 2**15 if int(weights.max() * 2**15 + 0.5) < 2**15 else 2**14  # the largest weight has 15 bits
    return AxisMap(indices, (np.floor(weights * one + 0.5) / one).astype(np.float32))


class NetworkInput:
    """One image at one scale as the network sees it; see `preprocess.NetworkInput`, which does the same in torch."""

    def __init__(self, image: np.ndarray, layout: Layout, spec: NetworkSpec, flip: bool = False):
        self.size = layout.size
        self.mean, self.std = (np.asarray(v, np.float32).reshape(3, 1, 1) for v in (spec.mean, spec.std))
        self.pixels = resize_image(image, layout.resized)[:, :, :: -1 if flip else 1]
        self.enlarged = layout.size != layout.resized
        if self.enlarged:
            self.pixels = self._normalize(self.pixels)
        self.rows, self.columns = (bilinear(*axis) for axis in zip(layout.resized, layout.size, strict=True))

    def crop(self, top: int, left: int, height: int, width: int) -> np.ndarray:
        """Normalized pixels float32 (3, height, width)."""
        rows, columns = slice(top, top + height), slice(left, left + width)
        if self.enlarged:
            return _interpolate(self.pixels, self.rows[rows], self.columns[columns])
        return self._normalize(self.pixels[:, rows, columns])

    def full(self) -> np.ndarray:
        """The whole image, float32 (3, *layout.size)."""
        return self.crop(0, 0, *self.size)

    def _normalize(self, pixels: np.ndarray) -> np.ndarray:
        return (pixels / np.float32(255) - self.mean) / self.std


@dataclass
class _Pass:
    """One scale, flipped or not: the logits of all windows (rows, columns, C) and the maps from them to the pixels.

    Classes are last, where the argmax is fastest.
    """

    logits: Floats
    rows: AxisMap
    columns: AxisMap
    map_to: Callable[[tuple[int, int]], tuple[AxisMap, AxisMap]]
    """The maps of rows and columns to a result of another size."""


@dataclass
class Scores:
    """The logits of one image on the patch grids of all its windows; see `torch_backend.Scores`."""

    passes: list[_Pass]

    def labels(self) -> np.ndarray:
        """The class of each pixel (H, W), uint8 (int16 beyond 256 classes)."""
        first = self.passes[0]
        if len(self.passes) == 1:  # the largest logit has the largest probability: no softmax needed
            return argmax_labels(first.logits, first.rows, first.columns)
        dtype = np.uint8 if first.logits.shape[2] <= 256 else np.int16
        labels = np.empty((len(first.rows), len(first.columns)), dtype)
        for start, stop, scores in _render(self.passes):
            labels[start:stop] = scores.argmax(2)
        return labels

    def probabilities(self, size: tuple[int, int] | None = None) -> Iterator[tuple[int, int, Floats]]:
        """Bands (start, stop, probabilities (C, stop - start, W)); `size` (H, W) is the image's own by default."""
        passes = self.passes
        if size is not None:
            maps = [part.map_to(size) for part in passes]
            passes = [replace(part, rows=r, columns=c) for part, (r, c) in zip(passes, maps, strict=True)]
        for start, stop, scores in _render(passes):
            yield start, stop, scores.transpose(2, 0, 1)


def apply(network: Network, image: np.ndarray, sliding: SlidingWindow, spec: NetworkSpec) -> Scores:
    """Run the network over all windows of all scales and flips of an image uint8 (H, W, 3), batched within each."""
    batch = 1 if sliding.full_image else spec.batch or max(1, PIXELS // math.prod(sliding.window))
    image = np.ascontiguousarray(image.transpose(2, 0, 1))
    size = (image.shape[1], image.shape[2])
    flips = (False, True) if sliding.flip else (False,)
    passes = []
    for scale, flipped in itertools.product(sliding.scales, flips):
        layout = sliding.layout(*size, scale)
        source = NetworkInput(image, layout, spec, flipped)
        windows = layout.windows()
        while group := list(itertools.islice(windows, batch)):
            logits = network(np.stack([source.crop(top, left, *layout.window) for _, _, top, left in group]))
            _, classes, h, w = logits.shape
            if group[0][:2] == (0, 0):
                map_to = partial(layout.maps, (h, w), multiple=spec.multiple, flipped=flipped)
                empty = np.empty((*layout.logits_size((h, w)), classes), np.float32)
                passes.append(_Pass(empty, *map_to(size), map_to))
            for (row, column, _, _), values in zip(group, logits, strict=True):
                inside = slice(row * h, (row + 1) * h), slice(column * w, (column + 1) * w)
                passes[-1].logits[inside] = values.transpose(1, 2, 0)
    return Scores(passes)


def _interpolate(pixels: np.ndarray, rows: AxisMap, columns: AxisMap) -> np.ndarray:
    """Interpolate both axes of (3, H, W), rows first, reading only the columns that are used."""
    first, last = int(columns.indices.min()), int(columns.indices.max())
    values = pixels[:, :, first : last + 1]
    low, high = (values[:, rows.indices[:, tap]] * rows.weights[:, tap, None] for tap in (0, 1))
    return _columns(low + high, AxisMap(columns.indices - first, columns.weights))


def _columns(values: np.ndarray, columns: AxisMap) -> np.ndarray:
    """Interpolate the last axis: two taps per output."""
    low, high = (values[..., columns.indices[:, tap]] * columns.weights[:, tap] for tap in (0, 1))
    return low + high


def _rounded(values: np.ndarray) -> NDArray[np.uint8]:
    return np.floor(values + np.float32(0.5)).astype(np.uint8)


def _render(passes: list[_Pass]) -> Iterator[tuple[int, int, Floats]]:
    """Bands (start, stop, probabilities (stop - start, W, C)), averaged over passes, top to bottom."""
    for parts in zip(*(interpolate(part.logits, part.rows, part.columns) for part in passes), strict=True):
        start, stop, mean = parts[0]
        for number, (_, _, scores) in enumerate(parts):
            scores -= scores.max(2, keepdims=True)
            np.exp(scores, out=scores)
            scores /= len(passes) * scores.sum(2, keepdims=True)
            if number:
                mean += scores
        yield start, stop, mean
