"""Figures of PCA as a segmenter: maps of the first images, scores at every stage, and a picture of every image."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from depict.analysis.base import Result
from depict.analysis.partitions import Contingency, Labels
from depict.analysis.principal import MASKS, METHODS, SegmentedImage, thumbnail
from depict.data.dataset import IGNORE
from depict.data.palette import Color
from depict.viz.overlays import PAPER, draw_legend
from depict.viz.patches import UNKNOWN, on_pixels, paint
from depict.viz.style import COLORS, MARKERS, add_grid
from depict.viz.symbols import as_mathtext

MAX_IMAGES = 4
"""Images in the figure; every image has a picture of its own."""
CAPTION, GAP = 20, 8
"""Pixels above and between the panels of a picture."""
SEGMENT_PANELS = {
    "PCA on Z0": ("Z0", "PCA"),
    "PCA on Z_L1": ("Z_L1", "PCA"),
    "centered, Z0": ("Z0", "PCA, centered"),
    "centered, Z_L1": ("Z_L1", "PCA, centered"),
    "k-means, Z0": ("Z0", "k-means"),
    "k-means, Z_L1": ("Z_L1", "k-means"),
}
"""Title of each panel, with its stage and method."""
Panels = dict[str, NDArray[np.uint8]]


def figures(result: Result) -> dict[str, Figure]:
    """Maps of the first images, and the scores at every stage if there is ground truth."""
    measured = result.measured
    drawn = {}
    if measured.images:
        first = list(measured.images.values())[:MAX_IMAGES]
        present = sorted({label for image in first for label in class_shares(image)})
        legend = {measured.classes[label]: measured.palette[label] for label in present}
        drawn["images"] = maps_of_images([image_panels(image, measured.palette) for image in first], legend)
    if measured.scores:
        drawn["stages"] = scores_by_stage(measured.means(), measured.stages)
    return drawn


def pictures(result: Result) -> dict[str, bytes]:
    """The panels of every image as PNG, sorted by name."""
    measured = result.measured
    drawn = {}
    for name, image in sorted(measured.images.items()):
        panels = image_panels(image, measured.palette)
        drawn[name] = panels_as_png(panels, measured.classes, measured.palette, class_shares(image))
    return drawn


def class_shares(image: SegmentedImage) -> dict[int, float]:
    """The share of each class in the labels of an image, or in its masks if it has none."""
    labels = image.masks if image.truth is None else image.truth
    counts = np.bincount(labels[labels != IGNORE].ravel())
    return {int(label): counts[label] / max(1, counts.sum()) for label in np.flatnonzero(counts)}


def image_panels(image: SegmentedImage, palette: Sequence[Color]) -> Panels:
    """The panels of one image by title; segments have the colors of the classes that they match."""
    colors = dict(enumerate(palette))

    def enlarged(labels: Labels, colors: dict[int, Color]) -> NDArray[np.uint8]:
        return thumbnail(on_pixels(paint(labels, colors), image.size, image.cells))

    panels = {"input": image.image}
    if image.truth is not None:
        panels["truth"] = paint(image.truth, colors)
    panels[MASKS] = enlarged(image.masks, colors)
    for title, key in SEGMENT_PANELS.items():
        segments = image.segments[key]
        panels[title] = enlarged(segments, part_colors(image.reference, segments, palette))
    return panels


def part_colors(truth: Labels, parts: Labels, palette: Sequence[Color]) -> dict[int, Color]:
    """A color for each part (h, w): that of its matched class in `truth` (h, w).

    Parts without a match get shades of the class that most of their patches have; gray if that is unknown.
    """
    colors: dict[int, Color] = {int(part): UNKNOWN for part in np.unique(parts)}
    if (truth == IGNORE).all():
        return colors
    table = Contingency.of(truth, parts)
    matches, _ = table.match()
    colors |= {part: palette[label] for part, label in matches.items()}
    extra: dict[int, int] = {}
    for column, part in enumerate(table.parts.tolist()):
        if part not in matches:
            label = int(table.classes[table.counts[:, column].argmax()])
            extra[label] = extra.get(label, 0) + 1
            colors[part] = shade(palette[label], extra[label])
    return colors


def shade(color: Color, number: int) -> Color:
    """Lighter for odd and darker for even numbers, more so with each pair."""
    target, share = (255 if number % 2 else 0), min(0.8, 0.3 + 0.15 * ((number - 1) // 2))
    red, green, blue = (round((1 - share) * value + share * target) for value in color)
    return red, green, blue


def panels_as_png(panels: Panels, classes: Sequence[str], palette: Sequence[Color], shares: dict[int, float]) -> bytes:
    """The panels of one image in three rows (image, truth, masks; segments of Z0; those of Z_L1), and a legend."""
    segments = list(SEGMENT_PANELS)
    rows = ([title for title in panels if title not in segments], segments[::2], segments[1::2])
    height, width = panels["input"].shape[:2]
    column, line = max(width, 110) + GAP, height + CAPTION + GAP
    legend = draw_legend(3 * column + GAP, classes, palette, shares)
    sheet = Image.new("RGB", (legend.width, 3 * line + GAP + legend.height), PAPER)
    sheet.paste(legend, (0, 3 * line + GAP))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for y, titles in zip(range(GAP, 3 * line, line), rows, strict=True):
        for x, title in zip(range(GAP, 3 * column, column), titles, strict=False):
            draw.text((x, y), title, "black", font)
            sheet.paste(Image.fromarray(panels[title]), (x, y + CAPTION))
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def maps_of_images(images: Sequence[Panels], legend: dict[str, Color]) -> Figure:
    """A column for each image, a row for each panel, and the colors of the classes below."""
    titles = list(images[0])
    height, width = images[0]["input"].shape[:2]
    cell = min(1.7, 6.6 / len(images))
    layout = ConstrainedLayoutEngine(w_pad=0.015, h_pad=0.015, wspace=0.01, hspace=0.01)
    columns = max(2, len(images))
    legend_height = 0.22 * -(-len(legend) // columns) + 0.1
    size = (len(images) * cell + 0.35, len(titles) * cell * height / width + legend_height)
    figure = Figure(figsize=size, layout=layout)
    rows = figure.subplots(len(titles), len(images), squeeze=False)
    for row, title in zip(rows, titles, strict=True):
        row[0].set_ylabel(as_mathtext(title), fontsize=11)
        for axes, panels in zip(row, images, strict=True):
            if title in panels:
                axes.imshow(panels[title], interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
    patches = [Patch(color=[value / 255 for value in color], label=name) for name, color in legend.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    return figure


def scores_by_stage(means: dict[tuple[str, str], dict[str, float]], stages: list[str]) -> Figure:
    """A panel for each score with a line for each method; the score of the model's masks is dashed."""
    figure = Figure(figsize=(6.5, 6.5), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    labels = {
        "over_segmentation": ("segments per\ntrue segment", 1),
        "best_match_miou": ("best-match mIoU (%)", 100),
        "adjusted_rand": ("adjusted Rand index", 1),
    }
    for axes, (score, (label, scale)) in zip(panels, labels.items(), strict=True):
        for index, method in enumerate(METHODS):
            values = [scale * means[stage, method][score] for stage in stages]
            axes.plot(stages, values, MARKERS[index] + "-", color=COLORS[index], label=method, ms=5)
        axes.axhline(scale * means[MASKS, MASKS][score], color="#444444", ls="--", lw=1, label=MASKS)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]), top=1.05 * axes.get_ylim()[1])
        add_grid(axes)
    panels[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=8)
    panels[-1].set_xticks(range(len(stages)), [as_mathtext("Z0"), *stages[1:]])
    panels[-1].set_xlabel("patch embeddings after")
    return figure
