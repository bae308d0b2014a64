"""Report text: PCA as a segmenter."""

from __future__ import annotations

from depict.analysis.base import Result
from depict.analysis.principal import DIRECTIONS, METHODS, MeasuredSegments
from depict.analysis.verdict import Verdict, by_share, together

TITLE = "Do the layers make it easier for PCA to segment the image?"
ABOUT = (
    f"The first {DIRECTIONS} principal directions of an image's patch embeddings are used as centroids, and each patch "
    "is assigned to the direction u with the largest |u·z| (paper, figures “Image Segmentation via PCA and DEPICT”). "
    "The paper finds that this over-segments the encoder's embeddings Z0 and works better on Z_L1, the patch "
    "embeddings after the last step that moves them. It does not say whether the mean is subtracted first, so both "
    "are measured: “PCA” uses the eigenvectors of ZZᵀ as the appendix does, “PCA, centered” those of the covariance. "
    f"For comparison: k-means with {DIRECTIONS} clusters, and the model's own masks, all on the patch grid. Segments "
    "are connected regions of one label; the over-segmentation index is their number per true segment. The best-match "
    "mIoU matches directions and classes of an image one to one (Hungarian method); a class without a direction "
    "counts as 0. The adjusted Rand index needs no matching."
)
CAPTIONS = {
    "images": "Directions and clusters have the color of the class that they match best; the remaining ones have "
    "lighter or darker shades of the class that most of their patches belong to. Gray is ignored. Z_L1: after the "
    "last step that moves the patches. Every image has such a picture of its own among the files below.",
    "stages": "Mean over the images at every stage, from the encoder's Z0 to Z_L1, the last one. Dashed: the model's "
    "own masks. In the first panel, 1 means as many segments as the truth has; in the others, higher is better.",
}


def verdict(result: Result) -> Verdict:
    """On which share of the images PCA segments Z_L1 better than Z0, and into fewer segments."""
    measured = result.measured
    if not measured.scores:
        return Verdict("does not apply", "the images have no ground truth")
    if measured.stages[-1] == "Z0":
        return Verdict("does not apply", "no step of this decoder moves Z")
    fewer, better, images = _claims("PCA", measured)
    before, after = (measured.means()[stage, "PCA"]["best_match_miou"] for stage in ("Z0", measured.stages[-1]))
    number = f"better on {better}, fewer segments on {fewer} of {images} images; best-match mIoU {100 * before:.1f} % "
    return Verdict(together(by_share(better / images), by_share(fewer / images)), f"{number}→ {100 * after:.1f} %")


def _claims(method: str, measured: MeasuredSegments) -> tuple[int, int, int]:
    """On how many images Z_L1 has fewer segments than Z0, on how many better ones, and of how many images."""
    pairs = list(zip(measured.scores["Z0", method], measured.scores[measured.stages[-1], method], strict=True))
    fewer = sum(before.over_segmentation > after.over_segmentation for before, after in pairs)
    better = sum(before.best_match_miou < after.best_match_miou for before, after in pairs)
    return fewer, better, len(pairs)


def findings(result: Result) -> list[str]:
    """How each method changes from Z0 to Z_L1."""
    measured = result.measured
    if not measured.scores:
        return ["The images have no ground truth: there are pictures, but no numbers."]
    if measured.stages[-1] == "Z0":
        return ["This decoder has no steps that move Z: Z_L1 is Z0."]
    return [_change(method, measured) for method in METHODS]


def _change(method: str, measured: MeasuredSegments) -> str:
    """How a method changes from Z0 to Z_L1, and on how many images the paper's claims hold."""
    first, last = ("Z0", method), (measured.stages[-1], method)
    means = measured.means()
    before, after = means[first], means[last]
    claims = "."
    if method != "k-means":
        fewer, better, images = _claims(method, measured)
        claims = (
            f". The paper's claim that PCA over-segments Z0 more than Z_L1 holds in {fewer} of {images} images, the "
            f"claim that it segments Z_L1 better than Z0 in {better}."
        )
    return (
        f"{method}: from Z0 to Z_L1 ({measured.stages[-1]}), the over-segmentation index changes from "
        f"{before['over_segmentation']:.2f} to {after['over_segmentation']:.2f}, the best-match mIoU from "
        f"{100 * before['best_match_miou']:.1f} to {100 * after['best_match_miou']:.1f} %, the adjusted Rand index "
        f"from {before['adjusted_rand']:.3f} to {after['adjusted_rand']:.3f}{claims}"
    )
