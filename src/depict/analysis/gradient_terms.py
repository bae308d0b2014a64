"""The four terms of self-attention on [Z, Q] (appendix "Understanding self-attention applied to the concatenation")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depict.analysis.base import Result, Analysis, Sample
from depict.analysis.steps import mssa_blocks, mssa_steps, why_no_mssa
from depict.decoders.base import JointDecoder
from depict.operators import attention_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from depict.model import SegmentationModel

TERMS = ("Z Zᵀ Z", "Q Qᵀ Z", "Z Zᵀ Q", "Q Qᵀ Q")
"""The first two go into the patches, the last two into the classes."""
COLUMNS = ("ZZZ", "QQZ", "ZZQ", "QQQ")
"""Their names in tables."""


def four_terms(W: Tensor, V: Tensor) -> Tensor:
    """Frobenius norms of Z Z^T Z, Q Q^T Z, Z Z^T Q, Q Q^T Q for coordinates W (..., N, M) of Z and V (..., C, M) of Q.

    As in the appendix: no softmax, no scale. From Gram matrices: |W V^T V|^2 = tr(B A B), A = W^T W, B = V^T V.
    """
    A, B = W.double().mT @ W.double(), V.double().mT @ V.double()
    squares = [_trace(A, A), _trace(B, A), _trace(A, B), _trace(B, B)]
    return torch.stack(squares, dim=-1).clamp_min(0).sqrt()


def _trace(outer: Tensor, inner: Tensor) -> Tensor:
    """tr(outer inner outer) of symmetric matrices (..., M, M)."""
    return ((outer @ inner) * outer).sum((-2, -1))


def softmax_terms(W: Tensor, V: Tensor) -> Tensor:
    """The same four norms as the released operator has them: softmax over all keys, scaled by M^-1/2: (..., 4)."""
    N, X = W.shape[-2], torch.cat([W, V], dim=-2)
    A = attention_weights(X, X, X.shape[-1] ** -0.5)
    from_Z, from_Q = A[..., :N] @ W, A[..., N:] @ V
    parts = (from_Z[..., :N, :], from_Q[..., :N, :], from_Z[..., N:, :], from_Q[..., N:, :])
    return torch.stack([part.norm(dim=(-2, -1)) for part in parts], dim=-1)


class GradientTerms(Analysis):
    """Which of the four terms move patches and classes."""

    name = "gradient_terms"
    title = "Which of the four terms of self-attention on patches and classes matter?"
    about = (
        "DEPICT-SA runs self-attention on patches and classes together. Without the softmax, the paper's appendix "
        "(“Understanding self-attention applied to the concatenation”) splits its step into four terms: Z Zᵀ Z and "
        "Q Qᵀ Z move the patches, Z Zᵀ Q and Q Qᵀ Q the classes. Z Zᵀ Q is cross-attention, which is why DEPICT-SA "
        "needs no MSCA; the objective behind Q Qᵀ Z is unknown to the authors. How large are they? Measured are the "
        "Frobenius norms in the subspace of every head, of the normalized tokens that the operator sees, per token "
        "(divided by √N for patches, √C for classes), as in the appendix and with the released softmax."
    )

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        decoder = model.decoder
        self.joint = isinstance(decoder, JointDecoder) and bool(mssa_blocks(decoder))
        self.plain: list[Tensor] = []
        self.soft: list[Tensor] = []

    @torch.no_grad()
    def update(self, sample: Sample) -> None:
        """Measure every head of every layer."""
        if not self.joint:
            return
        plain, soft = [], []
        for step in mssa_steps(self.model.decoder, sample.trace):
            coordinates = step.normed() @ step.P.mT.float()
            W, V = coordinates[:, : step.patches], coordinates[:, step.patches :]
            N, C = W.shape[-2], V.shape[-2]
            per_token = torch.tensor([N, N, C, C], dtype=torch.float64).sqrt()
            plain.append(four_terms(W, V) / per_token)
            soft.append(softmax_terms(W, V).double() / per_token)
        self.plain.append(torch.stack(plain))
        self.soft.append(torch.stack(soft))

    def compute(self) -> Result:
        """Sizes and shares."""
        if not self.plain:
            return Result(skipped=self._why_not())
        plain, soft = torch.stack(self.plain), torch.stack(self.soft)
        result = Result(
            data={
                "axes": "layer, head, term " + " ".join(COLUMNS),
                "images": len(plain),
                "plain": plain.mean(0).tolist(),
                "softmax": soft.mean(0).tolist(),
            },
            tables={"terms": term_rows(plain, soft)},
            figures={"terms": draw(plain, soft)},
            captions={
                "terms": "Size per token of the four terms in every layer, on logarithmic scales: mean over heads "
                "and images, standard deviation over images. Left: as in the appendix; right: with the released "
                "softmax. Open marks are terms with Q Qᵀ, filled ones with Z Zᵀ."
            },
        )
        for name, terms in (("without softmax", plain), ("with softmax", soft)):
            result.numbers[f"share of Q Qᵀ Z in what moves the patches (%), {name}"] = 100 * share(terms, 1, 0)
            result.numbers[f"share of Z Zᵀ Q in what moves the classes (%), {name}"] = 100 * share(terms, 2, 3)
        result.text = words(plain, soft)
        return result

    def _why_not(self) -> str:
        name = self.model.config.decoder.name
        if not mssa_blocks(self.model.decoder):
            return why_no_mssa(name)
        return (
            f"The decoder '{name}' keeps patches and classes apart: no class ever moves a patch or another class, so "
            "Q Qᵀ Z and Q Qᵀ Q do not exist, and its cross-attention is the term Z Zᵀ Q alone."
        )


def share(terms: Tensor, one: int, other: int) -> float:
    """Mean of |one| / (|one| + |other|) over images, layers and heads, (..., 4)."""
    return (terms[..., one] / (terms[..., one] + terms[..., other])).mean().item()


def term_rows(plain: Tensor, soft: Tensor) -> list[dict[str, Any]]:
    """A row for every layer's every head, means and standard deviations over the images."""
    rows = []
    for layer in range(plain.shape[1]):
        for head in range(plain.shape[2]):
            row: dict[str, Any] = {"layer": layer + 1, "head": head + 1}
            for kind, terms in (("plain", plain), ("softmax", soft)):
                for index, name in enumerate(COLUMNS):
                    own = terms[:, layer, head, index]
                    row[f"{kind}_{name}"] = own.mean().item()
                    row[f"{kind}_{name}_spread"] = own.std(correction=0).item()
            rows.append(row)
    return rows


