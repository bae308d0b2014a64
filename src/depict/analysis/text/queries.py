"""Report text: the queries of a decoder that classifies masks."""

from __future__ import annotations

from depict.analysis.base import Result
from depict.analysis.queries import IN_USE
from depict.analysis.verdict import Verdict

TITLE = "Does a class use more than one query in an image?"
ABOUT = (
    "A decoder that classifies masks has K queries, each with a mask and a class. The score of a class at a patch is "
    "the sum over its queries, so a class may take several directions in one image, as the paper's appendix asks for. "
    "A patch belongs to the query that adds the most to the score of its predicted class. Queries of a class are "
    "counted by their effective number: 1 if one query has all its patches, n if n queries have equal shares. This "
    "analysis is not in the paper."
)
CAPTIONS = {
    "images": "The queries are shades of the color of the class: the one with most patches has the color itself, the "
    "next is lighter, the third darker, and so on.",
    "masks": "The picture through the masks of the queries with most patches. The frame has the color of the most "
    "probable class; above are its probability and the number of the query. Masks may overlap.",
    "classes": "The most frequent predicted classes: their queries in an image, their connected parts there, and the "
    "queries they use over all images.",
}
SEVERAL = 1.5
"""Effective number of queries from which on there are several."""


def verdict(result: Result) -> Verdict:
    """Whether the class of an average patch has several queries in its image."""
    used = _per_image(result)
    return Verdict("holds" if used >= SEVERAL else "does not hold", f"{used:.1f} queries for the class of a patch")


def _per_image(result: Result) -> float:
    used = next(iter(result.numbers.values()))
    assert used is not None
    return used


def findings(result: Result) -> list[str]:
    """Queries in an image, next to connected parts, then how fixed queries and classes are."""
    _, in_use, parts, single, over_images, classes, alive = result.numbers.values()
    queries = result.measured.counts.shape[1]
    most = max(result.data["classes"], key=lambda row: row["effective_queries_per_image"])
    return [
        f"The class of an average patch uses {_per_image(result):.1f} queries in its image (effective number). A class "
        f"has {parts:.1f} connected parts and {in_use:.1f} queries with at least {100 * IN_USE:.0f} % of its patches; "
        f"in {single:.0f} % of the cases it is one query. {most['class']} uses most, "
        f"{most['effective_queries_per_image']:.1f}.",
        f"Over all images a class uses {over_images:.1f} queries, and a query serves {classes:.1f} classes. "
        f"{alive:.0f} of {queries} queries have a patch in any image.",
    ]
