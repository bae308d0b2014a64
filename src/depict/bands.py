"""The geometry of inference and of the lean loss: sizes, window anchors, and bilinear interpolation as sparse rows.

Everything between a window's low-resolution logits and the pixels of the answer (interpolation to the window, crop of
the padding, average where windows overlap, interpolation to the original size, flip) is linear and acts on rows and
columns separately. So each axis is one `AxisMap`, maps compose, and any band of the answer is two small matrix products
`rows @ logits @ columns.T`. Numpy only, so that inference without torch can share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depict.errors import UserError

Floats = NDArray[np.floating]
Integers = NDArray[np.int64]

LONGEST = 64
"""Windows side by side that an image below the window may be enlarged to: none but strips has as many."""


@dataclass(frozen=True)
class AxisMap:
    """A linear map along one axis, kept as its few taps per output.

    Output `o` is the sum over taps `t` of `weights[o, t] * input[indices[o, t]]`.
    """

    indices: Integers
    """(outputs, taps)"""
    weights: Floats
    """(outputs, taps)"""

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, outputs: slice) -> AxisMap:
        """The map of these outputs only: a crop, or with `[::-1]` a flip."""
        return AxisMap(self.indices[outputs], self.weights[outputs])

    def after(self, inner: AxisMap) -> AxisMap:
        """The composition: first `inner`, then this map."""
        indices = inner.indices[self.indices]
        weights = self.weights[..., None] * inner.weights[self.indices]
        return AxisMap(indices.reshape(len(self), -1), weights.reshape(len(self), -1))

    def block(self, start: int, stop: int) -> tuple[Integers, Floats]:
        """The inputs (sorted indices, k) that outputs `start` to `stop` use, and their weights (stop - start, k)."""
        indices, weights = self.indices[start:stop], self.weights[start:stop]
        used = np.unique(indices[weights != 0])
        matrix = np.zeros((len(indices), len(used)), weights.dtype)
        output, tap = np.nonzero(weights)
        np.add.at(matrix, (output, np.searchsorted(used, indices[output, tap])), weights[output, tap])
        return used, matrix


def bilinear(inputs: int, outputs: int, dtype: type[np.floating] = np.float32) -> AxisMap:
    """Bilinear interpolation of one axis, align_corners=False, no antialiasing.

    Positions are rounded as torch rounds them for tensors of this dtype, so that the result is torch's, not only close.
    """
    step = dtype(inputs) / dtype(outputs)
    position = np.clip(step * (np.arange(outputs, dtype=dtype) + dtype(0.5)) - dtype(0.5), 0, inputs - 1)
    low = position.astype(np.int64)
    share = position - low.astype(dtype)
    high = np.minimum(low + 1, inputs - 1)
    return AxisMap(np.stack([low, high], 1), np.stack([1 - share, share], 1))


def anchors(length: int, window: int, stride: int) -> list[int]:
    """Where windows start along an axis: 0, stride, 2 * stride, ... < length - window, then length - window."""
    if not 0 < stride <= window:
        raise UserError(f"stride {stride} must be between 1 and the window {window}, or pixels are left out.")
    if length < window:
        raise UserError(f"a window of {window} does not fit into {length} pixels: enlarge the image first.")
    return [*range(0, length - window, stride), length - window]


def overlapping(length: int, window: int, stride: int, low: int, padded: int) -> AxisMap:
    """From all windows' low-resolution samples along an axis to its pixels, averaged where windows overlap.

    Inputs: the windows' samples one window after the other (len(anchors) * low); each window's `low` samples cover
    `padded` >= window pixels, of which the last padded - window are dropped. Outputs: `length` pixels.
    """
    inner = bilinear(low, padded)[:window]
    starts = np.array(anchors(length, window, stride))
    pixels = np.arange(length)
    # Anchors rise, so the windows over a pixel are consecutive: from the first that ends after it.
    first = np.searchsorted(starts + window, pixels, side="right")
    count = np.searchsorted(starts, pixels, side="right") - first
    windows = first[:, None] + np.arange(count.max())
    covers = np.arange(count.max()) < count[:, None]
    windows = np.where(covers, windows, 0)
    inside = np.where(covers, pixels[:, None] - starts[windows], 0)
    indices = inner.indices[inside] + windows[..., None] * low
    weights = inner.weights[inside] * (covers / count[:, None]).astype(np.float32)[..., None]
    return AxisMap(indices.reshape(length, -1), weights.reshape(length, -1))


def resized_size(height: int, width: int, side: int, ratio: float, factor: float = 1.0) -> tuple[int, int]:
    """Size after resizing, ratio kept, into the box (long edge ratio * side, short edge side) times `factor`.

    Box edges are truncated to integers first; whatever the orientation. Never below one pixel.
    """
    long, short = int(ratio * side * factor), int(side * factor)
    scale = min(long / max(height, width), short / min(height, width))
    return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))


def enlarged_size(height: int, width: int, window: tuple[int, int]) -> tuple[int, int]:
    """Size at which the window fits: the axis that lacks most becomes the window, the other follows truncated.

    An image longer than `LONGEST` windows follows only so far that it becomes `LONGEST` windows or four times its own
    pixels, whichever is more: a strip of 1 x 10000 pixels would make ten thousand windows.
    """
    if height >= window[0] and width >= window[1]:
        return height, width
    most = max(LONGEST * window[0] * window[1], 4 * height * width)
    if height * window[1] <= width * window[0]:
        return window[0], max(window[1], min(int(width / height * window[0]), most // window[0]))
    return max(window[0], min(int(height / width * window[1]), most // window[1])), window[1]


def padded_size(size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Size after padding right and bottom to a multiple of the patch."""
    return -(-size[0] // patch[0]) * patch[0], -(-size[1] // patch[1]) * patch[1]


def bands(length: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut `length` into (start, stop) of `size` each, the last one shorter."""
    for start in range(0, length, size):
        yield start, min(start + size, length)