def words(plain: Tensor, soft: Tensor) -> list[str]:
    """What came out, in sentences."""
    paragraphs = []
    for kind, terms in (("As in the appendix, without softmax", plain), ("With the released softmax", soft)):
        into_Z, into_Q = share(terms, 1, 0), share(terms, 2, 3)
        by_layer = ", ".join(
            f"{100 * share(terms[:, layer], 1, 0):.1f} and {100 * share(terms[:, layer], 2, 3):.1f} %"
            for layer in range(terms.shape[1])
        )
        paragraphs.append(
            f"{kind}: Q Qᵀ Z is {100 * into_Z:.1f} % of what moves the patches, and cross-attention Z Zᵀ Q is "
            f"{100 * into_Q:.1f} % of what moves the classes (by layer: {by_layer})."
        )
    into_Z, into_Q = share(soft, 1, 0), share(soft, 2, 3)
    unknown = (
        "is small here: leaving it unexplained costs little"
        if into_Z < 0.1
        else "is not small here: the classes move the patches, which the derivation does not explain"
    )
    crossing = (
        "cross-attention rules the classes, as the paper argues"
        if into_Q > 0.5
        else "the classes listen more to themselves than to the patches, so that cross-attention is not what rules them"
    )
    paragraphs.append(f"The term without a known objective {unknown}; {crossing} (both with the softmax).")
    return paragraphs


def draw(plain: Tensor, soft: Tensor) -> Figure:
    """Bars for the four terms in every layer, (images, layers, heads, 4)."""
    from matplotlib.figure import Figure

    from depict.viz.style import COLORS

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    places = figure.subplots(1, 2)
    marks = (("o", COLORS[0]), ("o", COLORS[4]), ("s", COLORS[2]), ("s", COLORS[3]))
    for place, terms, title in zip(places, (plain, soft), ("without softmax", "with softmax"), strict=True):
        means = terms.mean(2)
        mean, spread = means.mean(0).numpy(), means.std(0, correction=0).numpy()
        for index, (name, (marker, color)) in enumerate(zip(TERMS, marks, strict=True)):
            place.errorbar(
                [layer + 1 + 0.14 * (index - 1.5) for layer in range(len(mean))],
                mean[:, index],
                yerr=spread[:, index],
                fmt=marker,
                capsize=3,
                ms=7,
                color=color,
                mfc="white" if index % 2 else color,
                label=name,
            )
        place.set_yscale("log")
        place.set_xlim(0.5, len(mean) + 0.5)
        place.set_xticks(range(1, len(mean) + 1))
        place.set_xlabel("layer")
        place.set_title(title, fontsize=10)
        place.grid(axis="y", color="#dddddd")
        place.set_axisbelow(True)
    places[0].set_ylabel("size per token (Frobenius)")
    handles, labels = places[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure
