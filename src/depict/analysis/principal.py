"""PCA as segmenter: principal directions as centroids, on the encoder's embeddings and after every layer.

Paper section 3.2, figures "Image Segmentation via PCA and DEPICT". The paper does not say whether Z is centered, nor
how a patch finds its direction. Here both readings of the first stand side by side: eigenvectors of Z Z^T as in its
appendix, and of the covariance; and a patch belongs to the direction with the largest |u^T z|, since the sign of an
eigenvector means nothing.
"""

from __future__ import annotations

import io
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy.cluster.vq import kmeans2
from scipy.linalg import eigh
from torch import Tensor

from depict.analysis.partitions import Contingency, Labels, Scores, compare
from depict.analysis.base import Result, Analysis, Sample
from depict.data.dataset import IGNORE
from depict.data.palette import Color
from depict.decoders.base import Trace
from depict.viz.style import COLORS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from depict.model import SegmentationModel

Floats = NDArray[np.floating]

DIRECTIONS = 10
"""As in the paper."""
STARTS = 3
"""Of k-means, of which the best is kept."""
SHOWN = 4
"""Images in the figure; every image has a picture of its own."""
THUMBNAIL = 240
"""Longest side of a panel, in pixels."""
CAPTION, GAP = 20, 8
"""Pixels above and between the panels of a picture."""
UNKNOWN: Color = (225, 225, 222)
"""Color of what is ignored."""
MASKS = "model's masks"


def principal_directions(Z: Floats, count: int = DIRECTIONS, centered: bool = False) -> tuple[Floats, Floats]:
    """The leading directions U (count, D) of Z (N, D), and the share of the energy on each (count,), paper eq. (1).

    Energy is the sum of squares of Z, or of Z minus its mean; there are never more directions than dimensions.
    """
    values = Z.astype(np.float64)
    values = values - values.mean(0) if centered else values
    dim = values.shape[1]
    gram = values.T @ values
    energies, vectors = eigh(gram, subset_by_index=(max(0, dim - count), dim - 1))
    return vectors.T[::-1], energies[::-1].clip(0) / max(float(gram.trace()), np.finfo(np.float64).tiny)


def pca_segments(Z: Floats, count: int = DIRECTIONS, centered: bool = False) -> Labels:
    """The principal direction of each patch, the one with the largest |u^T z|: Z (N, D) -> (N,)."""
    U, _ = principal_directions(Z, count, centered)
    values = Z - Z.mean(0) if centered else Z
    return np.abs(values @ U.T).argmax(1)


def kmeans_segments(Z: Floats, count: int = DIRECTIONS, seed: int = 0) -> Labels:
    """The k-means cluster of each patch, Z (N, D) -> (N,): the best of a few starts by k-means++ from a seed."""
    values, rng = Z.astype(np.float64), np.random.default_rng(seed)
    distinct = min(count, len(np.unique(Z, axis=0)))
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of empty clusters: fewer are an result as well
        for _ in range(STARTS):
            centroids, labels = kmeans2(values, distinct, iter=20, minit="++", seed=rng)
            found.append((float(np.square(values - centroids[labels]).sum()), labels))
    return min(found, key=lambda one: one[0])[1]


METHODS = {
    "PCA": pca_segments,
    "PCA, centered": lambda Z: pca_segments(Z, centered=True),
    "k-means": kmeans_segments,
}


def stages(trace: Trace) -> dict[str, Floats]:
    """The patch embeddings (N, D) of the first image by name: Z0 of the encoder, then after every step that moves Z.

    The last one is the paper's Z_L1. MSCA steps move Q only.
    """
    found: dict[str, Tensor | None] = {"Z0": trace.tokens}
    if trace.steps and trace.Z0 is not trace.tokens and not _same(trace.Z0, trace.tokens):
        found["projected"] = trace.Z0
    counts: dict[str, int] = {}
    for step in trace.steps:
        if step.operator != "msca":
            counts[step.operator] = counts.get(step.operator, 0) + 1
            found[f"{step.operator} {counts[step.operator]}"] = step.Z
    return {name: Z[0].cpu().numpy() for name, Z in found.items() if Z is not None}


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape and bool((one == other).all())


