"""Report text: the directions of classes in the head `subspaces`."""

from __future__ import annotations

from depict.analysis.base import Result
from depict.analysis.verdict import Answer, Verdict, together

TITLE = "Does a class take more than one direction?"
ABOUT = (
    "The head “subspaces” gives each class a few directions uₖ, and adds their energies wₖ (uₖ · z)² to the logit of a "
    "patch z. So a class is a subspace and not a single direction, as the paper's appendix argues. A patch belongs to "
    "the direction of its predicted class with the largest |wₖ (uₖ · z)²|. A direction with a negative weight is one "
    "that patches of the class should not have. This analysis, which is not in the paper, counts the directions, shows "
    "where they are in the images, and measures what the squares decide: the predicted class is compared with that of "
    "the same logits without them."
)
CAPTIONS = {
    "shares": "The most frequent predicted classes, each divided by the directions that its patches belong to.",
    "images": "The directions are shades of the color of the class: the most frequent one has the color itself, the "
    "next is lighter, the third darker, and so on.",
}


SEVERAL, DECIDED = 1.5, 5.0
"""Directions in use from which on there are several, and percent of the patches from which on they decide."""


def verdict(result: Result) -> Verdict:
    """Whether several directions are in use, and whether they decide the class."""
    used, changed = _directions_in_use(result), result.numbers["patches that get another class without the squares (%)"]
    assert changed is not None
    claims: list[Answer] = ["holds" if claim else "does not hold" for claim in (used >= SEVERAL, changed >= DECIDED)]
    directions = len(result.data["classes"][0]["shares"])
    number = f"{used:.1f} of {directions} directions in use; without them {changed:.1f} % of the patches change class"
    return Verdict(together(*claims), number)


def _directions_in_use(result: Result) -> float:
    """Effective number, in the class of an average patch."""
    used = next(value for name, value in result.numbers.items() if name.startswith("directions in use"))
    assert used is not None
    return used


def findings(result: Result) -> list[str]:
    """What the squares decide, then how many directions are in use and whether they differ."""
    numbers, rows = result.numbers, result.data["classes"]
    changed, right, without = list(numbers.values())[:3]
    accuracy = (
        f" {right:.1f} % of the labeled patches get the right class, without the squares {without:.1f} %."
        if right is not None
        else ""
    )
    used = _directions_in_use(result)
    within = numbers["mean |cosine| of two directions of a class"]
    most = max(rows, key=lambda row: row["directions_used"])
    cosine = (
        ""
        if within is None
        else f" Two directions of a class have a mean |cosine| of {within:.2f}; random ones have "
        f"{numbers['the same for random directions']:.2f}."
    )
    return [
        f"Without the squares, {changed:.1f} % of the patches get another class.{accuracy}",
        f"An average patch is in a class that uses {used:.1f} of {len(rows[0]['shares'])} directions (effective "
        f"number); {most['class']} uses most, {most['directions_used']:.1f}.{cosine}",
    ]
