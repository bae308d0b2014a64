"""Bilinear interpolation as sparse matrices, and labels rendered from low-resolution logits in bands of rows.

Everything between a window's low-resolution logits and the pixels of the result (interpolation to
the window, cropping the padding, averaging where windows overlap, interpolation to the original
size, flipping) is linear and acts on rows and columns separately. So each axis is one `AxisMap`,
maps compose, and any band of the result is two small matrix products `rows @ logits @ columns.T`.
Inference and the memory-saving loss share it. Needs no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Integers = NDArray[np.int64]

# Bytes of scores computed at once: they stay in a core's cache.
BAND = 1 << 20
# Rows that share one interpolation along columns, and the limit of their scores in bytes.
ROWS, WIDE_BAND = 64, 64 << 20


@dataclass(frozen=True)
class AxisMap:
    """A linear map along one axis, stored as the few taps of each output.

    Output `o` is the sum over taps `t` of `weights[o, t] * input[indices[o, t]]`.
    """

    indices: Integers
    """(outputs, taps)"""
    weights: Floats
    """(outputs, taps)"""

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, outputs: slice) -> AxisMap:
        """The map to these outputs only: a crop, or a flip with `[::-1]`."""
        return AxisMap(self.indices[outputs], self.weights[outputs])

    def after(self, inner: AxisMap) -> AxisMap:
        """The composition of `inner` followed by this map."""
        indices = inner.indices[self.indices]
        weights = self.weights[..., None] * inner.weights[self.indices]
        return AxisMap(indices.reshape(len(self), -1), weights.reshape(len(self), -1))

    def block(self, start: int, stop: int) -> tuple[Integers, Floats]:
        """The inputs that outputs `start` to `stop` use, sorted (k,), and their weights (stop - start, k)."""
        indices, weights = self.indices[start:stop], self.weights[start:stop]
        used = np.unique(indices[weights != 0])
        matrix = np.zeros((len(indices), len(used)), weights.dtype)
        output, tap = np.nonzero(weights)
        np.add.at(matrix, (output, np.searchsorted(used, indices[output, tap])), weights[output, tap])
        return used, matrix


def bilinear(inputs: int, outputs: int, dtype: type[np.floating] = np.float32) -> AxisMap:
    """Bilinear interpolation of one axis, align_corners=False, no antialiasing.

    Positions are rounded as in torch for tensors of this dtype.
    """
    step = dtype(inputs) / dtype(outputs)
    position = np.clip(step * (np.arange(outputs, dtype=dtype) + dtype(0.5)) - dtype(0.5), 0, inputs - 1)
    low = position.astype(np.int64)
    share = position - low.astype(dtype)
    high = np.minimum(low + 1, inputs - 1)
    return AxisMap(np.stack([low, high], 1), np.stack([1 - share, share], 1))


def bands(length: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut `length` into pieces (start, stop) of `size`; the last one may be shorter."""
    for start in range(0, length, size):
        yield start, min(start + size, length)


def interpolate(logits: Floats, rows: AxisMap, columns: AxisMap) -> Iterator[tuple[int, int, Floats]]:
    """Bands (start, stop, scores (stop - start, W, C)) of the logits (h, w, C) mapped by `rows` (H), `columns` (W)."""
    for top, weights, values in _wide_bands(logits, rows, columns):
        for start, stop in bands(len(weights), _band_length(values[0].size)):
            yield top + start, top + stop, _weighted(weights[start:stop], values)


def argmax_labels(logits: Floats, rows: AxisMap, columns: AxisMap) -> np.ndarray:
    """The class (H, W) with the largest interpolated logit, uint8 (int16 beyond 256 classes); ties go to the first.

    The scores of a pixel are a weighted mean of a few rows of the grid, interpolated along columns.
    A class with the largest score in all of these rows has the largest mean, so that means are
    computed only where the rows differ.
    """
    labels = np.empty((len(rows), len(columns)), np.uint8 if logits.shape[2] <= 256 else np.int16)
    for top, weights, values in _wide_bands(logits, rows, columns):
        band, largest = labels[top : top + len(weights)], values.argmax(2)
        for start, stop in _runs_of_equal_rows(weights != 0):
            inputs = np.flatnonzero(weights[start])
            band[start:stop] = largest[inputs[0]]
            differ = np.flatnonzero((largest[inputs] != largest[inputs[0]]).any(0))
            for first, last in bands(len(differ), _band_length((stop - start) * values.shape[2])):
                columns_here = differ[first:last]
                band[start:stop, columns_here] = _weighted(weights[start:stop], values, columns_here).argmax(2)
    return labels


def _runs_of_equal_rows(used: np.ndarray) -> Iterator[tuple[int, int]]:
    """Start and stop of each run of equal rows of a boolean matrix (rows, k)."""
    changes = np.flatnonzero((used[1:] != used[:-1]).any(1)) + 1
    return itertools.pairwise([0, *changes, len(used)])


def _wide_bands(logits: Floats, rows: AxisMap, columns: AxisMap) -> Iterator[tuple[int, Floats, Floats]]:
    """First row, row weights (rows, k), and the k rows that they weight, interpolated along columns (k, W, C)."""
    width, classes = len(columns), logits.shape[2]
    blocks = [(start, stop, *columns.block(start, stop)) for start, stop in bands(width, 256)]
    for top, bottom in bands(len(rows), max(1, min(ROWS, WIDE_BAND // (4 * width * classes)))):
        used, weights = rows.block(top, bottom)
        points = np.ascontiguousarray(logits[used])  # the torch backend keeps classes in the middle
        values = np.empty((len(used), width, classes), np.float32)
        for start, stop, inputs, matrix in blocks:
            np.matmul(matrix, points[:, inputs], out=values[:, start:stop])
        yield top, weights, values


def _band_length(scores: int) -> int:
    """How many rows or columns with this many scores each are computed at once."""
    return max(1, BAND // (4 * scores))


def _weighted(weights: Floats, values: Floats, columns: np.ndarray | slice = slice(None)) -> Floats:
    """Scores (rows, columns, C): weights (rows, k) times the values (k, W, C) of these columns."""
    used = np.flatnonzero(weights.any(0))
    first, last = used[0], used[-1] + 1
    inputs = values[first:last, columns]
    scores = weights[:, first:last] @ inputs.reshape(last - first, -1)
    return scores.reshape(len(weights), *inputs.shape[1:])
