"""Figures of the levels: their energy by class, and on the first images."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from depict.analysis.base import Result
from depict.analysis.levels import MeasuredLevels
from depict.viz.patches import on_pixels
from depict.viz.style import COLORS, add_grid


def figures(result: Result) -> dict[str, Figure]:
    """The energy by class, and a map for each level of the first images."""
    return {"energy": energy_by_class(result.measured), "maps": maps_of_levels(result.measured)}


def energy_by_class(measured: MeasuredLevels) -> Figure:
    """Stacked bars: one for all tokens, one for each class."""
    rows = {"all tokens": measured.shares, **measured.by_class}
    figure = Figure(figsize=(7, 1.3 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    starts = np.zeros(len(rows))
    for index, name in enumerate(measured.names):
        widths = np.array([100 * max(0.0, shares[index].item()) for shares in rows.values()])
        axes.barh(list(rows), widths, 0.7, starts, color=COLORS[index % len(COLORS)], label=name)
        starts += widths
    axes.invert_yaxis()
    axes.set_xlabel("share of the energy of the tokens (%)")
    add_grid(axes, "x")
    figure.legend(loc="outside upper center", ncols=min(5, len(measured.names)), frameon=False)
    return figure


def maps_of_levels(measured: MeasuredLevels) -> Figure:
    """A row for each image: the image, then the energy of each level at every token, on one scale."""
    shapes = [each.image.shape for each in measured.images.values()]
    heights = [height / width for height, width, _ in shapes]
    columns = 1 + len(measured.names)
    cell = 7 / columns
    figure = Figure(figsize=(7, cell * sum(heights) + 0.1 * len(heights) + 1.1), layout="constrained")
    grid = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    for row, each in zip(grid, measured.images.values(), strict=True):
        size = (each.image.shape[0], each.image.shape[1])
        row[0].imshow(each.image)
        top = np.quantile(each.energy, 0.99)
        for axes, values in zip(row[1:], each.energy, strict=True):
            shown = axes.imshow(on_pixels(values, size, each.cells) / top, cmap="magma", vmin=0, vmax=1)
    for axes, title in zip(grid[0], ["image", *measured.names], strict=True):
        axes.set_title(title, fontsize=10)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    figure.colorbar(shown, ax=grid, location="bottom", shrink=0.4, aspect=30, label="energy, scaled for each image")
    return figure
