"""One pass over the images for all questions: the encoder sees each image once, then every question what came out."""

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

from depict.analysis.question import Answer, Question, Sample
from depict.data.dataset import IGNORE, Dataset
from depict.data.transforms import resize_labels
from depict.decoders.base import Trace
from depict.errors import UserError, unknown
from depict.inference.sliding import padded_size
from depict.io.images import read_image

if TYPE_CHECKING:
    from depict.model import SegmentationModel
    from depict.segment.inputs import Input

QUESTIONS = {
    "principal": "depict.analysis.principal:Principal",
    "orthogonality": "depict.analysis.orthogonality:Orthogonality",
    "class_embeddings": "depict.analysis.class_embeddings:ClassEmbeddings",
    "coding_rates": "depict.analysis.coding_rates:CodingRates",
    "low_rank": "depict.analysis.low_rank:LowRank",
    "perturbation": "depict.analysis.perturbation:Perturbation",
    "derivation": "depict.analysis.derivation:Derivation",
    "gradient_terms": "depict.analysis.gradient_terms:GradientTerms",
}
"""In the order of the report."""

T = TypeVar("T")


class Pictures:
    """Picture files without ground truth, read as a data set is."""

    name = "pictures"

    def __init__(self, inputs: Sequence[Input]) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def name_of(self, index: int) -> str:
        """The path below the folder that all have in common, without ending."""
        return self.inputs[index].name

    def read(self, index: int) -> tuple[Tensor, None]:
        """Image uint8 (3, H, W), and no labels."""
        return torch.tensor(read_image(self.inputs[index].path)).permute(2, 0, 1), None


@dataclass
class Finding:
    """What became of one question to one model."""

    kind: type[Question]
    answer: Answer | None = None
    error: str | None = None
    """Why there is no answer."""
    seconds: float = 0.0
    """That the question took of the pass, without the model's own time."""


@dataclass
class Pass:
    """What one pass over the images found."""

    findings: list[Finding]
    images: int
    seconds: float
    """Of reading the images and unrolling the model."""


def choose_questions(wanted: str | None) -> list[type[Question]]:
    """The questions in a list such as principal,low_rank, in the order of the report; all if nothing is said."""
    names = list(QUESTIONS) if wanted is None else [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        raise UserError(f"--questions names no question: give names such as {','.join(list(QUESTIONS)[:2])}.")
    for name in names:
        if name not in QUESTIONS:
            raise unknown("question", name, QUESTIONS)
    places = (QUESTIONS[name].split(":") for name in QUESTIONS if name in names)
    return [getattr(importlib.import_module(module), attribute) for module, attribute in places]


def evenly_spaced(count: int, wanted: int) -> list[int]:
    """At most so many indices, evenly spread over `count`.

    So are the first few of them, which a question may show as pictures: neighbors are often frames of one film. The
    order is that of the places' bits read backwards: 0, 1/2, 1/4, 3/4, 1/8 ... of the way.
    """
    wanted = min(count, wanted)
    digits = wanted.bit_length()
    places = sorted(range(wanted), key=lambda place: f"{place:0{digits}b}"[::-1])
    return [place * count // wanted for place in places]


def ask(
    model: SegmentationModel,
    images: Dataset | Pictures,
    indices: Sequence[int],
    kinds: Iterable[type[Question]],
    title: str = "analysing",
    progress: bool = False,
) -> Pass:
    """Show the images of these indices to the model, and what it did to each of them to every question.

    A question that raises a `UserError` is not asked further; the others go on. Questions are given the model on the
    CPU, where the samples are; the pass itself runs where the model is.
    """
    from tqdm import tqdm

    at_hand = model if model.device.type == "cpu" else copy.deepcopy(model).cpu()
    asked = [_Asked(kind, at_hand) for kind in kinds]
    seconds = 0.0
    for index in tqdm(indices, desc=title, unit="image", disable=not progress):
        started = time.perf_counter()
        sample = look(model, images, index)
        seconds += time.perf_counter() - started
        for one in asked:
            one.see(sample)
    for one in tqdm(asked, desc=f"{title}: answers", unit="question", disable=not progress):
        one.answer()
    return Pass([one.finding for one in asked], len(indices), seconds)


class _Asked:
    """A question on its way through the pass, whose mistakes end with it."""

    def __init__(self, kind: type[Question], model: SegmentationModel) -> None:
        self.finding = Finding(kind)
        self.question: Question | None = self._tried(lambda: kind(model))

    def see(self, sample: Sample) -> None:
        if (question := self.question) is not None:
            self._tried(lambda: question.see(sample))

    def answer(self) -> None:
        if (question := self.question) is not None:
            self.finding.answer = self._tried(question.answer)

    def _tried(self, act: Callable[[], T]) -> T | None:
        started = time.perf_counter()
        try:
            return act()
        except UserError as error:
            self.question, self.finding.error = None, str(error)
            return None
        finally:
            self.finding.seconds += time.perf_counter() - started


def look(model: SegmentationModel, images: Dataset | Pictures, index: int) -> Sample:
    """One image, its labels, and every step of the decoder, on the CPU."""
    image, labels = images.read(index)
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    trace = to_cpu(model.unroll(pixels))
    size = model.sliding_window().layout(pixels.shape[0], pixels.shape[1], 1.0).size
    below = None if labels is None else patch_labels(labels, size, model.patch_size)
    return Sample(images.name_of(index), pixels, labels, trace, below)


def patch_labels(labels: Tensor, size: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """The most frequent class of the labeled pixels under each patch, int64 (N,); 255 where there is none.

    Labels (H, W) are brought to `size`, at which the model sees the image, and padded to whole patches, as it is. Of
    classes that are equally frequent the first is taken.
    """
    height, width = padded_size(size, patch)
    padded = torch.full((height, width), IGNORE, dtype=torch.int64)
    padded[: size[0], : size[1]] = resize_labels(labels, size)
    cells = padded.unfold(0, patch[0], patch[0]).unfold(1, patch[1], patch[1]).flatten(2).flatten(0, 1)
    values = IGNORE + 1
    numbered = cells + values * torch.arange(len(cells))[:, None]
    counted = torch.bincount(numbered.flatten(), minlength=values * len(cells))
    counts = counted.view(-1, values)[:, :IGNORE].numpy()
    return torch.from_numpy(np.where(counts.any(1), counts.argmax(1), IGNORE))


def to_cpu(trace: Trace) -> Trace:
    """The same trace with its tensors on the CPU, free of gradients."""
    steps = [dataclasses.replace(step, **_moved(step)) for step in trace.steps]
    return dataclasses.replace(trace, **_moved(trace), steps=steps)


def _moved(record: object) -> dict[str, Any]:
    return {name: value.detach().cpu() for name, value in vars(record).items() if isinstance(value, Tensor)}
