"""What turns a picture into labels: one small interface for a run (PyTorch) and for an ONNX file (no torch).

Only numpy crosses the interface, so that reading, coloring and writing pictures needs no torch; each kind of model
imports its own library when it is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from depict.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from depict.data.dataset import Color
    from depict.inference.sliding import SlidingWindow
    from depict.model import SegmentationModel


class Predictor(Protocol):
    """A model with its way of applying it: windows or whole, one scale or many."""

    classes: tuple[str, ...]
    palette: tuple[Color, ...]

    def labels(self, image: np.ndarray) -> np.ndarray:
        """The class of each pixel, integers (H, W), of a picture uint8 RGB (H, W, 3) of any size."""
        ...

    def probabilities(self, image: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """The probability of each class in bands of rows from top to bottom, so that they never exist at once.

        Gives (start, stop, float32 (C, stop - start, W)); a band may be overwritten by the next one.
        """
        ...


class TorchPredictor:
    """A `SegmentationModel`, applied by a sliding window on the device that it is on."""

    def __init__(self, model: SegmentationModel, sliding: SlidingWindow, compile: bool = False) -> None:
        import torch

        self.network = torch.compile(model.masks) if compile else model.masks
        """Normalized images (B, 3, h, w) -> logits (B, C, h', w')."""
        self.classes, self.palette = model.classes, model.palette
        self.sliding = sliding
        self.settings: dict[str, Any] = {
            "mean": model.mean,
            "std": model.std,
            "patch_size": model.patch_size,
            "device": model.device,
        }

    def labels(self, image: np.ndarray) -> np.ndarray:
        """The class of each pixel, uint8 or int16 (H, W)."""
        from depict.inference.torch_backend import predict

        with self._memory(image):
            return predict(self.network, _tensor(image), self.sliding, **self.settings).numpy()

    def probabilities(self, image: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """Bands (start, stop, float32 (C, stop - start, W)) from top to bottom."""
        from depict.inference.torch_backend import probabilities

        with self._memory(image):
            for start, stop, band in probabilities(self.network, _tensor(image), self.sliding, **self.settings):
                yield start, stop, band.cpu().numpy()

    @contextlib.contextmanager
    def _memory(self, image: np.ndarray) -> Iterator[None]:
        """What does not fit into the device's memory is told in one line."""
        import torch

        try:
            yield
        except torch.OutOfMemoryError as error:
            height, width = image.shape[:2]
            raise UserError(
                f"an image of {height} x {width} pixels (height x width) does not fit into the memory of "
                f"{self.settings['device']}: use windows instead of --full-image, or --device cpu."
            ) from error


def _tensor(image: np.ndarray) -> Tensor:
    """uint8 (H, W, 3) -> (3, H, W)."""
    import torch

    return torch.from_numpy(np.require(image, requirements="W")).permute(2, 0, 1)
