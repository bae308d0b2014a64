"""A `SegmentationModel` as a `Predictor` (predictors.py). Made by `model.predictor()`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from depict.errors import UserError
from depict.inference.sliding import NetworkSpec, SlidingWindow
from depict.inference.torch_backend import Network, eval_mode, predict, probabilities

if TYPE_CHECKING:
    from depict.data.palette import Color
    from depict.model import SegmentationModel


class TorchPredictor:
    """Applies a model with a sliding window, in evaluation mode, on the device of its weights.

    `network` replaces the model's own from normalized images to logits. `compile` runs it through
    torch.compile. `batch` is the number of windows per call.
    """

    def __init__(
        self,
        model: SegmentationModel,
        sliding: SlidingWindow,
        network: Network | None = None,
        compile: bool = False,
        batch: int | None = None,
    ):
        self.model, self.sliding = model, sliding
        self.classes: tuple[str, ...] = model.classes
        self.palette: tuple[Color, ...] = model.palette
        self.spec = NetworkSpec(model.mean, model.std, model.patch_size, batch)
        self.network: Any = network or model.masks
        if compile:
            self.network = torch.compile(self.network)

    def labels(self, image: np.ndarray) -> np.ndarray:
        """The class of each pixel, uint8 or int16 (H, W), of an image uint8 RGB (H, W, 3)."""
        with eval_mode(self.model), self._one_line_when_out_of_memory(image):
            return predict(self.network, _tensor(image), self.sliding, self.spec, self.model.device).numpy()

    def probabilities(self, image: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """Bands (start, stop, float32 (C, stop - start, W)) from top to bottom."""
        with eval_mode(self.model), self._one_line_when_out_of_memory(image):
            bands = probabilities(self.network, _tensor(image), self.sliding, self.spec, self.model.device)
            for start, stop, band in bands:
                yield start, stop, band.cpu().numpy()

    @contextlib.contextmanager
    def _one_line_when_out_of_memory(self, image: np.ndarray) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            height, width = image.shape[:2]
            raise UserError(
                f"an image of {height} x {width} pixels (height x width) does not fit into the memory of "
                f"{self.model.device}: use windows instead of --full-image, or --device cpu."
            ) from error


def _tensor(image: np.ndarray) -> Tensor:
    """uint8 (H, W, 3) -> (3, H, W), without a copy where the array is writable."""
    return torch.from_numpy(np.require(image, requirements="W")).permute(2, 0, 1)
