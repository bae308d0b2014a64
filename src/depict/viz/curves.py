"""The curves of a training: loss, mIoU and learning rate over its steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depict.io.files import atomic_path
from depict.terminal import printable
from depict.viz.style import COLORS, add_grid, figure_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOW = 0.05
"""Width of the running mean of the loss, as a share of the curve."""


def draw_curves(lines: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Write the curves of a run as PNG, given the lines of its metrics.jsonl."""
    with figure_style(9), atomic_path(path) as temporary:
        curves_figure(lines, title).savefig(temporary, format="png", dpi=120, metadata={"Software": None})


def curves_figure(lines: Sequence[dict[str, Any]], title: str) -> Figure:
    """Three panels above each other: loss, mIoU of each validation, learning rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7))
    loss_axes, score_axes, rate_axes = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1.5))
    # Fixed margins: a layout engine would draw everything twice.
    figure.subplots_adjust(left=0.085, right=0.985, top=0.9, bottom=0.065, hspace=0.12)
    figure.align_ylabels()
    steps, losses, rates = _columns(lines, "loss", "lr")
    loss_axes.plot(steps, losses, color=COLORS[0], lw=0.8, alpha=0.35)
    loss_axes.plot(steps, running_mean(losses), color=COLORS[0], lw=1.8)
    loss_axes.set_ylabel("loss")
    rate_axes.plot(steps, rates, color=COLORS[2], lw=1.5)
    rate_axes.set(ylabel="learning rate", xlabel="step", ylim=(0, None))
    rate_axes.ticklabel_format(axis="y", scilimits=(0, 0))
    validated, scores = _columns(lines, "miou")
    score_axes.plot(validated, 100 * scores, "o-", color=COLORS[1], ms=4, lw=1.5)
    score_axes.set_ylabel("validation mIoU (%)")
    if len(scores):
        best = int(scores.argmax())
        at, score = validated[best], 100 * scores[best]
        score_axes.plot(at, score, "*", color=COLORS[1], ms=13, mec="white")
        title += f": best mIoU {score:.2f} % at step {at:.0f}"
    if lines:
        per_epoch = lines[-1]["iteration"] / lines[-1]["epoch"]
        epochs = loss_axes.secondary_xaxis(
            "top", functions=(lambda step: step / per_epoch, lambda epoch: epoch * per_epoch)
        )
        epochs.set_xlabel("epoch")
    figure.suptitle(printable(title), fontsize=10, y=0.985, parse_math=False)
    for axes in (loss_axes, score_axes, rate_axes):
        add_grid(axes)
    return figure


def running_mean(values: np.ndarray) -> np.ndarray:
    """The mean of the values (n,) around each, over WINDOW of them; fewer at the ends."""
    half = int(WINDOW * len(values) / 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first = np.maximum(np.arange(len(values)) - half, 0)
    last = np.minimum(np.arange(len(values)) + half + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def _columns(lines: Sequence[dict[str, Any]], *names: str) -> tuple[np.ndarray, ...]:
    """Steps and values of the lines that have the first of these values."""
    having = [line for line in lines if line.get(names[0]) is not None]
    return tuple(np.array([line[name] for line in having], float) for name in ("iteration", *names))
