"""Report text: the four terms of self-attention on patches and classes."""

from __future__ import annotations

from torch import Tensor

from depict.analysis.base import Result
from depict.analysis.gradient_terms import class_share, patch_share
from depict.analysis.verdict import Answer, Verdict, together

TITLE = "Do the classes follow the patches, and not the other way round?"
ABOUT = (
    "DEPICT-SA runs self-attention on patches and classes together. Without the softmax, the paper's appendix "
    "(“Understanding self-attention applied to the concatenation”) splits a step into four terms: Z Zᵀ Z and Q Qᵀ Z "
    "move the patches, Z Zᵀ Q and Q Qᵀ Q move the classes. Z Zᵀ Q is cross-attention, which is why DEPICT-SA needs no "
    "MSCA; the authors know no objective behind Q Qᵀ Z. The sizes are Frobenius norms in the subspace of every head, "
    "on the operator's input (normalized tokens), per token (divided by √N for patches, √C for classes), both without "
    "softmax as in the appendix and with the softmax of the released code."
)
CAPTIONS = {
    "terms": "Size per token of the four terms in every layer, on logarithmic scales: mean over heads and images, "
    "standard deviation over images. Left: without softmax, as in the appendix. Right: with the released softmax. "
    "Open markers are terms with Q Qᵀ, filled ones with Z Zᵀ."
}


SMALL, LARGE = 0.1, 0.5
"""Below SMALL a term may be neglected, above LARGE it dominates."""


def verdict(result: Result) -> Verdict:
    """Whether the unexplained term is small and cross-attention dominates, with softmax."""
    unexplained, cross = patch_share(result.measured.softmax), class_share(result.measured.softmax)
    claims: list[Answer] = ["holds" if claim else "does not hold" for claim in (unexplained < SMALL, cross > LARGE)]
    return Verdict(
        together(*claims),
        f"the patches (Z Zᵀ Q) make {100 * cross:.0f} % of what moves the classes, the classes (Q Qᵀ Z) "
        f"{100 * unexplained:.1f} % of what moves the patches",
    )


def findings(result: Result) -> list[str]:
    """Whether the two disputed terms matter, then their shares without and with softmax."""
    measured = result.measured
    return [
        _verdict(measured.softmax),
        _shares("With the released softmax", measured.softmax),
        _shares("Without softmax, as in the appendix", measured.plain),
    ]


def _verdict(softmax: Tensor) -> str:
    unexplained = (
        "is small here, so leaving it unexplained costs little"
        if patch_share(softmax) < SMALL
        else "is not small here: the classes move the patches, which the derivation does not explain"
    )
    cross_attention = (
        "Cross-attention dominates the update of the classes, as the paper argues"
        if class_share(softmax) > LARGE
        else "The classes attend more to each other than to the patches, so cross-attention does not dominate"
    )
    return f"Q Qᵀ Z, the term without a known objective, {unexplained}. {cross_attention} (both with softmax)."


def _shares(form: str, terms: Tensor) -> str:
    """The shares in terms (images, layers, heads, 4), and in each layer."""
    layers = ", ".join(
        f"{100 * patch_share(terms[:, layer]):.1f} and {100 * class_share(terms[:, layer]):.1f} %"
        for layer in range(terms.shape[1])
    )
    return (
        f"{form}, Q Qᵀ Z is {100 * patch_share(terms):.1f} % of what moves the patches, and cross-attention Z Zᵀ Q is "
        f"{100 * class_share(terms):.1f} % of what moves the classes (by layer: {layers})."
    )
