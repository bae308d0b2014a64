"""Figures of an evaluation: which classes are confused, and whether confidences are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from depict.viz.style import COLORS, add_grid

MAX_CLASSES = 30
"""Classes in the confusion matrix, those with the most pixels."""
MAX_WRITTEN = 14
"""Up to this many classes the percentages are written into the cells."""


def shown_classes(confusion: NDArray[np.int64]) -> list[int]:
    """The classes of a confusion matrix (C, C) that are drawn, in their order: the largest of those in the truth."""
    pixels = confusion.sum(1)
    largest = np.argsort(-pixels, kind="stable")[:MAX_CLASSES]
    return sorted(int(label) for label in largest if pixels[label])


def confusion_figure(confusion: NDArray[np.int64], classes: Sequence[str]) -> Figure:
    """For each true class (rows), the percentage of its pixels that are predicted as each class (columns)."""
    shown = shown_classes(confusion)
    percent = 100 * confusion[np.ix_(shown, shown)] / confusion[shown].sum(1, keepdims=True)
    names = [name if len(name) <= 18 else f"{name[:17]}…" for name in (classes[label] for label in shown)]
    side = 4.2 + 0.09 * len(shown)
    figure = Figure(figsize=(side + 0.6, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(percent, cmap="Blues", vmin=0, vmax=100, interpolation="nearest")
    size = 9 if len(shown) <= MAX_WRITTEN else 6.5
    axes.set_xticks(range(len(shown)), names, rotation=90, fontsize=size)
    axes.set_yticks(range(len(shown)), names, fontsize=size)
    axes.tick_params(length=0)
    if len(shown) <= MAX_WRITTEN:
        for row, column in np.ndindex(percent.shape):
            value = percent[row, column]
            if value >= 0.5:
                color = "white" if value > 55 else "black"
                axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=color, fontsize=8)
    axes.set_ylabel("truth")
    axes.set_xlabel("prediction")
    figure.colorbar(image, label="% of the true class", shrink=0.8)
    return figure


def reliability_figure(bins: Sequence[dict[str, Any]]) -> Figure:
    """Accuracy over confidence, and below how many pixels have that confidence."""
    filled = [row for row in bins if row["pixels"]]
    edges = np.arange(len(bins)) / len(bins)
    shares = np.array([row["pixels"] for row in bins]) / max(1, sum(row["pixels"] for row in bins))
    figure = Figure(figsize=(5, 4.8), layout="constrained")
    curve, histogram = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    curve.plot([0, 100], [0, 100], "--", color="#666666", lw=1, label="perfectly calibrated")
    confidence, accuracy = ([100 * row[key] for row in filled] for key in ("confidence", "accuracy"))
    curve.plot(confidence, accuracy, "o-", color=COLORS[0], label="this model")
    curve.set(ylabel="accuracy (%)", xlim=(0, 100), ylim=(0, 102))
    curve.legend(fontsize=9)
    histogram.bar(100 * edges, 100 * shares, 100 / len(bins), align="edge", color=COLORS[5], edgecolor="white", lw=0.5)
    histogram.set(ylabel="pixels (%)", xlabel="confidence (%)")
    for axes in (curve, histogram):
        add_grid(axes)
    return figure
