"""The figure of `depict pca`."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depict.analysis.pca import PatchMaps
from depict.data.palette import Color, distinct_colors
from depict.viz.patches import on_pixels, paint

WIDTH = 3.0
"""Of a panel, in inches."""


def pca_figure(picture: np.ndarray, embeddings: dict[str, PatchMaps], cells: tuple[float, float]) -> Figure:
    """A row for each kind of embeddings: input, directions, clusters, components; shares as bars below.

    The picture (H, W, 3) covers `cells` rows and columns of patches.
    """
    size = (picture.shape[0], picture.shape[1])
    height = min(6.0, max(0.6, WIDTH * size[0] / size[1]))
    figure = Figure(figsize=(4 * WIDTH, len(embeddings) * (height + 0.75)), layout="constrained")
    rows = figure.subplots(2 * len(embeddings), 4, height_ratios=[height, 0.25] * len(embeddings), squeeze=False)
    for panel_row, bar_row, (name, maps) in zip(rows[::2], rows[1::2], embeddings.items(), strict=True):
        shares = maps.shares()
        colors = dict(enumerate(distinct_colors(max(len(parts) for parts in shares.values()))))
        label = name.replace("Z_L1", "$Z_{L_1}$").replace("Z0", "$Z_0$")
        panels = {
            "input": picture,
            f"PCA on {label}: {len(maps.energy)} directions": on_pixels(paint(maps.labels["PCA"], colors), size, cells),
            f"k-means on {label}": on_pixels(paint(maps.labels["k-means"], colors), size, cells),
            f"first three components of {label}": on_pixels(maps.components, size, cells),
        }
        for axes, (title, panel) in zip(panel_row, panels.items(), strict=True):
            axes.imshow(panel, interpolation="nearest")
            axes.set_title(title, fontsize=10)
            axes.set_axis_off()
        for axes in bar_row:
            axes.set_axis_off()
        for axes, parts in zip(bar_row[1:3], shares.values(), strict=True):
            _share_bar(axes, parts, colors)
    return figure


def _share_bar(axes: Axes, shares: list[float], colors: dict[int, Color]) -> None:
    """One bar with a segment for each part, and its percentage where there is room."""
    left = 0.0
    for part, share in enumerate(shares):
        axes.barh(0, share, left=left, color=[value / 255 for value in colors[part]], edgecolor="white", lw=0.5)
        if share >= 0.06:
            ink = "black" if sum(colors[part]) > 300 else "white"
            axes.text(left + share / 2, 0, f"{100 * share:.0f} %", ha="center", va="center", fontsize=7, color=ink)
        left += share
    axes.set(xlim=(0, 1), ylim=(-0.4, 0.4))
