"""The block matrix of class embeddings across images."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from depict.analysis.base import Result

MAX_CLASSES, MAX_PER_CLASS = 30, 100
"""As many classes as in the paper's figure, and embeddings of each."""


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
    axes.set_xticks(centers, labels, rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(centers, labels, fontsize=size, parse_math=False)
    axes.tick_params(length=0)
    figure.colorbar(image, label="inner product of unit vectors", shrink=0.8)
    return figure
