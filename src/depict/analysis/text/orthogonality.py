"""Report text: the orthonormality of bases and class embeddings."""

from __future__ import annotations

import math
import statistics

from depict.analysis.base import Result
from depict.analysis.orthogonality import MeasuredGrams, mean, mean_angles, random_cosine
from depict.analysis.verdict import Answer, Verdict, together

TITLE = "Are the bases P and the class embeddings Q orthonormal?"
ABOUT = (
    "The derivation assumes orthonormal bases P. The class embeddings Q play the role of principal directions, which "
    "are orthonormal, too (paper, figures “gram”, “more-para-dot” and “more-cls-dot”). P is measured as trained, for "
    "every head and for all heads of a layer; Q is the final class embeddings of every image, at unit length as the "
    "masks use them. In many dimensions the Gram matrix of random rows already looks like the identity, so every "
    "number is compared with that of random directions. Segmenter has no P: as in the paper, the rows of its query "
    "matrix are used instead."
)
CAPTIONS = {
    "bases": "P Pᵀ of every layer, rows as trained; lines separate the heads. Orthonormal bases give an identity: full "
    "color on the diagonal, blank elsewhere. Full color is the mean squared norm of a basis.",
    "angles": "Mean principal angle between the spans of any two heads, in degrees; lines separate the layers. 0 means "
    "the same subspace, 90 orthogonal subspaces.",
    "classes": "Mean of Q Qᵀ over the images, class embeddings at unit length. Orthogonal classes give an identity.",
}


CLOSE, CHANCE = 0.1, 1.1
"""Distance to the identity below which rows count as orthonormal; |cosine| over that of random directions."""


def verdict(result: Result) -> Verdict:
    """Orthonormal, or at least as orthogonal as random directions."""
    measured, answers, parts = result.measured, [], []
    D = measured.dim
    if measured.layers:
        heads = result.tables["heads"]
        answers.append(_answer(mean(heads, "distance"), mean(heads, "mean_abs_cosine"), D))
        parts.append(f"bases of a head {mean(heads, 'mean_abs_cosine'):.3f}")
    if measured.class_gram is not None:
        images = result.data["classes"]["per_image"]
        answers.append(_answer(mean(images, "unit_distance"), mean(images, "mean_abs_cosine"), D))
        parts.append(f"class embeddings {mean(images, 'mean_abs_cosine'):.3f}")
    return Verdict(together(*answers), f"mean |cos|: {', '.join(parts)}; random directions {random_cosine(D):.3f}")


def _answer(distance: float, cosine: float, D: int) -> Answer:
    if distance < CLOSE:
        return "holds"
    return "partly" if cosine <= CHANCE * random_cosine(D) else "does not hold"


def findings(result: Result) -> list[str]:
    """Paragraphs on the bases, on the angles between heads, and on the class embeddings."""
    measured = result.measured
    paragraphs = []
    if measured.layers:
        paragraphs += _bases(result, measured)
        paragraphs += _angles(result)
    if measured.class_gram is not None:
        paragraphs.append(_class_embeddings(result, measured))
    return paragraphs


def _bases(result: Result, measured: MeasuredGrams) -> list[str]:
    heads = result.tables["heads"]
    P = next(iter(measured.layers.values()))
    M, D = P.shape[1:]
    rows = "query rows" if next(iter(measured.layers)).startswith("mhsa") else "bases"
    cosine, distance = mean(heads, "mean_abs_cosine"), mean(heads, "distance")
    random_distance = statistics.fmean(math.sqrt((row["bases"] - 1) / D) for row in heads)
    verdict = "close to orthonormal" if distance < CLOSE else "not orthonormal in the strict sense"
    paragraphs = [
        f"{_compared_with_random(cosine, D, rows)} Two {rows} of a head have a mean |cosine| of {cosine:.3f}; random "
        f"directions in {D} dimensions have {random_cosine(D):.3f}. The norms average {mean(heads, 'mean_norm'):.2f} "
        f"with a spread of {100 * mean(heads, 'norm_spread'):.0f} %. The distance of P' P'ᵀ to the identity is "
        f"{distance:.2f} per row ({mean(heads, 'unit_distance'):.2f} at unit length; random directions "
        f"{random_distance:.2f}; orthonormal 0): {verdict}. From its figure the paper concludes that DEPICT's bases "
        "are “very close to being orthonormal” and that Segmenter's norms are “too small”."
    ]
    if P.shape[0] * M > D:
        shared = 2 * min(M, D) - D
        paragraphs.append(
            f"A layer has {P.shape[0] * M} {rows} in {D} dimensions, so they cannot all be orthogonal"
            + (f", and any two heads of {M} share at least {shared} dimensions." if shared > 0 else ".")
        )
    return paragraphs


def _angles(result: Result) -> list[str]:
    angles = result.tables["angles"]
    pairs = {"the same layer": mean_angles(angles, True), "different layers": mean_angles(angles, False)}
    parts = [
        f"heads of {which} {pair['mean']:.1f}° (random subspaces {pair['random_mean']:.1f}°), with "
        f"{pair['overlap'] / pair['random_overlap']:.2f} times the overlap of random ones"
        for which, pair in pairs.items()
        if pair
    ]
    if not parts:
        return []
    return [
        f"Mean principal angles: {'; '.join(parts)}. Above 1, spans share more than chance; below 1, they avoid each "
        "other."
    ]


def _class_embeddings(result: Result, measured: MeasuredGrams) -> str:
    images = result.data["classes"]["per_image"]
    C, D = len(measured.classes), measured.dim
    cosines = [image["mean_abs_cosine"] for image in images]
    cosine = mean(images, "mean_abs_cosine")
    return (
        f"{_compared_with_random(cosine, D, 'class embeddings')} Over {len(images):,} images, two class embeddings "
        f"have a mean |cosine| of {cosine:.3f} (± {statistics.pstdev(cosines):.3f} over images; random directions "
        f"{random_cosine(D):.3f}), and their effective rank is {mean(images, 'effective_rank'):.1f} of {min(C, D)}. "
        "The paper calls DEPICT's class embeddings very close to orthonormal and Segmenter's excessively related."
    )


def _compared_with_random(cosine: float, D: int, what: str) -> str:
    """The verdict in a sentence, given the mean |cosine| in D dimensions."""
    chance = random_cosine(D)
    if cosine < 0.9 * chance:
        return f"The {what} are more orthogonal than random directions."
    if cosine <= CHANCE * chance:
        return f"The {what} are as orthogonal as random directions, no more."
    return f"The {what} are less orthogonal than random directions: they share directions."
