"""How a network is applied to an image of any size: scales, flips and sliding windows, as geometry.

Needs no torch: the torch and the numpy backend share it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from depict.errors import UserError
from depict.inference.resample import AxisMap, bilinear

MULTISCALE = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
"""The published scales; each is applied flipped, too."""
MAX_FULL_IMAGE_PIXELS = 4096 * 4096
"""Larger images are not given to the network in one piece: its memory grows with them."""
MAX_ENLARGED_WINDOWS = 64
"""Windows that a small image is enlarged to at most. Only very long strips reach it."""


NO_TILE = "give --tile or --full-image, not both: with --tile, windows slide over the picture."


@dataclass(frozen=True)
class NetworkSpec:
    """How a network expects its input, and how many windows it gets per call."""

    mean: Sequence[float]
    """Of red, green and blue in 0..1."""
    std: Sequence[float]
    multiple: tuple[int, int] = (1, 1)
    """The network pads its input on the right and bottom to a multiple of it; its logits cover the padded input."""
    batch: int | None = None
    """Windows per call. By default as many as have the pixels of 2 windows of 512 x 512 on a CPU, of 16 on a GPU."""


class Layout(NamedTuple):
    """The sizes (height, width) of an image at one scale, and its windows."""

    resized: tuple[int, int]
    """Size that the uint8 image is resized to."""
    size: tuple[int, int]
    """Size of the network's input: `resized`, enlarged until the window fits."""
    window: tuple[int, int]
    stride: tuple[int, int]
    blend: bool = False
    """Whether the weight of a window falls toward its border where windows overlap."""

    def cells(self, stride: tuple[int, int]) -> tuple[float, float]:
        """Rows and columns of the tokens' grid that the image covers; the rest of the grid is padding."""
        return self.size[0] / stride[0], self.size[1] / stride[1]

    def windows(self) -> Iterator[tuple[int, int, int, int]]:
        """Row, column, top and left of every window, row by row."""
        tops, lefts = (anchors(*axis) for axis in zip(self.size, self.window, self.stride, strict=True))
        for (row, top), (column, left) in itertools.product(enumerate(tops), enumerate(lefts)):
            yield row, column, top, left

    def maps(
        self, low: tuple[int, int], image: tuple[int, int], multiple: tuple[int, int], flipped: bool = False
    ) -> tuple[AxisMap, AxisMap]:
        """The maps of rows and columns from the logits of all windows, `low` each, to the pixels of `image` (H, W).

        `image` may be any size that the result is to have. Windows are padded to a `multiple` of
        pixels. If `flipped`, the network saw the mirror image.
        """
        padded = padded_size(self.window, multiple)
        rows, columns = (
            bilinear(self.size[axis], image[axis]).after(
                overlapping(self.size[axis], self.window[axis], self.stride[axis], low[axis], padded[axis], self.blend)
            )
            for axis in (0, 1)
        )
        return rows, columns[::-1] if flipped else columns

    def logits_size(self, low: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of the logits of all windows side by side, `low` each."""
        tops, lefts = (anchors(*axis) for axis in zip(self.size, self.window, self.stride, strict=True))
        return low[0] * len(tops), low[1] * len(lefts)


@dataclass(frozen=True)
class SlidingWindow:
    """How a network is applied to an image of any size.

    For each scale, the image is resized into a box of `short_edge` by `max_aspect * short_edge`,
    times the scale, and enlarged until the window fits. Logits are averaged where windows overlap
    and resized to the size of the original image. Probabilities are averaged over scales and flips.
    """

    window: tuple[int, int]
    """Height and width that the network sees."""
    stride: tuple[int, int]
    """Step from window to window, at most the window."""
    short_edge: int | None = None
    """Short edge of the box; None keeps the image's size (times the scale)."""
    max_aspect: float = 4.0
    """Long edge of the box, divided by its short edge."""
    scales: Sequence[float] = (1.0,)
    flip: bool = False
    """Also apply every scale to the mirrored image."""
    full_image: bool = False
    """Give the network the whole image, at the same size, instead of windows."""
    blend: bool = False
    """Where windows overlap, let the weight of each fall linearly toward its border, so that no seam shows; otherwise
    all weigh the same, as published."""

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0:
            raise UserError(f"scales must be positive numbers, at least one, not {tuple(self.scales)}.")
        if self.short_edge is not None and (self.short_edge < 1 or self.max_aspect < 1):
            raise UserError(
                f"short_edge and max_aspect must be at least 1, not {self.short_edge} and {self.max_aspect}."
            )
        for window, stride in zip(self.window, self.stride, strict=True):
            anchors(window, window, stride)

    def at_tile(self, tile: int | None) -> SlidingWindow:
        """The same for pictures that are larger than the training images, whose short edge had `tile` pixels.

        They are resized by the factor that such training images were resized by, instead of into a
        box. None changes nothing.
        """
        if tile is None:
            return self
        if tile < 1 or self.full_image:
            raise UserError(f"--tile must be at least 1 pixel, not {tile}." if tile < 1 else NO_TILE)
        factor = (self.short_edge or tile) / tile
        return replace(self, short_edge=None, scales=tuple(factor * scale for scale in self.scales))

    def size(self, height: int, width: int, scale: float) -> tuple[int, int]:
        """Size that an image is resized to at this scale."""
        if self.short_edge is None:
            return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))
        return resized_size(height, width, self.short_edge, self.max_aspect, scale)

    def layout(self, height: int, width: int, scale: float = 1.0) -> Layout:
        """All sizes of an image of height x width at this scale."""
        resized = self.size(height, width, scale)
        size = enlarged_size(*resized, self.window)
        if not self.full_image:
            return Layout(resized, size, self.window, self.stride, self.blend)
        if math.prod(size) > MAX_FULL_IMAGE_PIXELS:
            raise UserError(
                f"an image of {height} x {width} pixels (height x width) is too large to be processed whole "
                f"({size[0]} x {size[1]} pixels after resizing, the limit is {MAX_FULL_IMAGE_PIXELS}): "
                "use windows or a smaller image."
            )
        return Layout(resized, size, size, size)