def on_pixels(labels: NDArray[Any], size: tuple[int, int], cells: tuple[float, float]) -> NDArray[Any]:
    """Values (h, w, ...) of patches as pixels of an image of `size`, which covers `cells` rows and columns of them."""
    rows, columns = (
        ((np.arange(length) + 0.5) / length * covered).astype(int) for length, covered in zip(size, cells, strict=True)
    )
    return labels[rows][:, columns]


def part_colors(truth: Labels, found: Labels, palette: Sequence[Color]) -> dict[int, Color]:
    """A color for each part of `found` (h, w): that of its matched class in `truth` (h, w).

    Parts beyond the classes get shades of the class that most of their patches have; gray where that is unknown.
    """
    colors: dict[int, Color] = {int(part): UNKNOWN for part in np.unique(found)}
    if (truth == IGNORE).all():
        return colors
    table = Contingency.of(truth, found)
    pairs, _ = table.match()
    colors |= {part: palette[name] for part, name in pairs.items()}
    extra: dict[int, int] = {}
    for column, part in enumerate(table.parts.tolist()):
        if part not in pairs:
            name = int(table.classes[table.counts[:, column].argmax()])
            extra[name] = extra.get(name, 0) + 1
            colors[part] = _shade(palette[name], extra[name])
    return colors


