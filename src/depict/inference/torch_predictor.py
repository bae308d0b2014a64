"""A `SegmentationModel` as a `Predictor` (predictors.py). Made by `model.predictor()`."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from depict.errors import UserError
from depict.inference.predictors import Bands
from depict.inference.sliding import NetworkSpec, SlidingWindow
from depict.inference.torch_backend import Network, Scores, apply, eval_mode

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
        self.spec = NetworkSpec(model.mean, model.std, model.multiple, batch)
        self.network: Any = network or model.masks
        if compile:
            self.network = torch.compile(self.network)

    def labels(self, image: np.ndarray) -> np.ndarray:
        """The class of each pixel, uint8 or int16 (H, W), of an image uint8 RGB (H, W, 3)."""
        return next(self.scores([image])).labels()

    def probabilities(self, image: np.ndarray) -> Bands:
        """Bands (start, stop, float32 (C, stop - start, W)) from top to bottom."""
        yield from next(self.scores([image])).probabilities()

    def scores(self, images: Iterable[np.ndarray]) -> Iterator[TorchScores]:
        """The scores of each image; windows of several images share a call of the network."""
        sizes: deque[tuple[int, int]] = deque()  # of the images whose scores are not complete

        def tensors() -> Iterator[Tensor]:
            for image in images:
                sizes.append((image.shape[0], image.shape[1]))
                yield _tensor(image)

        passes = apply(self._evaluate, tensors(), self.sliding, self.spec, self.model.device)
        while True:
            with _one_line_when_out_of_memory(sizes, self.model.device):
                scores = next(passes, None)
            if scores is None:
                return
            yield TorchScores(scores, sizes.popleft(), self.model.device)

    def _evaluate(self, images: Tensor) -> Tensor:
        with eval_mode(self.model):
            return self.network(images)


@dataclass
class TorchScores:
    """The scores of one image, with results as numpy arrays."""

    scores: Scores
    size: tuple[int, int]
    device: torch.device

    def labels(self) -> np.ndarray:
        """The class of each pixel, uint8 or int16 (H, W)."""
        with _one_line_when_out_of_memory([self.size], self.device):
            return self.scores.labels().numpy()

    def probabilities(self, size: tuple[int, int] | None = None) -> Bands:
        """The probability of each class; `size` (H, W) is that of the image by default."""
        with _one_line_when_out_of_memory([self.size], self.device):
            for start, stop, band in self.scores.probabilities(size):
                yield start, stop, band.cpu().numpy()


@contextlib.contextmanager
def _one_line_when_out_of_memory(sizes: Sequence[tuple[int, int]], device: torch.device) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        height, width = sizes[-1]
        raise UserError(
            f"an image of {height} x {width} pixels (height x width) does not fit into the memory of "
            f"{device}: use windows instead of --full-image, or --device cpu."
        ) from error


def _tensor(image: np.ndarray) -> Tensor:
    """uint8 (H, W, 3) -> (3, H, W), without a copy where the array is writable."""
    return torch.from_numpy(np.require(image, requirements="W")).permute(2, 0, 1)
