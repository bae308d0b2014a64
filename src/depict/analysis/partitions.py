"""Scores of a partition of an image's patches against the true one.

Partitions are integers (h, w) on the patch grid; patches whose truth is 255 are ignored.
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
    """One partition compared with the truth."""

    over_segmentation: float
    """Connected segments per true segment; 1 is the right number."""
    best_match_miou: float
    """Mean IoU over the true classes after the best one-to-one match of parts to classes, in 0..1."""
    adjusted_rand: float
    """Adjusted Rand index: 1 for the same partition under any labels, 0 on average for a random one."""


@dataclass(frozen=True)
class Contingency:
    """Number of patches per true class (rows) and part (columns)."""

    classes: Labels
    parts: Labels
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, truth: Labels, labels: Labels) -> Contingency:
        """Count two partitions (h, w) of the same patches."""
        valid = truth != IGNORE
        classes, rows = np.unique(truth[valid], return_inverse=True)
        parts, columns = np.unique(labels[valid], return_inverse=True)
        counts = np.bincount(rows * len(parts) + columns, minlength=len(classes) * len(parts))
        return cls(classes, parts, counts.reshape(len(classes), len(parts)))

    def match(self) -> tuple[dict[int, int], float]:
        """The class of each part in the one-to-one match with the largest sum of IoU (Hungarian), and the mean IoU.

        The mean is over all true classes: a class without a part counts as 0.
        """
        iou = self.counts / (self.counts.sum(1, keepdims=True) + self.counts.sum(0) - self.counts)
        rows, columns = linear_sum_assignment(iou, maximize=True)
        pairs = {int(self.parts[c]): int(self.classes[r]) for r, c in zip(rows, columns, strict=True)}
        return pairs, float(iou[rows, columns].sum() / len(self.classes))

    def adjusted_rand(self) -> float:
        """(pairs joined in both - expected) / (largest possible - expected), Hubert and Arabie 1985."""
        both, in_truth, in_parts = (_pairs(n) for n in (self.counts, self.counts.sum(1), self.counts.sum(0)))
        expected = in_truth * in_parts / max(1.0, _pairs(self.counts.sum()))
        largest = (in_truth + in_parts) / 2
        return 1.0 if largest == expected else float((both - expected) / (largest - expected))


def compare(truth: Labels, parts: Labels) -> Scores:
    """All scores of a partition (h, w); the truth (h, w) must have a labeled patch."""
    table = Contingency.of(truth, parts)
    valid = truth != IGNORE
    over_segmentation = count_segments(parts, valid) / count_segments(truth, valid)
    return Scores(over_segmentation, table.match()[1], table.adjusted_rand())


def count_segments(labels: Labels, valid: NDArray[np.bool_]) -> int:
    """Number of 4-connected components of equal labels (h, w) among the valid patches (h, w)."""
    return sum(ndimage.label(valid & (labels == label))[1] for label in np.unique(labels[valid]))


def _pairs(counts: NDArray[np.int64]) -> float:
    return float((counts * (counts - 1) / 2).sum())
