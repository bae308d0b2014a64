"""Figures for a dark page."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER, INK, GRID = "#1d2125", "#e3e5e8", "#3a4047"
"""Background, text and grid, as in page.css."""
COLOR_MAPS = {"RdBu_r": ("#8cc4ff", PAPER, "#ff9d80"), "Blues": (PAPER, "#2f6fb2", "#cfe6ff")}
"""What replaces the color maps that have white for 0."""
GRAY = 0.08
"""Largest difference between the channels of a gray."""


def dark_copy(figure: Figure) -> Figure:
    """The figure with light text and lines on a dark background. Colors stay, grays are inverted, photos are kept."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import Collection
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Text

    dark: Figure = pickle.loads(pickle.dumps(figure))  # matplotlib's way to copy a figure
    artists = dark.findobj(include_self=False)
    mapped = [each for each in artists if isinstance(each, ScalarMappable) and np.ndim(each.get_array()) in (1, 2)]  # type: ignore[arg-type]
    swapped = [each for each in mapped if each.get_cmap().name in COLOR_MAPS]  # heat maps and their color bars
    for each in swapped:
        name = each.get_cmap().name
        each.set_cmap(LinearSegmentedColormap.from_list(name, COLOR_MAPS[name]))
    kept = {
        id(artist) for axes in dark.axes for artist in (*axes.texts, *axes.lines) if set(axes.images) - set(swapped)
    }
    """What lies on top of a picture whose colors stay keeps its own, too."""
    for artist in artists:
        if id(artist) in kept or artist in mapped:
            continue
        if isinstance(artist, Text):
            artist.set_color(inverted(artist.get_color()))
        elif isinstance(artist, Line2D):
            filled, edge = artist.get_markerfacecolor(), artist.get_markeredgecolor()
            artist.set_color(inverted(artist.get_color()))
            artist.set_markerfacecolor(inverted(filled))
            artist.set_markeredgecolor(inverted(edge))
        elif isinstance(artist, (Patch, Collection)):
            faces, edges = artist.get_facecolor(), artist.get_edgecolor()
            artist.set_facecolor(inverted(faces))
            artist.set_edgecolor(inverted(edges))
    for axes in dark.axes:  # also those that are made when the figure is drawn
        axes.tick_params(which="both", color=INK, labelcolor=INK, grid_color=GRID)
    dark.set_facecolor(PAPER)
    return dark


def inverted(color: Any) -> NDArray[np.float64] | str:
    """Grays from white to black become those from PAPER to INK; dark colors get lighter. One color or (n, 4)."""
    from matplotlib.colors import to_rgba, to_rgba_array

    if isinstance(color, str) and color == "none":
        return color
    values = to_rgba_array(color)
    paper, ink = np.array(to_rgba(PAPER)[:3]), np.array(to_rgba(INK)[:3])
    rgb = values[:, :3]
    lightness = rgb.mean(1, keepdims=True)
    gray = np.ptp(rgb, 1)[:, None] < GRAY
    lighter = rgb + (1 - rgb) * 0.3 * (lightness < 0.45)
    values[:, :3] = np.where(gray, ink + (paper - ink) * lightness, lighter)
    return values[0] if isinstance(color, str) or np.ndim(color) == 1 else values
