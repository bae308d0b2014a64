"""From the logits of a patch grid to those of each pixel and the largest class, in bands of rows.

Classes lie last in memory: then numpy finds the largest of 150 several times as fast as torch does. Numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from depict.bands import AxisMap, Floats, bands

# Bytes of scores at once: they stay in a core's cache.
BAND = 1 << 20
# Rows of the answer that share what was interpolated along columns, and bytes of as many rows of scores at most.
ROWS, WIDE_BAND = 64, 64 << 20


def interpolate(logits: Floats, rows: AxisMap, columns: AxisMap) -> Iterator[tuple[int, int, Floats]]:
    """Bands (start, stop, scores (stop - start, W, C)) of the logits (h, w, C) mapped by `rows` (H) and `columns` (W).

    From top to bottom, in one buffer. Columns are interpolated once per wide band, rows in narrow ones.
    """
    width, classes = len(columns), logits.shape[2]
    blocks = [(start, stop, *columns.block(start, stop)) for start, stop in bands(width, 256)]
    row_bytes = 4 * width * classes
    wide = max(1, min(ROWS, WIDE_BAND // row_bytes))
    narrow = min(wide, max(1, BAND // row_bytes))
    scores = np.empty((narrow, width, classes), np.float32)
    for top, bottom in bands(len(rows), wide):
        used, weights = rows.block(top, bottom)
        points = logits[used]
        values = np.empty((len(used), width, classes), np.float32)
        for start, stop, inputs, matrix in blocks:
            np.matmul(matrix, points[:, inputs], out=values[:, start:stop])
        for start, stop in bands(bottom - top, narrow):
            needed = np.flatnonzero(weights[start:stop].any(0))
            first, last = needed[0], needed[-1] + 1
            product, out = weights[start:stop, first:last], scores[: stop - start]
            np.matmul(product, values[first:last].reshape(last - first, -1), out=out.reshape(stop - start, -1))
            yield top + start, top + stop, out


def largest(logits: Floats, rows: AxisMap, columns: AxisMap) -> np.ndarray:
    """The class (H, W) of the largest interpolated logit, of equals the first; uint8, int16 beyond 256 classes."""
    labels = np.empty((len(rows), len(columns)), np.uint8 if logits.shape[2] <= 256 else np.int16)
    for start, stop, scores in interpolate(logits, rows, columns):
        labels[start:stop] = scores.argmax(2)
    return labels