def _shade(color: Color, number: int) -> Color:
    """Lighter and darker in turn, further with each pair."""
    target, share = (255 if number % 2 else 0), min(0.8, 0.3 + 0.15 * ((number - 1) // 2))
    red, green, blue = (round((1 - share) * value + share * target) for value in color)
    return red, green, blue


def paint(labels: Labels, colors: dict[int, Color]) -> NDArray[np.uint8]:
    """Labels (h, w) as a picture (h, w, 3); what has no color is `UNKNOWN`."""
    table = np.full((max(256, int(labels.max()) + 1), 3), UNKNOWN, np.uint8)
    for label, color in colors.items():
        table[label] = color
    return table[labels]


@dataclass
class _Row:
    """One image: its panels in the order of the figure, the last six of them the maps of Z0 and Z_L1 in turn."""

    panels: dict[str, NDArray[np.uint8]]


class Principal(Analysis):
    """PCA as segmenter, layer by layer."""

    name = "principal"
    title = "Does PCA segment the image, and does each layer make it easier?"
    about = (
        f"The first {DIRECTIONS} principal directions of an image's patch embeddings are taken as centroids, and each "
        "patch goes to the direction u with the largest |u·z| (paper, figures “Image Segmentation via PCA and "
        "DEPICT”). The paper finds that this over-segments the encoder's embeddings Z0 and works better on Z_L1, the "
        "patch embeddings after the last step that moves them. Its text leaves open whether the mean is taken off "
        "first, so both are measured: “PCA” takes the eigenvectors of ZZᵀ as the appendix does, “PCA, centered” those "
        f"of the covariance. k-means with {DIRECTIONS} clusters stands beside them, and the model's own masks, all on "
        "the grid of patches. Segments are connected pieces of one label; the over-segmentation index counts them per "
        "segment of the truth. The best-match mIoU pairs directions and classes of an image one to one (Hungarian "
        "method); a class without a direction counts as 0. The adjusted Rand index needs no pairing."
    )

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        self.scores: dict[tuple[str, str], list[Scores]] = {}
        """By stage and method, one for each labeled image."""
        self.rows: list[_Row] = []
        """Of the images in the figure."""
        self.pictures: dict[str, bytes] = {}
        """By name of the image, as PNG: all of them as arrays would be large."""
        self.stages: list[str] = []

    def update(self, sample: Sample) -> None:
        """Segment one image at every stage by every method."""
        trace, grid = sample.trace, sample.trace.grid
        assert trace.masks is not None
        masks = trace.masks[0].argmax(0).numpy()
        truth = None if sample.patch_labels is None else sample.patch_labels.view(grid).numpy()
        labeled = truth is not None and bool((truth != IGNORE).any())
        found = stages(trace)
        self.stages = list(found)
        parts = {
            (stage, method): segment(Z).reshape(grid)
            for stage, Z in found.items()
            for method, segment in METHODS.items()
        }
        if truth is not None and labeled:
            for key, labels in (parts | {(MASKS, MASKS): masks}).items():
                self.scores.setdefault(key, []).append(compare(truth, labels))
        row = self._row(sample, masks, masks if truth is None else truth, parts)
        self.pictures[sample.name] = _picture(row)
        if len(self.rows) < SHOWN:
            self.rows.append(row)

    def _row(self, sample: Sample, masks: Labels, truth: Labels, parts: dict[tuple[str, str], Labels]) -> _Row:
        """The panels of one image: clusters in the colors of the classes that they match."""
        palette = dict(enumerate(self.model.palette))
        size = (sample.image.shape[0], sample.image.shape[1])
        inner = self.model.sliding_window().layout(*size, 1.0).size
        cells = (inner[0] / self.model.patch_size[0], inner[1] / self.model.patch_size[1])
        panels = {"input": sample.image}
        if sample.labels is not None:
            panels["truth"] = paint(sample.labels.numpy(), palette)
        panels[MASKS] = on_pixels(paint(masks, palette), size, cells)
        last = self.stages[-1]
        for title, key in (
            ("PCA on Z0", ("Z0", "PCA")),
            ("PCA on Z_L1", (last, "PCA")),
            ("centered, Z0", ("Z0", "PCA, centered")),
            ("centered, Z_L1", (last, "PCA, centered")),
            ("k-means, Z0", ("Z0", "k-means")),
            ("k-means, Z_L1", (last, "k-means")),
        ):
            colors = part_colors(truth, parts[key], self.model.palette)
            panels[title] = on_pixels(paint(parts[key], colors), size, cells)
        return _Row({title: _thumbnail(panel) for title, panel in panels.items()})

    def compute(self) -> Result:
        """Means over the images, the picture, and whether the layers helped."""
        result = Result()
        if self.rows:
            result.figures["images"] = _draw_images(self.rows)
            result.captions["images"] = (
                "Directions and clusters have the color of the class that they match best; those beyond the classes "
                "have lighter or darker shades of the class that most of their patches belong to. Gray is ignored. "
                f"Z_L1: after {self.stages[-1]}. Each of the {len(self.pictures)} images has such a picture of its own "
                "among the files below."
            )
            result.pictures = dict(sorted(self.pictures.items()))
        if not self.scores:
            result.text = ["The images have no ground truth: there are pictures, and no numbers."]
            return result
        rows: list[dict[str, Any]] = [
            {"stage": stage, "method": method} | _summary(scores) for (stage, method), scores in self.scores.items()
        ]
        means = {(row["stage"], row["method"]): row for row in rows}
        images, last = len(self.scores[MASKS, MASKS]), self.stages[-1]
        result.tables["stages"] = rows
        result.data = {"directions": DIRECTIONS, "images": images, "Z_L1": last, "stages": rows}
        result.figures["stages"] = _draw_stages(means, self.stages)
        result.captions["stages"] = (
            f"Mean over {images} images at every stage, from the encoder's Z0 to Z_L1 ({last}). Dashed: the model's "
            "own masks. In the first panel 1 means as many segments as the truth has; in the others higher is better."
        )
        for method in METHODS:
            for stage, name in (("Z0", "Z0"), (last, "Z_L1")):
                result.numbers[f"{method} on {name}: best-match mIoU (%)"] = (
                    100 * means[stage, method]["best_match_miou"]
                )
        for stage, name in (("Z0", "Z0"), (last, "Z_L1")):
            result.numbers[f"PCA on {name}: over-segmentation"] = means[stage, "PCA"]["over_segmentation"]
            result.numbers[f"PCA on {name}: adjusted Rand index"] = means[stage, "PCA"]["adjusted_rand"]
        result.numbers["masks: best-match mIoU (%)"] = 100 * means[MASKS, MASKS]["best_match_miou"]
        result.numbers["masks: over-segmentation"] = means[MASKS, MASKS]["over_segmentation"]
        result.numbers["masks: adjusted Rand index"] = means[MASKS, MASKS]["adjusted_rand"]
        if last == "Z0":
            result.text = ["This decoder has no steps that move Z: Z_L1 is Z0."]
        else:
            result.text = [self._words(method, means, last) for method in METHODS]
        return result

    def _words(self, method: str, means: dict[tuple[str, str], dict[str, Any]], last: str) -> str:
        """How a method changed from Z0 to Z_L1, and on how many images."""
        before, after = means["Z0", method], means[last, method]
        pairs = list(zip(self.scores["Z0", method], self.scores[last, method], strict=True))
        fewer = sum(b.over_segmentation > a.over_segmentation for b, a in pairs)
        better = sum(b.best_match_miou < a.best_match_miou for b, a in pairs)
        claims = []
        for name, holds in (("over-segments Z0 more than Z_L1", fewer), ("segments Z_L1 better than Z0", better)):
            claims.append(f"that PCA {name} holds in {holds} of {len(pairs)} images")
        against = f"; the paper's claim {claims[0]}, and {claims[1]}." if method != "k-means" else "."
        return (
            f"{method}: from Z0 to Z_L1 the over-segmentation index went from {before['over_segmentation']:.2f} to "
            f"{after['over_segmentation']:.2f}, the best-match mIoU from {100 * before['best_match_miou']:.1f} to "
            f"{100 * after['best_match_miou']:.1f} %, the adjusted Rand index from {before['adjusted_rand']:.3f} to "
            f"{after['adjusted_rand']:.3f}{against}"
        )


def _summary(scores: list[Scores]) -> dict[str, float]:
    """Mean of every score, and its standard deviation over the images."""
    found: dict[str, float] = {}
    for name, values in zip(Scores._fields, zip(*scores, strict=True), strict=True):
        found[name] = statistics.fmean(values)
        found[f"{name}_spread"] = statistics.pstdev(values)
    return found


def _thumbnail(panel: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Every n-th pixel, so that a page of pictures stays small and flat colors stay flat."""
    step = -(-max(panel.shape[:2]) // THUMBNAIL)
    return panel[step // 2 :: step, step // 2 :: step]


def _picture(row: _Row) -> bytes:
    """The panels of one image as PNG: image, truth and masks; the maps of Z0; those of Z_L1."""
    titles = list(row.panels)
    lines = (titles[:-6], titles[-6::2], titles[-5::2])
    height, width = row.panels["input"].shape[:2]
    column, line = max(width, 110) + GAP, height + CAPTION + GAP
    sheet = Image.new("RGB", (3 * column + GAP, 3 * line + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for y, shown in zip(range(GAP, 3 * line, line), lines, strict=True):
        for x, title in zip(range(GAP, 3 * column, column), shown, strict=False):
            draw.text((x, y), title, "black", font)
            sheet.paste(Image.fromarray(row.panels[title]), (x, y + CAPTION))
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _draw_images(rows: list[_Row]) -> Figure:
    """A column for each image, a row for each way to segment it."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    titles = list(rows[0].panels)
    height, width = rows[0].panels["input"].shape[:2]
    cell = min(1.7, 6.6 / len(rows))
    layout = ConstrainedLayoutEngine(w_pad=0.015, h_pad=0.015, wspace=0.01, hspace=0.01)
    figure = Figure(figsize=(len(rows) * cell + 0.35, len(titles) * cell * height / width), layout=layout)
    axes = figure.subplots(len(titles), len(rows), squeeze=False)
    for line, title in zip(axes, titles, strict=True):
        line[0].set_ylabel(title.replace("Z_L1", "$Z_{L_1}$").replace("Z0", "$Z_0$"), fontsize=11)
        for place, row in zip(line, rows, strict=True):
            if title in row.panels:
                place.imshow(row.panels[title], interpolation="nearest")
            place.set(xticks=[], yticks=[])
            place.spines[:].set_visible(False)
    return figure


def _draw_stages(means: dict[tuple[str, str], dict[str, Any]], names: list[str]) -> Figure:
    """A panel for each score: a line for each method over the stages, and the masks' own score across."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 6.5), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    labels = {
        "over_segmentation": ("segments per segment\nof the truth", 1),
        "best_match_miou": ("best-match mIoU (%)", 100),
        "adjusted_rand": ("adjusted Rand index", 1),
    }
    for axes, (score, (label, scale)) in zip(panels, labels.items(), strict=True):
        for index, method in enumerate(METHODS):
            values = [scale * means[stage, method][score] for stage in names]
            axes.plot(names, values, MARKERS[index] + "-", color=COLORS[index], label=method, ms=5)
        axes.axhline(scale * means[MASKS, MASKS][score], color="#444444", ls="--", lw=1, label=MASKS)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]), top=1.05 * axes.get_ylim()[1])
        axes.grid(color="#dddddd")
    _legend(panels[0])
    panels[-1].set_xticks(range(len(names)), ["$Z_0$", *names[1:]])
    panels[-1].set_xlabel("patch embeddings after")
    return figure


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=8)
