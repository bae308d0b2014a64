"""Whether a model knows how sure it may be: of the pixels with a confidence of 80 %, 80 % should be right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depict.data.dataset import IGNORE
from depict.inference.predictors import Scores

BINS = 15
REDUCTION = 4
"""Confidences are computed at a quarter of the image's height and width, a sixteenth of its pixels: they are smooth."""


@dataclass
class Calibration:
    """Pixels by confidence, the probability of the predicted class, in bins of equal width: (BINS,) each."""

    pixels: NDArray[np.float64] = field(default_factory=lambda: np.zeros(BINS))
    correct: NDArray[np.float64] = field(default_factory=lambda: np.zeros(BINS))
    confidence: NDArray[np.float64] = field(default_factory=lambda: np.zeros(BINS))
    """Sum of the confidences."""

    def add(self, scores: Scores, truth: NDArray[np.integer]) -> None:
        """Count the labeled pixels of an image with the labels `truth` (H, W)."""
        height, width = (-(-side // REDUCTION) for side in truth.shape)
        rows, columns = (
            ((np.arange(count) + 0.5) * side / count).astype(int)
            for count, side in zip((height, width), truth.shape, strict=True)
        )
        reduced = truth[rows][:, columns]
        for start, stop, band in scores.probabilities((height, width)):
            labels = reduced[start:stop]
            labeled = labels != IGNORE
            confidence = band.max(0)[labeled].astype(np.float64)
            correct = (band.argmax(0) == labels)[labeled]
            bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
            self.pixels += np.bincount(bins, minlength=BINS)
            self.correct += np.bincount(bins, correct, BINS)
            self.confidence += np.bincount(bins, confidence, BINS)

    def __add__(self, other: Calibration) -> Calibration:
        return Calibration(self.pixels + other.pixels, self.correct + other.correct, self.confidence + other.confidence)

    @property
    def error(self) -> float:
        """Expected calibration error: |accuracy - confidence| of each bin, weighted by its pixels; NaN without any."""
        total = self.pixels.sum()
        return float(np.abs(self.correct - self.confidence).sum() / total) if total else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; bins without a pixel have neither confidence nor accuracy."""
        total = self.pixels.sum()
        bins = [
            {"pixels": int(n), "confidence": _ratio(s, n), "accuracy": _ratio(c, n)}
            for n, c, s in zip(self.pixels, self.correct, self.confidence, strict=True)
        ]
        return {
            "ece": round(self.error, 6) if total else None,
            "confidence": _ratio(self.confidence.sum(), total),
            "accuracy": _ratio(self.correct.sum(), total),
            "reduction": REDUCTION,
            "bins": bins,
        }


def _ratio(part: float, whole: float) -> float | None:
    """Rounded, so that it does not depend on the order in which images were added."""
    return round(float(part / whole), 6) if whole else None
