"""From the logits of a patch grid to those of each pixel and the largest class, in bands of rows.

Classes lie last in memory: then numpy finds the largest of 150 several times as fast as torch does. Numpy only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from depict.bands import AxisMap, Floats, bands

# Bytes of scores at once: they stay in a core's cache.
BAND = 1 << 20
# Rows of the answer that share what was interpolated along columns, and bytes of as many rows of scores at most.
ROWS, WIDE_BAND = 64, 64 << 20


def interpolate(logits: Floats, rows: AxisMap, columns: AxisMap) -> Iterator[tuple[int, int, Floats]]:
    """Bands (start, stop, scores (stop - start, W, C)) of the logits (h, w, C) mapped by `rows` (H), `columns` (W)."""
    for top, weights, values in _wide_bands(logits, rows, columns):
        for start, stop in bands(len(weights), _narrow(values[0].size)):
            yield top + start, top + stop, _weighted(weights[start:stop], values)


def largest(logits: Floats, rows: AxisMap, columns: AxisMap) -> np.ndarray:
    """The class (H, W) of the largest interpolated logit, of equals the first; uint8, int16 beyond 256 classes.

    A pixel's scores are a weighted mean of those in a few rows of the grid. A class that is ahead in all of them is
    ahead in the mean, so that scores are computed only where those rows differ.
    """
    labels = np.empty((len(rows), len(columns)), np.uint8 if logits.shape[2] <= 256 else np.int16)
    for top, weights, values in _wide_bands(logits, rows, columns):
        band, ahead = labels[top : top + len(weights)], values.argmax(2)
        for start, stop in _alike(weights != 0):
            inputs = np.flatnonzero(weights[start])
            band[start:stop] = ahead[inputs[0]]
            differ = np.flatnonzero((ahead[inputs] != ahead[inputs[0]]).any(0))
            for first, last in bands(len(differ), _narrow((stop - start) * values.shape[2])):
                some = differ[first:last]
                band[start:stop, some] = _weighted(weights[start:stop], values, some).argmax(2)
    return labels


def _alike(used: np.ndarray) -> Iterator[tuple[int, int]]:
    """Start and stop of each stretch of rows that use the same inputs, (rows, k) booleans."""
    changes = np.flatnonzero((used[1:] != used[:-1]).any(1)) + 1
    return itertools.pairwise([0, *changes, len(used)])


def _wide_bands(logits: Floats, rows: AxisMap, columns: AxisMap) -> Iterator[tuple[int, Floats, Floats]]:
    """First row, weights (rows, k), and what they weight: k rows of scores (k, W, C), interpolated along columns."""
    width, classes = len(columns), logits.shape[2]
    blocks = [(start, stop, *columns.block(start, stop)) for start, stop in bands(width, 256)]
    for top, bottom in bands(len(rows), max(1, min(ROWS, WIDE_BAND // (4 * width * classes)))):
        used, weights = rows.block(top, bottom)
        points = logits[used]
        values = np.empty((len(used), width, classes), np.float32)
        for start, stop, inputs, matrix in blocks:
            np.matmul(matrix, points[:, inputs], out=values[:, start:stop])
        yield top, weights, values


def _narrow(scores: int) -> int:
    """How many rows or columns of so many scores are computed at once."""
    return max(1, BAND // (4 * scores))


def _weighted(weights: Floats, values: Floats, columns: np.ndarray | slice = slice(None)) -> Floats:
    """Scores (rows, columns, C): weights (rows, k) times the values (k, W, C) of these columns."""
    needed = np.flatnonzero(weights.any(0))
    first, last = needed[0], needed[-1] + 1
    chosen = values[first:last, columns]
    scores = weights[:, first:last] @ chosen.reshape(last - first, -1)
    return scores.reshape(len(weights), *chosen.shape[1:])
