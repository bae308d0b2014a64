"""Gram matrices of bases and class embeddings, and angles between heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from depict.analysis.base import Result
from depict.analysis.orthogonality import Row

COLUMNS = 3
"""Panels per row of a figure."""
MAX_CLASS_NAMES = 30
"""With more classes the axes have no names."""
ENDS = (("layer", "head"), ("other_layer", "other_head"))
"""Columns of the two heads of a pair."""


def figures(result: Result) -> dict[str, Figure]:
    """P P^T of every layer, the angles if there are several heads, and the mean of Q Q^T."""
    measured = result.measured
    drawn = {}
    if measured.layers:
        drawn["bases"] = gram_of_bases(measured.layers)
        if result.tables["angles"]:
            drawn["angles"] = angle_matrix(result.tables["angles"])
    if measured.class_gram is not None:
        drawn["classes"] = gram_of_classes(measured.class_gram, measured.classes)
    return drawn


def gram_of_bases(layers: dict[str, Tensor]) -> Figure:
    """P P^T of the bases (heads, M, D) of every layer, with lines between the heads."""
    grams = {label: P.flatten(0, 1) @ P.flatten(0, 1).mT for label, P in layers.items()}
    full_color = torch.cat([gram.diagonal() for gram in grams.values()]).mean().item()
    columns = min(COLUMNS, len(grams))
    lines = -(-len(grams) // columns)
    figure = Figure(figsize=(min(7.0, 2.2 * columns + 1.2), 2.3 * lines + 0.3), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (label, gram) in zip(panels, grams.items(), strict=False):
        image = axes.imshow(gram.numpy(), cmap="RdBu_r", vmin=-full_color, vmax=full_color, interpolation="nearest")
        heads, M = layers[label].shape[:2]
        for border in range(1, heads):
            axes.axhline(border * M - 0.5, color="black", lw=0.6)
            axes.axvline(border * M - 0.5, color="black", lw=0.6)
        axes.set_xticks([M * (head + 0.5) - 0.5 for head in range(heads)], [f"{head}" for head in range(1, heads + 1)])
        axes.set_yticks([])
        axes.set_title(label)
    for axes in panels[len(grams) :]:
        axes.set_axis_off()
    figure.supxlabel("bases, by head", fontsize=10)
    figure.colorbar(image, ax=panels, label="inner product of two bases", shrink=0.8)
    return figure


def angle_matrix(angles: list[Row]) -> Figure:
    """The mean principal angle between any two heads, with lines between the layers."""
    heads = list(dict.fromkeys((row[layer], row[head]) for row in angles for layer, head in ENDS))
    matrix = torch.zeros(len(heads), len(heads))
    for row in angles:
        i, j = (heads.index((row[layer], row[head])) for layer, head in ENDS)
        matrix[i, j] = matrix[j, i] = row["mean"]
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(matrix.numpy(), cmap="cividis", vmin=0, vmax=90)
    labels = [f"{layer}.{head}" for layer, head in heads]
    axes.set_xticks(range(len(heads)), labels, rotation=90)
    axes.set_yticks(range(len(heads)), labels)
    for index in range(1, len(heads)):
        if heads[index][0] != heads[index - 1][0]:
            axes.axhline(index - 0.5, color="white", lw=1.5)
            axes.axvline(index - 0.5, color="white", lw=1.5)
    if len(heads) <= 12:
        for i in range(len(heads)):
            for j in range(len(heads)):
                color = "white" if matrix[i, j] < 50 else "black"
                axes.text(j, i, f"{matrix[i, j]:.0f}", ha="center", va="center", color=color, fontsize=8)
    axes.set_xlabel("layer.head")
    axes.set_ylabel("layer.head")
    figure.colorbar(image, label="mean principal angle (degrees)")
    return figure


def gram_of_classes(gram: Tensor, classes: Sequence[str]) -> Figure:
    """The mean of Q Q^T over the images, (C, C)."""
    figure = Figure(figsize=(5.6, 4.8), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(gram.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    if len(classes) <= MAX_CLASS_NAMES:
        axes.set_xticks(range(len(classes)), classes, rotation=90, parse_math=False)
        axes.set_yticks(range(len(classes)), classes, parse_math=False)
    else:
        axes.set_xlabel("class")
        axes.set_ylabel("class")
    figure.colorbar(image, label="cosine of two class embeddings, mean over images")
    return figure
