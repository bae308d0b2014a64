"""One pass over the images for all analyses: the model runs once per image, and every analysis reads the same trace."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from depict.analysis.base import Analysis, Result, Sample
from depict.data.dataset import IGNORE, Dataset
from depict.data.transforms import resize_labels
from depict.decoders.base import Trace
from depict.errors import UserError, unknown
from depict.io.images import read_image
from depict.terminal import progress_bar, say

if TYPE_CHECKING:
    from depict.model import SegmentationModel
    from depict.segment.inputs import Input

ANALYSES = {
    "principal": "Principal",
    "orthogonality": "Orthogonality",
    "class_embeddings": "ClassEmbeddings",
    "coding_rates": "CodingRates",
    "low_rank": "LowRank",
    "perturbation": "Perturbation",
    "derivation": "Derivation",
    "gradient_terms": "GradientTerms",
    "class_directions": "ClassDirections",
    "queries": "QueryUse",
    "levels": "Levels",
}
"""The class in each module of `depict.analysis`, in the order of the report."""

T = TypeVar("T")


class Pictures:
    """Image files without ground truth, with the interface of a data set."""

    name = "pictures"

    def __init__(self, inputs: Sequence[Input]) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def name_of(self, index: int) -> str:
        """The path below the common folder, without suffix."""
        return self.inputs[index].name

    def read(self, index: int) -> tuple[Tensor, None]:
        """Image uint8 (3, H, W), and no labels."""
        return torch.tensor(read_image(self.inputs[index].path)).permute(2, 0, 1), None


@dataclass
class Outcome:
    """The result of one analysis on one model, or the error that stopped it."""

    name: str
    """Of the analysis."""
    result: Result | None = None
    error: str | None = None
    seconds: float = 0.0
    """Spent in the analysis, without the model's own time."""


@dataclass
class Pass:
    """The outcome of every analysis after one pass over the images."""

    outcomes: list[Outcome]
    images: int
    seconds: float
    """Spent reading the images and unrolling the model."""


def choose_analyses(only: str | None) -> list[type[Analysis]]:
    """The analyses in a list such as `principal,low_rank`, in the order of the report; None gives all."""
    names = list(ANALYSES) if only is None else [name.strip() for name in only.split(",") if name.strip()]
    if not names:
        raise UserError(f"--only is empty: give names such as {','.join(list(ANALYSES)[:2])}.")
    for name in names:
        if name not in ANALYSES:
            raise unknown("analysis", name, ANALYSES)
    chosen = [name for name in ANALYSES if name in names]
    return [getattr(importlib.import_module(f"depict.analysis.{name}"), ANALYSES[name]) for name in chosen]


def evenly_spaced(count: int, limit: int) -> list[int]:
    """At most `limit` indices, evenly spaced over `count`.

    Every prefix is roughly evenly spaced too: a report shows the first few, and neighbors are often frames of one
    video. Positions are sorted by their bits in reverse order, which gives 0, 1/2, 1/4, 3/4, 1/8, ... of the range.
    """
    limit = min(count, limit)
    digits = limit.bit_length()
    positions = sorted(range(limit), key=lambda position: f"{position:0{digits}b}"[::-1])
    return [position * count // limit for position in positions]


def run_analyses(
    model: SegmentationModel,
    images: Dataset | Pictures,
    indices: Sequence[int],
    analyses: Iterable[type[Analysis]],
    title: str = "analyzing",
    progress: bool = False,
) -> Pass:
    """Unroll the model on the images with these indices and show every trace to every analysis.

    An analysis that raises a `UserError` is dropped with its message, the others continue. Samples and the model that
    analyses see are on the CPU; the pass itself runs on the model's device. Pictures that cannot be read are named and
    skipped; a broken image of a data set is an error.
    """
    cpu_model = model if model.device.type == "cpu" else copy.deepcopy(model).cpu()
    running = [_Running(analysis, cpu_model) for analysis in analyses]
    seconds, seen = 0.0, 0
    for index in progress_bar(indices, desc=title, unit="image", disable=not progress):
        started = time.perf_counter()
        try:
            sample = make_sample(model, images, index)
        except UserError as error:
            if not isinstance(images, Pictures):
                raise
            say(f"depict: skipped: {error}", error=True)
            continue
        seen += 1
        seconds += time.perf_counter() - started
        for each in running:
            each.update(sample)
    if not seen:
        raise UserError("none of the pictures can be analyzed.")
    for each in progress_bar(running, desc=f"{title}: results", unit="analysis", disable=not progress):
        each.compute()
    return Pass([each.outcome for each in running], seen, seconds)


class _Running:
    """Isolates the errors of one analysis and counts its time."""

    def __init__(self, analysis: type[Analysis], model: SegmentationModel) -> None:
        self.outcome = Outcome(analysis.name)
        self.analysis: Analysis | None = self._isolated(lambda: analysis(model))

    def update(self, sample: Sample) -> None:
        if (analysis := self.analysis) is not None:
            self._isolated(lambda: analysis.update(sample))

    def compute(self) -> None:
        if (analysis := self.analysis) is not None:
            self.outcome.result = self._isolated(analysis.compute)

    def _isolated(self, call: Callable[[], T]) -> T | None:
        started = time.perf_counter()
        try:
            return call()
        except UserError as error:
            self.analysis, self.outcome.error = None, str(error)
            return None
        finally:
            self.outcome.seconds += time.perf_counter() - started


def make_sample(model: SegmentationModel, images: Dataset | Pictures, index: int) -> Sample:
    """Read one image with its labels, and unroll the model on it; all tensors on the CPU."""
    image, labels = images.read(index)
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    trace = to_cpu(model.unroll(pixels))
    size = model.layout(pixels.shape[0], pixels.shape[1]).size
    below = None if labels is None else patch_labels(labels, size, model.stride, trace.grid)
    return Sample(images.name_of(index), pixels, labels, trace, below)


def patch_labels(labels: Tensor, size: tuple[int, int], patch: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """The most frequent class of the labeled pixels under each patch, int64 (N,); 255 where there is none.

    Labels (H, W) are resized to `size`, at which the model sees the image, and padded to a full grid like the image.
    Ties go to the first class.
    """
    padded = torch.full((grid[0] * patch[0], grid[1] * patch[1]), IGNORE, dtype=torch.int64)
    padded[: size[0], : size[1]] = resize_labels(labels, size)
    cells = padded.unfold(0, patch[0], patch[0]).unfold(1, patch[1], patch[1]).flatten(2).flatten(0, 1)
    values = IGNORE + 1
    numbered = cells + values * torch.arange(len(cells))[:, None]
    counted = torch.bincount(numbered.flatten(), minlength=values * len(cells))
    counts = counted.view(-1, values)[:, :IGNORE].numpy()
    return torch.from_numpy(np.where(counts.any(1), counts.argmax(1), IGNORE))


def to_cpu(trace: Trace) -> Trace:
    """The trace with its tensors on the CPU, detached."""
    steps = [dataclasses.replace(step, **_detached(step)) for step in trace.steps]
    return dataclasses.replace(trace, **_detached(trace), steps=steps)


def _detached(record: object) -> dict[str, Any]:
    return {name: value.detach().cpu() for name, value in vars(record).items() if isinstance(value, Tensor)}
