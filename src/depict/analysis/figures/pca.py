"""The figure of `depict pca`."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from depict.analysis.pca import PatchMaps
from depict.data.palette import Color, distinct_colors
from depict.viz.patches import on_pixels, paint
from depict.viz.symbols import as_mathtext

WIDTH, HEIGHT = 3.0, 6.0
"""Largest size of a panel, in inches."""
NARROW = 2.3
"""Width of a column with a narrow panel: its title needs as much."""
GAP, TITLE, BAR = 0.12, 0.3, 0.2
"""Inches between the parts, for a title, and for the bar of shares."""
SMALL = 7
"""Font size of the percentages."""


def pca_figure(picture: np.ndarray, embeddings: dict[str, PatchMaps], cells: tuple[float, float]) -> Figure:
    """A row for each kind of embeddings: input, directions, clusters, components; shares as bars below.

    The picture (H, W, 3) covers `cells` rows and columns of patches.
    """
    size = (picture.shape[0], picture.shape[1])
    inches = min(WIDTH / size[1], HEIGHT / size[0])
    width, height = max(0.1, inches * size[1]), max(0.1, inches * size[0])
    column, row = max(width, NARROW) + GAP, TITLE + height + GAP / 2 + BAR + GAP
    figure = Figure(figsize=(4 * column + GAP, len(embeddings) * row + GAP))

    def add_axes(x: float, y: float, tall: float) -> Axes:
        """Axes whose upper left corner is at (x, y) inches from that of the figure, without a frame."""
        across, down = figure.get_size_inches()
        axes = figure.add_axes((x / across, 1 - (y + tall) / down, width / across, tall / down))
        axes.set_axis_off()
        return axes

    for number, (name, maps) in enumerate(embeddings.items()):
        top, shares = number * row, maps.shares()
        colors = dict(enumerate(distinct_colors(max(len(parts) for parts in shares.values()))))
        label = as_mathtext(name)
        panels = {
            "input": picture,
            f"PCA on {label}: {len(maps.energy)} directions": on_pixels(paint(maps.labels["PCA"], colors), size, cells),
            f"k-means on {label}": on_pixels(paint(maps.labels["k-means"], colors), size, cells),
            f"first three components of {label}": on_pixels(maps.components, size, cells),
        }
        bars = [None, *shares.values(), None]
        for place, ((title, panel), parts) in enumerate(zip(panels.items(), bars, strict=True)):
            left = GAP + place * column
            axes = add_axes(left, top + TITLE, height)
            axes.imshow(panel, interpolation="nearest", aspect="auto")
            axes.set_title(title, loc="left", fontsize="medium", pad=4)
            if parts is not None:
                _share_bar(add_axes(left, top + TITLE + height + GAP / 2, BAR), parts, colors, width)
    return figure


def _share_bar(axes: Axes, shares: list[float], colors: dict[int, Color], inches: float) -> None:
    """One bar with a segment for each part, and its percentage where there is room; `inches` is the bar's width."""
    left = 0.0
    for part, share in enumerate(shares):
        axes.barh(0, share, 1, left, color=[value / 255 for value in colors[part]], edgecolor="white", lw=0.5)
        text = f"{100 * share:.0f} %"
        if TextPath((0, 0), text, size=SMALL).get_extents().width + 4 <= 72 * inches * share:
            ink = "black" if sum(colors[part]) > 300 else "white"
            axes.text(left + share / 2, 0, text, ha="center", va="center_baseline", fontsize=SMALL, color=ink)
        left += share
    axes.set(xlim=(0, 1), ylim=(-0.5, 0.5))
