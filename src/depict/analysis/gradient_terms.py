"""The four terms of self-attention on [Z, Q] (appendix "Understanding self-attention applied to the concatenation")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depict.analysis.base import Analysis, Result, Sample
from depict.analysis.steps import mssa_blocks, mssa_steps, why_no_mssa
from depict.decoders.base import JointDecoder
from depict.operators import attention_weights

if TYPE_CHECKING:
    from depict.model import SegmentationModel

COLUMNS = ("ZZZ", "QQZ", "ZZQ", "QQQ")
"""Names of the terms in tables; the first two move the patches, the last two the classes."""


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
    """The same four norms for the released operator: softmax over all keys, scaled by M^-1/2: (..., 4)."""
    N, X = W.shape[-2], torch.cat([W, V], dim=-2)
    A = attention_weights(X, X, X.shape[-1] ** -0.5)
    from_Z, from_Q = A[..., :N] @ W, A[..., N:] @ V
    parts = (from_Z[..., :N, :], from_Q[..., :N, :], from_Z[..., N:, :], from_Q[..., N:, :])
    return torch.stack([part.norm(dim=(-2, -1)) for part in parts], dim=-1)


def patch_share(terms: Tensor) -> float:
    """Mean share of Q Q^T Z in what moves the patches, of terms (..., 4)."""
    return _mean_share(terms[..., 1], terms[..., 0])


def class_share(terms: Tensor) -> float:
    """Mean share of cross-attention Z Z^T Q in what moves the classes, of terms (..., 4)."""
    return _mean_share(terms[..., 2], terms[..., 3])


def _mean_share(part: Tensor, rest: Tensor) -> float:
    return (part / (part + rest)).mean().item()


@dataclass
class MeasuredTerms:
    """Size per token of the four terms, (images, layers, heads, 4) each."""

    plain: Tensor
    softmax: Tensor


class GradientTerms(Analysis):
    """Sizes of the four terms in every head of every layer."""

    name = "gradient_terms"

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        decoder = model.decoder
        blocks = mssa_blocks(decoder)
        self.joint = isinstance(decoder, JointDecoder) and bool(blocks) and not blocks[0].exact
        self.plain: list[Tensor] = []
        self.softmax: list[Tensor] = []

    @torch.no_grad()
    def update(self, sample: Sample) -> None:
        """Measure every head of every layer."""
        if not self.joint:
            return
        plain, softmax = [], []
        for step in mssa_steps(self.model.decoder, sample.trace):
            coordinates = step.normed() @ step.P.mT.float()
            W, V = coordinates[:, : step.patches], coordinates[:, step.patches :]
            N, C = W.shape[-2], V.shape[-2]
            per_token = torch.tensor([N, N, C, C], dtype=torch.float64).sqrt()
            plain.append(four_terms(W, V) / per_token)
            softmax.append(softmax_terms(W, V).double() / per_token)
        self.plain.append(torch.stack(plain))
        self.softmax.append(torch.stack(softmax))

    def compute(self) -> Result:
        """Sizes and shares."""
        if not self.plain:
            return Result(skipped=self._why_skipped())
        plain, softmax = torch.stack(self.plain), torch.stack(self.softmax)
        numbers: dict[str, float | None] = {}
        for name, terms in (("without softmax", plain), ("with softmax", softmax)):
            numbers[f"share of Q Qᵀ Z in what moves the patches (%), {name}"] = 100 * patch_share(terms)
            numbers[f"share of Z Zᵀ Q in what moves the classes (%), {name}"] = 100 * class_share(terms)
        return Result(
            numbers=numbers,
            data={
                "axes": "layer, head, term " + " ".join(COLUMNS),
                "images": len(plain),
                "plain": plain.mean(0).tolist(),
                "softmax": softmax.mean(0).tolist(),
            },
            tables={"terms": term_rows(plain, softmax)},
            measured=MeasuredTerms(plain, softmax),
        )

    def _why_skipped(self) -> str:
        name = self.model.config.decoder.name
        if not mssa_blocks(self.model.decoder):
            return why_no_mssa(name)
        if mssa_blocks(self.model.decoder)[0].exact:
            return (
                "The exact operator has no attention between tokens that splits into these terms: it divides by the "
                "covariance of all tokens at once."
            )
        return (
            f"The decoder '{name}' keeps patches and classes apart: classes move neither patches nor each other, so "
            "Q Qᵀ Z and Q Qᵀ Q do not exist, and its cross-attention is the term Z Zᵀ Q alone."
        )


def term_rows(plain: Tensor, softmax: Tensor) -> list[dict[str, Any]]:
    """A row for every layer and head: means and standard deviations over the images."""
    rows = []
    for layer in range(plain.shape[1]):
        for head in range(plain.shape[2]):
            row: dict[str, Any] = {"layer": layer + 1, "head": head + 1}
            for form, terms in (("plain", plain), ("softmax", softmax)):
                for index, name in enumerate(COLUMNS):
                    own = terms[:, layer, head, index]
                    row[f"{form}_{name}"] = own.mean().item()
                    row[f"{form}_{name}_spread"] = own.std(correction=0).item()
            rows.append(row)
    return rows
