"""How a network is applied to an image of any size: scales, flips, windows. Free of torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from depict.errors import UserError
from depict.inference.resample import AxisMap, bilinear

MULTISCALE = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
"""The published scales; each is applied flipped, too."""
# Pixels that the network may see as a whole: its memory grows with them.
WHOLE_PIXELS = 4096 * 4096
LONGEST = 64
"""Windows side by side that an image below the window may be enlarged to: none but strips has as many."""


class Layout(NamedTuple):
    """The sizes, height and width each, of an image on its way through one pass."""

    resized: tuple[int, int]
    """After resizing into the box."""
    size: tuple[int, int]
    """After enlarging until the window fits."""
    window: tuple[int, int]
    stride: tuple[int, int]

    def windows(self) -> Iterator[tuple[int, int, int, int]]:
        """Row, column, top and left of every window, row by row."""
        tops, lefts = (anchors(*axis) for axis in zip(self.size, self.window, self.stride, strict=True))
        for (row, top), (column, left) in itertools.product(enumerate(tops), enumerate(lefts)):
            yield row, column, top, left

    def maps(self, low: tuple[int, int], image: tuple[int, int], patch: tuple[int, int]) -> tuple[AxisMap, AxisMap]:
        """For rows and for columns: from all windows' logits, a grid `low` each, to the pixels of the image."""
        padded = padded_size(self.window, patch)
        rows, columns = (
            bilinear(self.size[axis], image[axis]).after(
                overlapping(self.size[axis], self.window[axis], self.stride[axis], low[axis], padded[axis])
            )
            for axis in (0, 1)
        )
        return rows, columns

    def room(self, low: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of all windows' logits, laid side by side."""
        tops, lefts = (anchors(*axis) for axis in zip(self.size, self.window, self.stride, strict=True))
        return low[0] * len(tops), low[1] * len(lefts)


@dataclass(frozen=True)
class SlidingWindow:
    """How a network is applied to an image of any size.

    For each scale the image is resized into the box (long edge max_aspect * short_edge) times the scale, and enlarged
    until the window fits; logits are averaged where windows overlap and resized to the image's own size; probabilities
    are averaged over scales and flips.
    """

    window: tuple[int, int]
    """Height and width that the network sees."""
    stride: tuple[int, int]
    """Step from window to window, at most the window."""
    short_edge: int | None = None
    """Short edge of the box; None keeps the image's own size (times the scale)."""
    max_aspect: float = 4.0
    """Long edge of the box over its short edge."""
    scales: Sequence[float] = (1.0,)
    flip: bool = False
    """Also apply every scale to the mirrored image."""
    full_image: bool = False
    """Let the network see the image at once, at the same size, instead of in windows."""

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0:
            raise UserError(f"scales must be positive numbers, at least one, not {tuple(self.scales)}.")
        if self.short_edge is not None and (self.short_edge < 1 or self.max_aspect < 1):
            raise UserError(
                f"short_edge and max_aspect must be at least 1, not {self.short_edge} and {self.max_aspect}."
            )
        for window, stride in zip(self.window, self.stride, strict=True):
            anchors(window, window, stride)

    def size(self, height: int, width: int, scale: float) -> tuple[int, int]:
        """Size to which an image is resized at this scale."""
        if self.short_edge is None:
            return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))
        return resized_size(height, width, self.short_edge, self.max_aspect, scale)

    def layout(self, height: int, width: int, scale: float) -> Layout:
        """All sizes of an image at this scale."""
        resized = self.size(height, width, scale)
        size = enlarged_size(*resized, self.window)
        if not self.full_image:
            return Layout(resized, size, self.window, self.stride)
        if math.prod(size) > WHOLE_PIXELS:
            raise UserError(
                f"an image of {height} x {width} pixels (height x width) is too large to be seen whole "
                f"({size[0]} x {size[1]} pixels for the network, at most {WHOLE_PIXELS} fit): use windows."
            )
        return Layout(resized, size, size, size)


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


def resized_size(height: int, width: int, short_edge: int, max_aspect: float, factor: float = 1.0) -> tuple[int, int]:
    """Size after resizing, ratio kept, into the box (long edge max_aspect * short_edge) times `factor`.

    Box edges are truncated to integers first; whatever the orientation. Never below one pixel.
    """
    long, short = int(max_aspect * short_edge * factor), int(short_edge * factor)
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
