"""What a question to a trained model is: it sees one image after the other, then gives its answer.

All questions of a report share one pass over the images (`running.py`); each file beside this one holds one question,
from the measure to the figure and the words. A question may look at the model alone and ignore the images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from depict.decoders.base import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from depict.model import SegmentationModel


@dataclass(frozen=True)
class Sample:
    """One image of the pass, and all that the model did to it."""

    name: str
    image: np.ndarray
    """uint8 (H, W, 3), as in the file."""
    labels: Tensor | None
    """uint8 (H, W), 255 = ignored; None for an image without ground truth."""
    trace: Trace
    """The unrolled pass over the whole image, batch 1, on the CPU, without attention."""
    patch_labels: Tensor | None
    """int64 (N,): the most frequent class of the labeled pixels under each patch, 255 where there is none."""


@dataclass
class Answer:
    """What a question found for one run. Without numbers it makes no sense for this decoder: `text` says why."""

    numbers: dict[str, float | None] = field(default_factory=dict)
    """The few that matter, by a readable label with its unit; shown side by side for several runs."""
    data: dict[str, Any] = field(default_factory=dict)
    """Everything measured, as plain JSON values."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows of each table, written as STEM_NAME.csv."""
    figures: dict[str, Figure] = field(default_factory=dict)
    """Matplotlib figures by a short name, written as PNG and SVG; at most 7 inches wide, readable on a phone."""
    pictures: dict[str, bytes] = field(default_factory=dict)
    """PNG files of single images by the image's name, written as STEM/NAME.png; the page links to them only."""
    captions: dict[str, str] = field(default_factory=dict)
    """One sentence or two under each figure: what is on the axes, what to look for."""
    text: list[str] = field(default_factory=list)
    """Paragraphs of plain text: what came out for this run, with its numbers, and whether it agrees with the paper."""


class Question:
    """Made anew for every run: `Question(model)`, then `see` for each image, then `answer` once."""

    stem = ""
    """Name of its files."""
    title = ""
    """As a question or a statement that a reader understands."""
    about = ""
    """One paragraph of plain text: what is measured and why, with the paper's figure or equation."""

    def __init__(self, model: SegmentationModel):
        self.model = model

    def see(self, sample: Sample) -> None:
        """Take what is needed of one image."""

    def answer(self) -> Answer:
        """What came out."""
        raise NotImplementedError