def anchors(length: int, window: int, stride: int) -> list[int]:
    """The start of each window along an axis: 0, stride, 2 * stride, ... < length - window, then length - window."""
    if not 0 < stride <= window:
        raise UserError(f"stride {stride} must be between 1 and the window {window}, or pixels would be skipped.")
    if length < window:
        raise UserError(f"a window of {window} does not fit into {length} pixels: enlarge the image first.")
    return [*range(0, length - window, stride), length - window]


def overlapping(length: int, window: int, stride: int, low: int, padded: int, blend: bool = False) -> AxisMap:
    """The map from the low-resolution samples of all windows along an axis to its pixels, averaged in overlaps.

    Inputs: the samples of one window after the other (len(anchors) * low). The `low` samples of a
    window cover `padded` >= window pixels; the last padded - window of them are dropped. Outputs:
    `length` pixels. With `blend`, a window weighs as much as its border is away.
    """
    inner = bilinear(low, padded)[:window]
    starts = np.array(anchors(length, window, stride))
    pixels = np.arange(length)
    # Anchors are sorted, so the windows over a pixel are consecutive, starting with the first that ends after it.
    first = np.searchsorted(starts + window, pixels, side="right")
    count = np.searchsorted(starts, pixels, side="right") - first
    windows = first[:, None] + np.arange(count.max())
    covers = np.arange(count.max()) < count[:, None]
    windows = np.where(covers, windows, 0)
    inside = np.where(covers, pixels[:, None] - starts[windows], 0)
    indices = inner.indices[inside] + windows[..., None] * low
    border = np.minimum(inside, window - 1 - inside) + 1
    share = covers * (border if blend else 1)
    weights = inner.weights[inside] * (share / share.sum(1, keepdims=True)).astype(np.float32)[..., None]
    return AxisMap(indices.reshape(length, -1), weights.reshape(length, -1))


def resized_size(height: int, width: int, short_edge: int, max_aspect: float, factor: float = 1.0) -> tuple[int, int]:
    """Largest size of the same aspect ratio in a box of short_edge by max_aspect * short_edge, times `factor`.

    As published: the edges of the box are truncated to integers first. The box turns with the
    image. At least 1 pixel.
    """
    long, short = int(max_aspect * short_edge * factor), int(short_edge * factor)
    scale = min(long / max(height, width), short / min(height, width))
    return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))


def enlarged_size(height: int, width: int, window: tuple[int, int]) -> tuple[int, int]:
    """Size at which the window fits: the axis that is too short by the larger factor becomes the window.

    The other axis keeps the aspect ratio, truncated to an integer. It is also limited to `MAX_ENLARGED_WINDOWS` windows
    or four times the pixels of the image, whichever is more: a strip of 1 x 10000 pixels would need
    ten thousand windows.
    """
    if height >= window[0] and width >= window[1]:
        return height, width
    most = max(MAX_ENLARGED_WINDOWS * window[0] * window[1], 4 * height * width)
    if height * window[1] <= width * window[0]:
        return window[0], max(window[1], min(int(width / height * window[0]), most // window[0]))
    return max(window[0], min(int(height / width * window[1]), most // window[1])), window[1]


def padded_size(size: tuple[int, int], multiple: tuple[int, int]) -> tuple[int, int]:
    """Size after padding on the right and bottom to multiples of these numbers of pixels."""
    return -(-size[0] // multiple[0]) * multiple[0], -(-size[1] // multiple[1]) * multiple[1]
