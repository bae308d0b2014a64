"""The answer to the question of an analysis in a word, with the number that it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Answer = Literal["holds", "partly", "does not hold", "does not apply", "failed"]
MOSTLY, HALF = 0.95, 0.5
"""Shares of the cases: a claim holds from MOSTLY on, and does not up to HALF."""


@dataclass(frozen=True)
class Verdict:
    """An answer and its number, such as "holds" and "on 100 of 100 images"."""

    answer: Answer
    number: str = ""


def by_share(share: float) -> Answer:
    """The answer to a claim that is true in this share of the cases."""
    if share >= MOSTLY:
        return "holds"
    return "partly" if share > HALF else "does not hold"


def together(*answers: Answer) -> Answer:
    """The answer to several claims at once: partly, unless all of them agree."""
    return answers[0] if len(set(answers)) == 1 else "partly"
