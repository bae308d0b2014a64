"""The contract of an analysis: it sees one image after the other, then computes its result.

An analysis is spread over three files of the same name. `analysis/NAME.py` measures: pure functions on tensors, and the
`Analysis` subclass that applies them to every image. `figures/NAME.py` draws the result, `text/NAME.py` puts it into
words. `runner.py` feeds all analyses in one pass over the images, `report.py` writes their files and the page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from depict.decoders.base import Trace

if TYPE_CHECKING:
    from depict.model import SegmentationModel


@dataclass(frozen=True)
class Sample:
    """One image and everything the model did to it."""

    name: str
    image: np.ndarray
    """uint8 (H, W, 3), as stored in the file."""
    labels: Tensor | None
    """uint8 (H, W), 255 = ignored; None for an image without ground truth."""
    trace: Trace
    """The unrolled pass over the full image, batch 1, on the CPU, without attention."""
    patch_labels: Tensor | None
    """int64 (N,): the most frequent class of the labeled pixels under each patch, 255 where there is none."""


@dataclass
class Result:
    """What an analysis measured on one run: values only, no words and no figures."""

    numbers: dict[str, float | None] = field(default_factory=dict)
    """The headline numbers by a readable label with unit; several runs are compared side by side."""
    data: dict[str, Any] = field(default_factory=dict)
    """Everything measured, as plain JSON values."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows of each table, written as NAME_TABLE.csv."""
    measured: Any = None
    """Tensors or a dataclass for `figures/NAME.py` and `text/NAME.py`; not written to disk."""
    skipped: str | None = None
    """Why the analysis does not apply to this decoder or these images; everything else is empty then."""


class Analysis:
    """Created for every run: `Analysis(model)`, then `update` for each image, then `compute` once."""

    name = ""
    """Name of its files."""

    def __init__(self, model: SegmentationModel):
        self.model = model

    def update(self, sample: Sample) -> None:
        """Measure one image; an analysis of the weights alone needs none."""

    def compute(self) -> Result:
        """Return what was measured on all images."""
        raise NotImplementedError
