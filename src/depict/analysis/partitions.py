"""How well one partition of an image's patches agrees with another that is taken as the truth.

Partitions are integers (h, w) on the grid of patches; patches whose truth is 255 count nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

from depict.data.dataset import IGNORE

Labels = NDArray[np.integer]


class Scores(NamedTuple):
    """One partition against the truth."""

    over_segmentation: float
    """Segments (connected, of one label) over segments of the truth; 1 is as many as there should be."""
    best_match_miou: float
    """Mean IoU over the classes of the truth after the best one-to-one match of parts to classes, in 0..1."""
    adjusted_rand: float
    """Adjusted Rand index: 1 for the same partition whatever its labels, 0 as expected by chance."""


@dataclass(frozen=True)
class Contingency:
    """Patches by class of the truth (rows) and by part (columns)."""

    classes: Labels
    parts: Labels
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, truth: Labels, found: Labels) -> Contingency:
        """Count two partitions (h, w) of the same patches."""
        valid = truth != IGNORE
        classes, rows = np.unique(truth[valid], return_inverse=True)
        parts, columns = np.unique(found[valid], return_inverse=True)
        counts = np.bincount(rows * len(parts) + columns, minlength=len(classes) * len(parts))
        return cls(classes, parts, counts.reshape(len(classes), len(parts)))

    def match(self) -> tuple[dict[int, int], float]:
        """The one-to-one match of parts to classes with the largest sum of IoU (Hungarian), and the mean IoU.

        The mean is over all classes of the truth: a class without a part counts as 0.
        """
        iou = self.counts / (self.counts.sum(1, keepdims=True) + self.counts.sum(0) - self.counts)
        rows, columns = linear_sum_assignment(iou, maximize=True)
        pairs = {int(self.parts[c]): int(self.classes[r]) for r, c in zip(rows, columns, strict=True)}
        return pairs, float(iou[rows, columns].sum() / len(self.classes))

    def adjusted_rand(self) -> float:
        """(pairs together in both - expected) / (largest possible - expected), Hubert and Arabie 1985."""
        both, in_truth, in_found = (_pairs(n) for n in (self.counts, self.counts.sum(1), self.counts.sum(0)))
        expected = in_truth * in_found / max(1.0, _pairs(self.counts.sum()))
        largest = (in_truth + in_found) / 2
        return 1.0 if largest == expected else float((both - expected) / (largest - expected))


def compare(truth: Labels, found: Labels) -> Scores:
    """All scores of one partition (h, w); the truth must have a labeled patch."""
    table = Contingency.of(truth, found)
    valid = truth != IGNORE
    index = segments(found, valid) / segments(truth, valid)
    return Scores(index, table.match()[1], table.adjusted_rand())


def segments(labels: Labels, valid: NDArray[np.bool_]) -> int:
    """How many connected pieces (by edges) the parts have together, among valid patches (h, w)."""
    return sum(ndimage.label(valid & (labels == label))[1] for label in np.unique(labels[valid]))


def _pairs(counts: NDArray[np.int64]) -> float:
    return float((counts * (counts - 1) / 2).sum())
