"""Figures of the directions of classes: maps of the first images, and how often each direction is used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from depict.analysis.base import Result
from depict.analysis.class_directions import DirectionMap, MeasuredDirections
from depict.analysis.figures.principal import maps_of_images, shade
from depict.analysis.principal import thumbnail
from depict.data.palette import Color
from depict.viz.patches import on_pixels, paint
from depict.viz.style import COLORS, add_grid

MAX_CLASSES = 30


def figures(result: Result) -> dict[str, Figure]:
    """Maps of the first images, and the shares of the directions."""
    measured: MeasuredDirections = result.measured
    drawn = {"shares": shares_by_class(measured)}
    if measured.images:
        shades = direction_colors(measured)
        present = sorted({int(label) for image in measured.images for label in np.unique(image.labels)})
        legend = {measured.names[label]: measured.palette[label] for label in present}
        drawn["images"] = maps_of_images([panels(image, measured.palette, shades) for image in measured.images], legend)
    return drawn


def direction_colors(measured: MeasuredDirections) -> dict[int, Color]:
    """The color of direction k of class c by c * K + k: the most frequent one has the color of the class."""
    colors, K = {}, measured.counts.shape[1]
    for label, (color, counts) in enumerate(zip(measured.palette, measured.counts, strict=True)):
        for rank, k in enumerate(counts.argsort(descending=True, stable=True).tolist()):
            colors[label * K + k] = shade(color, rank) if rank else color
    return colors


def panels(image: DirectionMap, palette: Sequence[Color], shades: dict[int, Color]) -> dict[str, np.ndarray]:
    """The image, its classes, and its directions as shades of the class colors."""
    classes, K = dict(enumerate(palette)), len(shades) // len(palette)

    def enlarged(values: np.ndarray, colors: dict[int, Color]) -> np.ndarray:
        return thumbnail(on_pixels(paint(values, colors), image.size, image.cells))

    return {
        "input": image.image,
        "classes": enlarged(image.labels, classes),
        "directions": enlarged(image.labels * K + image.directions, shades),
    }


def shares_by_class(measured: MeasuredDirections) -> Figure:
    """A bar for each of the most frequent predicted classes, divided by the directions of its patches."""
    patches = measured.counts.sum(1)
    shown = [index for index in patches.argsort(descending=True).tolist() if patches[index] > 0][:MAX_CLASSES]
    figure = Figure(figsize=(6.5, 0.8 + 0.24 * len(shown)), layout="constrained")
    axes = figure.subplots()
    start = np.zeros(len(shown))
    for k in range(measured.counts.shape[1]):
        share = 100 * (measured.counts[shown, k] / patches[shown]).numpy()
        axes.barh(range(len(shown)), share, left=start, color=COLORS[k % len(COLORS)], label=f"direction {k + 1}")
        start += share
    axes.set_yticks(range(len(shown)), [measured.names[index] for index in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="patches of the class (%)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=8)
    add_grid(axes, "x")
    return figure
