"""How a network is applied to an image of any size: scales, flips, windows. Free of torch, as `bands.py` is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from depict.bands import AxisMap, anchors, bilinear, enlarged_size, overlapping, padded_size, resized_size
from depict.errors import UserError

MULTISCALE = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
"""The published scales; each is applied flipped, too."""
# Pixels that the network may see as a whole: its memory grows with them.
WHOLE_PIXELS = 4096 * 4096


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
class Protocol:
    """How a network is applied to an image of any size.

    For each scale the image is resized into the box (long edge ratio * side, short edge side) times the scale, and
    enlarged until the window fits; logits are averaged where windows overlap and brought to the image's own size;
    probabilities are averaged over scales and flips.
    """

    window: tuple[int, int]
    """Height and width that the network sees."""
    stride: tuple[int, int]
    """Step from window to window, at most the window."""
    side: int | None = None
    """Short edge of the box; None keeps the image's own size (times the scale)."""
    ratio: float = 4.0
    """Long edge of the box over its short edge."""
    scales: Sequence[float] = (1.0,)
    flip: bool = False
    """Also apply every scale to the mirrored image."""
    whole: bool = False
    """Let the network see the image at once, at the same size, instead of in windows."""

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0:
            raise UserError(f"scales must be positive numbers, at least one, not {tuple(self.scales)}.")
        if self.side is not None and (self.side < 1 or self.ratio < 1):
            raise UserError(f"side must be at least 1 pixel and ratio at least 1, not {self.side} and {self.ratio}.")
        for window, stride in zip(self.window, self.stride, strict=True):
            anchors(window, window, stride)

    def size(self, height: int, width: int, scale: float) -> tuple[int, int]:
        """Size to which an image is resized at this scale."""
        if self.side is None:
            return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))
        return resized_size(height, width, self.side, self.ratio, scale)

    def layout(self, height: int, width: int, scale: float) -> Layout:
        """All sizes of an image at this scale."""
        resized = self.size(height, width, scale)
        size = enlarged_size(*resized, self.window)
        if not self.whole:
            return Layout(resized, size, self.window, self.stride)
        if math.prod(size) > WHOLE_PIXELS:
            raise UserError(
                f"an image of {height} x {width} pixels (height x width) is too large to be seen whole "
                f"({size[0]} x {size[1]} pixels for the network, at most {WHOLE_PIXELS} fit): use windows."
            )
        return Layout(resized, size, size, size)
