"""What turns an image into labels: one interface for a run (PyTorch) and for an ONNX file (no torch).

Arrays in and out are numpy's, so that reading, coloring and writing images needs no torch.
`torch_predictor.py` and `onnx_predictor.py` implement it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from depict.data.palette import Color


class Predictor(Protocol):
    """A model together with how it is applied: in windows or whole, at one scale or several."""

    classes: tuple[str, ...]
    palette: tuple[Color, ...]

    def labels(self, image: np.ndarray) -> np.ndarray:
        """The class of each pixel, uint8 or int16 (H, W), of an image uint8 RGB (H, W, 3) of any size."""
        ...

    def probabilities(self, image: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """The probability of each class, in bands of rows from top to bottom to save memory.

        Yields (start, stop, float32 (C, stop - start, W)); a band may be overwritten by the next
        one.
        """
        ...
