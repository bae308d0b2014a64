"""PCA as a segmenter: principal directions as centroids, on the encoder's embeddings and after every layer.

Paper section 3.2, figures "Image Segmentation via PCA and DEPICT". The paper says neither whether Z is centered nor how
a patch is assigned to a direction. Both readings of the first are measured: eigenvectors of Z Z^T as in its appendix,
and of the covariance. A patch is assigned to the direction with the largest |u^T z|, because the sign of an eigenvector
is arbitrary.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor

from depict.analysis.base import Analysis, Result, Sample
from depict.analysis.kmeans import Floats, kmeans
from depict.analysis.partitions import Labels, Scores, compare
from depict.data.dataset import IGNORE
from depict.decoders.base import Trace

if TYPE_CHECKING:
    from depict.model import SegmentationModel

DIRECTIONS = 10
"""As in the paper."""
THUMBNAIL = 240
"""Longest side in pixels of the images that are kept for the figures."""
MASKS = "model's masks"


def principal_directions(Z: Floats, count: int = DIRECTIONS, centered: bool = False) -> tuple[Floats, Floats]:
    """The leading directions U (count, D) of Z (N, D), and the share of the energy on each (count,), paper eq. (1).

    The energy is the sum of squares of Z, or of Z minus its mean. There are at most D directions.
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


METHODS = {
    "PCA": pca_segments,
    "PCA, centered": lambda Z: pca_segments(Z, centered=True),
    "k-means": lambda Z: kmeans(Z, DIRECTIONS),
}
"""Patch embeddings (N, D) to segments (N,)."""


def stages(trace: Trace) -> dict[str, Floats]:
    """The patch embeddings (N, D) of the first image by name: the encoder's Z0, then after every step that moves Z.

    The last one is the paper's Z_L1. MSCA steps move Q only.
    """
    embeddings: dict[str, Tensor | None] = {"Z0": trace.tokens}
    if trace.steps and trace.Z0 is not trace.tokens and not _equal(trace.Z0, trace.tokens):
        embeddings["projected"] = trace.Z0
    counts: dict[str, int] = {}
    for step in trace.steps:
        if not step.operator.startswith("msca"):
            counts[step.operator] = counts.get(step.operator, 0) + 1
            embeddings[f"{step.operator} {counts[step.operator]}"] = step.Z
    return {name: Z[0].cpu().numpy() for name, Z in embeddings.items() if Z is not None}


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and bool((a == b).all())


@dataclass
class SegmentedImage:
    """One image and its segments at the first and the last stage, for the figures."""

    image: NDArray[np.uint8]
    """Thumbnail (h, w, 3)."""
    truth: NDArray[np.uint8] | None
    """Thumbnail of the labels (h, w)."""
    size: tuple[int, int]
    """Of the full image."""
    cells: tuple[float, float]
    """Rows and columns of patches that the image covers."""
    masks: Labels
    """The model's labels on the patch grid (h, w)."""
    reference: Labels
    """Labels (h, w) on the patch grid that segments are matched with: the truth, or the masks if there is none."""
    segments: dict[tuple[str, str], Labels]
    """By stage (Z0, Z_L1) and method, on the patch grid (h, w)."""


def thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Every n-th pixel of (h, w, ...), which keeps flat colors and labels."""
    step = -(-max(pixels.shape[:2]) // THUMBNAIL)
    return pixels[step // 2 :: step, step // 2 :: step]


@dataclass
class MeasuredSegments:
    """Scores and segments of all images, for figures and text."""

    stages: list[str]
    scores: dict[tuple[str, str], list[Scores]]
    """By stage and method, one per labeled image."""
    images: dict[str, SegmentedImage]
    """By name, in the order of the pass."""
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]

    def means(self) -> dict[tuple[str, str], dict[str, float]]:
        """Mean of every score, and its standard deviation over the images as NAME_spread."""
        return {key: _summary(scores) for key, scores in self.scores.items()}


class Principal(Analysis):
    """PCA as a segmenter, layer by layer."""

    name = "principal"

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        self.measured = MeasuredSegments([], {}, {}, model.classes, model.palette)

    def update(self, sample: Sample) -> None:
        """Segment one image at every stage by every method."""
        trace, grid = sample.trace, sample.trace.grid
        assert trace.masks is not None
        masks = trace.masks[0].argmax(0).numpy()
        truth = None if sample.patch_labels is None else sample.patch_labels.view(grid).numpy()
        embeddings = stages(trace)
        segments = {
            (stage, method): segment(Z).reshape(grid)
            for stage, Z in embeddings.items()
            for method, segment in METHODS.items()
        }
        if truth is not None and (truth != IGNORE).any():
            for key, labels in (segments | {(MASKS, MASKS): masks}).items():
                self.measured.scores.setdefault(key, []).append(compare(truth, labels))
        self.measured.stages = list(embeddings)
        last = self.measured.stages[-1]
        size = (sample.image.shape[0], sample.image.shape[1])
        self.measured.images[sample.name] = SegmentedImage(
            image=thumbnail(sample.image).copy(),
            truth=None if sample.labels is None else thumbnail(sample.labels.numpy()).copy(),
            size=size,
            cells=self.model.layout(*size).cells(self.model.stride),
            masks=masks,
            reference=masks if truth is None else truth,
            segments={
                (name, method): segments[stage, method]
                for name, stage in (("Z0", "Z0"), ("Z_L1", last))
                for method in METHODS
            },
        )

    def compute(self) -> Result:
        """Means over the labeled images at every stage."""
        result = Result(measured=self.measured)
        if not self.measured.scores:
            return result
        means, last = self.measured.means(), self.measured.stages[-1]
        rows: list[dict[str, Any]] = [
            {"stage": stage, "method": method} | scores for (stage, method), scores in means.items()
        ]
        result.tables["stages"] = rows
        images = len(self.measured.scores[MASKS, MASKS])
        result.data = {"directions": DIRECTIONS, "images": images, "Z_L1": last, "stages": rows}
        ends = (("Z0", "Z0"), (last, "Z_L1"))
        for method in METHODS:
            for stage, name in ends:
                result.numbers[f"{method} on {name}: best-match mIoU (%)"] = (
                    100 * means[stage, method]["best_match_miou"]
                )
        for stage, name in ends:
            result.numbers[f"PCA on {name}: over-segmentation"] = means[stage, "PCA"]["over_segmentation"]
            result.numbers[f"PCA on {name}: adjusted Rand index"] = means[stage, "PCA"]["adjusted_rand"]
        of_masks = means[MASKS, MASKS]
        result.numbers["masks: best-match mIoU (%)"] = 100 * of_masks["best_match_miou"]
        result.numbers["masks: over-segmentation"] = of_masks["over_segmentation"]
        result.numbers["masks: adjusted Rand index"] = of_masks["adjusted_rand"]
        return result


def _summary(scores: list[Scores]) -> dict[str, float]:
    summary: dict[str, float] = {}
    for name, values in zip(Scores._fields, zip(*scores, strict=True), strict=True):
        summary[name] = statistics.fmean(values)
        summary[f"{name}_spread"] = statistics.pstdev(values)
    return summary
