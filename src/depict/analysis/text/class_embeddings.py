"""Report text: the class embeddings across images."""

from __future__ import annotations

import statistics

import torch

from depict.analysis.base import Result
from depict.analysis.class_embeddings import ENERGY
from depict.analysis.verdict import Answer, Verdict

TITLE = "Are the class embeddings of all images in a union of orthogonal subspaces?"
ABOUT = (
    "For each image the decoder ends with one unit-length embedding per class. The paper (figure “Inner product of "
    "class embeddings across images”, 30 classes and 100 images) groups them by class and finds that different "
    "classes are nearly orthogonal, while the embeddings of one class share a low-dimensional subspace. Here an "
    "embedding counts in an image if its class is the most frequent one in at least one patch of the ground truth (of "
    "the prediction, if there is no ground truth); the JSON file also has the numbers over all classes in all images. "
    f"The subspace of a class is the smallest principal one that holds {100 * ENERGY:.0f} % of the sum of squares. The "
    "score of the union of orthogonal subspaces is 1 minus the mean squared cosine of the principal angles between "
    "the subspaces of two classes, over all pairs: 1 if all are orthogonal, 0 if each contains the other. Random "
    "subspaces of these dimensions do not score 0, so their expected score is given for comparison."
)
CAPTIONS = {
    "gram": "Inner products of the final class embeddings of all images, sorted by class. Orthogonal subspaces would "
    "leave the blocks off the diagonal blank."
}
NEAR_ONE = 0.9


def verdict(result: Result) -> Verdict:
    """Whether the score is near 1, or at least above chance."""
    union = result.measured.union
    above = union.score > union.chance
    answer: Answer = "does not hold"
    if above:
        answer = "holds" if union.score >= NEAR_ONE else "partly"
    return Verdict(answer, f"score {union.score:.2f} of 1; random subspaces have {union.chance:.2f}")


def findings(result: Result) -> list[str]:
    """The score compared with chance, the cosines behind it, and the worst pair."""
    measured, images = result.measured, result.data["images"]
    names, union = measured.names, measured.union
    overlaps = union.overlaps - torch.eye(len(names), dtype=torch.float64)
    i, j = divmod(int(overlaps.argmax()), len(names))
    side = "above" if union.score > union.chance else "below"
    few = "" if images >= 100 else f" (the paper shows 100 images, these are {images})"
    return [
        f"The subspaces score {union.score:.3f}, {side} the {union.chance:.3f} of random ones of the same dimensions. "
        "Nearly orthogonal subspaces, as the paper claims, have a score near 1 and a mean |cos| between classes near "
        f"0. Here two embeddings of one class have a mean |cos| of {union.within:.3f}, of different classes "
        f"{union.between:.3f}. A class takes {statistics.fmean(union.dimensions):.1f} of "
        f"{result.data['dimension of the embeddings']} dimensions on average. The two classes that overlap most are "
        f"{names[i]} and {names[j]} ({float(overlaps[i, j]):.3f}). This is based on {measured.embeddings} embeddings "
        f"of {len(names)} classes from {images} images{few}."
    ]
