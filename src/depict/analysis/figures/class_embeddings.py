"""The block matrix of class embeddings across images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from depict.analysis.base import Result

MAX_CLASSES, MAX_PER_CLASS = 30, 100
"""As many classes as in the paper's figure, and embeddings of each."""
AXES_INCHES = 4.0
"""Side of the matrix, at least."""
LEADER_POINTS = 9
LEADER: dict[str, Any] = {"color": "#444444", "lw": 0.4, "clip_on": False, "scalex": False, "scaley": False}


def figures(result: Result) -> dict[str, Figure]:
    """Inner products of all embeddings."""
    return {"gram": gram_by_class(result.measured.groups, result.measured.names)}


def gram_by_class(groups: list[Tensor], names: list[str]) -> Figure:
    """Inner products of the embeddings (n_c, D) of the most frequent classes, with lines between the classes."""
    by_frequency = sorted(range(len(groups)), key=lambda index: -len(groups[index]))
    shown = sorted(by_frequency[:MAX_CLASSES])
    blocks = [groups[index][:MAX_PER_CLASS] for index in shown]
    labels = [names[index] for index in shown]
    rows = torch.cat(blocks)
    edges = np.cumsum([0, *(len(block) for block in blocks)]) - 0.5
    figure = Figure(figsize=(6, 5.4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow((rows @ rows.T).numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="antialiased")
    for edge in edges[1:-1]:
        axes.axhline(edge, color="#444444", lw=0.4)
        axes.axvline(edge, color="#444444", lw=0.4)
    centers = (edges[1:] + edges[:-1]) / 2
    size = 8 if len(labels) <= 15 else 6
    line = 1.15 * size / 72 / AXES_INCHES * len(rows)  # the height of a label in rows of the matrix
    places = spread(centers, line, edges[-1] - line / 2)
    axes.set_xticks(places, labels, rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(places, labels, fontsize=size, parse_math=False)
    axes.tick_params(length=0, pad=LEADER_POINTS + 1)
    leader = -LEADER_POINTS / 72 / AXES_INCHES  # from a class to its label, which may have been moved
    for ends in zip(centers, places, strict=True):
        axes.plot(ends, (0, leader), transform=axes.get_xaxis_transform(), **LEADER)
        axes.plot((0, leader), ends, transform=axes.get_yaxis_transform(), **LEADER)
    figure.colorbar(image, label="inner product of unit vectors", shrink=0.8)
    return figure


def spread(places: np.ndarray, gap: float, end: float) -> np.ndarray:
    """Ascending places, moved so that neighbors are at least `gap` apart and the last is at most at `end`."""
    moved = np.array(places, dtype=float)
    for index in range(1, len(moved)):
        moved[index] = max(moved[index], moved[index - 1] + gap)
    moved[-1] = min(moved[-1], end)
    for index in range(len(moved) - 2, -1, -1):
        moved[index] = min(moved[index], moved[index + 1] - gap)
    return moved
