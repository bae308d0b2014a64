"""What turns an image into labels: one interface for a run (PyTorch) and for an ONNX file (no torch).

Arrays in and out are numpy's, so that reading, coloring and writing images needs no torch.
`torch_predictor.py` and `onnx_predictor.py` implement it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from depict.inference.sliding import SlidingWindow

if TYPE_CHECKING:
    from depict.data.palette import Color


Bands = Iterator[tuple[int, int, np.ndarray]]
"""(start, stop, float32 (C, stop - start, W)) from top to bottom; a band may be overwritten by the next one."""


class Scores(Protocol):
    """What a network says about one image, at low resolution; labels and probabilities are rendered from it."""

    def labels(self) -> np.ndarray:
        """The class of each pixel, uint8 or int16 (H, W)."""
        ...

    def probabilities(self, size: tuple[int, int] | None = None) -> Bands:
        """The probability of each class; `size` (H, W) is that of the image by default."""
        ...


class Predictor(Protocol):
    """A model together with how it is applied: in windows or whole, at one scale or several."""

    classes: tuple[str, ...]
    palette: tuple[Color, ...]
    sliding: SlidingWindow

    def labels(self, image: np.ndarray) -> np.ndarray:
        """The class of each pixel, uint8 or int16 (H, W), of an image uint8 RGB (H, W, 3) of any size."""
        ...

    def probabilities(self, image: np.ndarray) -> Bands:
        """The probability of each class, in bands of rows from top to bottom to save memory."""
        ...

    def scores(self, images: Iterable[np.ndarray]) -> Iterator[Scores]:
        """For each image, the scores that both come from: for several questions about one call of the network."""
        ...
