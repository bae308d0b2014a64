"""Figures of queries: which query each patch belongs to, the masks of the largest ones, and queries by class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from depict.analysis.base import Result
from depict.analysis.figures.principal import maps_of_images, shade
from depict.analysis.principal import thumbnail
from depict.analysis.queries import MAX_MASKS, MeasuredQueries, QueryMap
from depict.data.palette import Color
from depict.viz.patches import on_pixels, paint
from depict.viz.style import COLORS, add_grid

MAX_CLASSES = 30
FADED = 0.12
"""Share of the picture that shows outside of a mask."""


def figures(result: Result) -> dict[str, Figure]:
    """Maps of the first images, their masks, and the queries of each class."""
    measured: MeasuredQueries = result.measured
    present = sorted({int(label) for image in measured.images for label in np.unique(image.labels)})
    legend = {measured.names[label]: measured.palette[label] for label in present}
    return {
        "images": maps_of_images([panels(image, measured.palette) for image in measured.images], legend),
        "masks": masks_of_images(measured),
        "classes": queries_by_class(result),
    }


def panels(image: QueryMap, palette: Sequence[Color]) -> dict[str, np.ndarray]:
    """The image, its classes, and its queries as shades of the class colors."""
    numbers, colors = np.zeros_like(image.labels), dict[int, Color]()
    for label in np.unique(image.labels).tolist():
        inside = image.labels == label
        found, counts = np.unique(image.queries[inside], return_counts=True)
        for rank, query in enumerate(found[counts.argsort(kind="stable")[::-1]].tolist()):
            number = len(colors)
            numbers[inside & (image.queries == query)] = number
            colors[number] = shade(palette[label], rank) if rank else palette[label]

    def enlarged(values: np.ndarray, own: dict[int, Color]) -> np.ndarray:
        return thumbnail(on_pixels(paint(values, own), image.size, image.cells))

    return {
        "input": image.image,
        "classes": enlarged(image.labels, dict(enumerate(palette))),
        "queries": enlarged(numbers, colors),
    }


def masks_of_images(measured: MeasuredQueries) -> Figure:
    """A row for each image, which shows through the masks of the queries with most patches and fades outside."""
    images = measured.images
    height, width = images[0].image.shape[:2]
    cell = 7.0 / MAX_MASKS
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0.01, hspace=0.01)
    figure = Figure(figsize=(7.0, len(images) * (cell * height / width + 0.3)), layout=layout)
    for row, image in zip(figure.subplots(len(images), MAX_MASKS, squeeze=False), images, strict=True):
        for axes in row:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for axes, each in zip(row, image.masks, strict=False):
            share = FADED + (1 - FADED) * thumbnail(on_pixels(each.mask, image.size, image.cells))[..., None]
            axes.imshow((share * image.image + 255 * (1 - share)).astype(np.uint8))
            axes.spines[:].set(visible=True, linewidth=2, color=[value / 255 for value in measured.palette[each.label]])
            axes.set_title(f"{measured.names[each.label][:14]} {each.probability:.2f}\n#{each.query}", fontsize=7)
    return figure


def queries_by_class(result: Result) -> Figure:
    """For the most frequent predicted classes: queries and connected parts in an image, and queries over all images."""
    rows = sorted(result.data["classes"], key=lambda row: -row["patches"])[:MAX_CLASSES]
    figure = Figure(figsize=(6.5, 0.9 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots()
    bars = {
        "queries in an image": "effective_queries_per_image",
        "connected parts in an image": "connected_parts_per_image",
        "queries over all images": "effective_queries_over_images",
    }
    for index, (label, key) in enumerate(bars.items()):
        places = np.arange(len(rows)) + 0.27 * (index - 1)
        axes.barh(places, [row[key] for row in rows], height=0.25, color=COLORS[index], label=label)
    axes.set_yticks(range(len(rows)), [row["class"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("number (of queries: effective number)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8)
    add_grid(axes, "x")
    return figure
