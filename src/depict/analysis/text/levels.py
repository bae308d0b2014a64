"""Report text: the energy of the levels."""

from __future__ import annotations

from depict.analysis.base import Result
from depict.analysis.levels import MeasuredLevels
from depict.analysis.verdict import Verdict

TITLE = "Does every level of the encoder add to the tokens?"
ABOUT = (
    "The neck brings the levels of the encoder to one grid: each is normalized, mapped to the dimension of the tokens, "
    "enlarged bilinearly and added. It is linear after the norms, so a token z is the sum of the contributions c of "
    "the levels, and its energy |z|² is the sum of the products c · z. Their share of the energy is measured over all "
    "tokens and for the tokens of each class, without the mean over the tokens of an image, which tells no token from "
    "another. The share of a level is negative if it cancels part of the others."
)
CAPTIONS = {
    "energy": "Share of the energy that each level contributes, for all tokens and for those of each class. Negative "
    "shares are not drawn; the others then add up to more than 100 %.",
    "maps": "What each level contributes to every token of the first images: the squared length of its contribution, "
    "on one scale for all levels of an image.",
}
LITTLE = 0.05
"""A level with a smaller share of the energy adds little."""


def verdict(result: Result) -> Verdict:
    """Whether each level has at least 5 % of the energy."""
    measured: MeasuredLevels = result.measured
    heard = int((measured.shares >= LITTLE).sum())
    number = ", ".join(f"{name} {100 * share:.0f} %" for name, share in _shares(measured))
    if heard == len(measured.names):
        return Verdict("holds", number)
    return Verdict("partly" if heard > 1 else "does not hold", number)


def findings(result: Result) -> list[str]:
    """The level with the largest share, and the classes that lean most on each level."""
    measured: MeasuredLevels = result.measured
    name, share = max(_shares(measured), key=lambda pair: pair[1])
    texts = [f"{name} contributes the most, {100 * share:.0f} % of the energy, over {result.data['images']:,} images."]
    if len(measured.by_class) > 1:
        leaning = []
        for index, level in enumerate(measured.names):
            of_class = max(measured.by_class, key=lambda label: measured.by_class[label][index].item())
            leaning.append(f"{level} {of_class} ({100 * measured.by_class[of_class][index]:.0f} %)")
        texts.append(f"The class whose tokens owe the most to each level: {', '.join(leaning)}.")
    return texts


def _shares(measured: MeasuredLevels) -> list[tuple[str, float]]:
    return list(zip(measured.names, measured.shares.tolist(), strict=True))
