"""The protocol of `inference.py` in numpy: sliding windows, scales and flips for a network that is not torch's.

The geometry is the same (`sliding.py`, `bands.py`), and so is the bound on memory: each window keeps the logits of its
patch grid, and the answer at full size is rendered from them in bands of rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depict.inference.resample import AxisMap, argmax_labels, bands, bilinear, interpolate
from depict.inference.sliding import Layout, SlidingWindow

Network = Callable[[np.ndarray], np.ndarray]
"""Normalized images (B, 3, h, w) -> logits (B, C, h', w')."""
Floats = NDArray[np.floating]

# As in inference.py: pixels that a CPU is given at once.
PIXELS = 2 * 512 * 512


@dataclass(frozen=True)
class Settings:
    """What the protocol needs to know of a network."""

    mean: Sequence[float]
    """RGB in 0..1."""
    std: Sequence[float]
    patch_size: tuple[int, int]
    """The network pads its input right and below to a multiple of it; its logits cover the padded input."""
    batch: int | None = None
    """Windows per call; by default 2 of 512 x 512 pixels, or as many others as have these pixels."""


def predict(network: Network, image: np.ndarray, sliding: SlidingWindow, settings: Settings) -> np.ndarray:
    """The class of each pixel of a picture uint8 (H, W, 3), uint8 (H, W), int16 beyond 256 classes."""
    passes = _apply(network, image, sliding, settings)
    first = passes[0]
    if len(passes) == 1:  # the largest logit is the largest probability: no softmax
        return argmax_labels(first.logits, first.rows, first.columns)
    labels = np.empty(image.shape[:2], np.uint8 if first.logits.shape[2] <= 256 else np.int16)
    for start, stop, scores in _render(passes):
        labels[start:stop] = scores.argmax(2)
    return labels


def probabilities(
    network: Network, image: np.ndarray, sliding: SlidingWindow, settings: Settings
) -> Iterator[tuple[int, int, Floats]]:
    """Bands (start, stop, probabilities (C, stop - start, W)) from top to bottom; each is overwritten by the next."""
    for start, stop, scores in _render(_apply(network, image, sliding, settings)):
        yield start, stop, scores.transpose(2, 0, 1)


def resize(image: np.ndarray, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Bilinear on uint8 (3, H, W) without antialiasing, rounded after each axis as torch rounds on a CPU."""
    rows, columns = bilinear(image.shape[1], size[0]), bilinear(image.shape[2], size[1])
    used, taps = np.unique(rows.indices, return_inverse=True)
    narrowed = np.empty((3, len(used), size[1]), np.uint8)
    for start, stop in bands(len(used), 64):
        narrowed[:, start:stop] = _rounded(_columns(image[:, used[start:stop]], columns))
    resized = np.empty((3, *size), np.uint8)
    taps = taps.reshape(rows.indices.shape)
    for start, stop in bands(size[0], 64):
        low, high = (
            narrowed[:, taps[start:stop, tap]] * rows.weights[start:stop, tap, None].astype(np.float32)
            for tap in (0, 1)
        )
        resized[:, start:stop] = _rounded(low + high)
    return resized


@dataclass
class _Pass:
    """One scale, flipped or not: all windows' logits (rows, columns, C) and the maps from them to the pixels.

    Classes last: then the largest of them is found fastest.
    """

    logits: Floats
    rows: AxisMap
    columns: AxisMap


def _apply(network: Network, image: np.ndarray, sliding: SlidingWindow, settings: Settings) -> list[_Pass]:
    """Run the network over all windows of all scales and flips, batched within each."""
    batch = 1 if sliding.full_image else settings.batch or max(1, PIXELS // math.prod(sliding.window))
    source = np.ascontiguousarray(image.transpose(2, 0, 1))
    flips = (False, True) if sliding.flip else (False,)
    passes = []
    for factor, flipped in itertools.product(sliding.scales, flips):
        layout = sliding.layout(image.shape[0], image.shape[1], factor)
        windows = _windows(source, layout, flipped, settings)
        while group := list(itertools.islice(windows, batch)):
            logits = network(np.stack([pixels for _, _, pixels in group]))
            _, classes, h, w = logits.shape
            if group[0][:2] == (0, 0):
                height, width = layout.room((h, w))
                rows, columns = layout.maps((h, w), (image.shape[0], image.shape[1]), settings.patch_size)
                room = np.empty((height, width, classes), np.float32)
                passes.append(_Pass(room, rows, columns[::-1] if flipped else columns))
            for (row, column, _), values in zip(group, logits, strict=True):
                place = slice(row * h, (row + 1) * h), slice(column * w, (column + 1) * w)
                passes[-1].logits[place] = values.transpose(1, 2, 0)
    return passes


def _windows(
    source: np.ndarray, layout: Layout, flipped: bool, settings: Settings
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Row, column and normalized pixels (3, h, w) of each window of one pass."""
    shift, scale = (255 * np.asarray(v, np.float32).reshape(3, 1, 1) for v in (settings.mean, settings.std))
    if layout.resized != source.shape[1:]:
        source = resize(source, layout.resized)
    if flipped:
        source = source[:, :, ::-1]
    enlarge = layout.size != layout.resized
    if enlarge:
        source = (source - shift) / scale
    rows, columns = (bilinear(inputs, outputs) for inputs, outputs in zip(layout.resized, layout.size, strict=True))
    height, width = layout.window
    for row, column, top, left in layout.windows():
        if enlarge:
            pixels = _sample(source, rows[top : top + height], columns[left : left + width])
        else:
            pixels = (source[:, top : top + height, left : left + width] - shift) / scale
        yield row, column, pixels


def _sample(source: np.ndarray, rows: AxisMap, columns: AxisMap) -> np.ndarray:
    """Apply an interpolation to both axes of (3, H, W), rows first, reading only what it needs."""
    first, last = int(columns.indices.min()), int(columns.indices.max())
    values = source[:, :, first : last + 1]
    low, high = (values[:, rows.indices[:, tap]] * rows.weights[:, tap, None] for tap in (0, 1))
    return _columns(low + high, AxisMap(columns.indices - first, columns.weights))


def _columns(values: np.ndarray, columns: AxisMap) -> np.ndarray:
    """Interpolate the last axis by two taps."""
    low, high = (values[..., columns.indices[:, tap]] * columns.weights[:, tap] for tap in (0, 1))
    return low + high


def _rounded(values: np.ndarray) -> NDArray[np.uint8]:
    return np.floor(values + np.float32(0.5)).astype(np.uint8)


def _render(passes: list[_Pass]) -> Iterator[tuple[int, int, Floats]]:
    """Bands (start, stop, probabilities (stop - start, W, C)), averaged over passes, top to bottom."""
    for parts in zip(*(interpolate(one.logits, one.rows, one.columns) for one in passes), strict=True):
        start, stop, mean = parts[0]
        for number, (_, _, scores) in enumerate(parts):
            scores -= scores.max(2, keepdims=True)
            np.exp(scores, out=scores)
            scores /= len(passes) * scores.sum(2, keepdims=True)
            if number:
                mean += scores
        yield start, stop, mean
