"""How orthonormal are the learned bases P and the class embeddings Q?

Paper figures "gram", "more-para-dot" and "more-cls-dot".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depict.analysis.base import Analysis, Result, Sample
from depict.analysis.steps import sub_blocks

if TYPE_CHECKING:
    from depict.model import SegmentationModel

Row = dict[str, Any]


def row_measures(rows: Tensor) -> dict[str, float]:
    """How far rows (K, D) are from orthonormal.

    mean_abs_cosine: mean |cosine| of two different rows. mean_norm and norm_spread: mean of the norms, and their
    standard deviation / mean. distance: |rows rows^T - I|_F / sqrt(K), 0 for orthonormal rows. unit_distance: the same
    for the rows scaled to unit length. effective_rank: see `effective_rank`.
    """
    rows = rows.double()
    K = len(rows)
    norms = rows.norm(dim=1)
    unit = rows / norms[:, None].clamp_min(torch.finfo(rows.dtype).tiny)
    identity = torch.eye(K, dtype=rows.dtype)
    cosines = unit @ unit.mT
    return {
        "mean_abs_cosine": (cosines.abs().sum() - cosines.diagonal().abs().sum()).item() / max(1, K * (K - 1)),
        "mean_norm": norms.mean().item(),
        "norm_spread": (norms.std(correction=0) / norms.mean()).item(),
        "distance": (rows @ rows.mT - identity).norm().item() / K**0.5,
        "unit_distance": (cosines - identity).norm().item() / K**0.5,
        "effective_rank": effective_rank(rows).item(),
    }


def effective_rank(rows: Tensor) -> Tensor:
    """exp of the entropy of the normalized singular values s / sum(s): (..., N, D) -> (...), in 1..min(N, D).

    Roy and Vetterli (2007). A matrix with r equal singular values, and zeros otherwise, has r.
    """
    wide = rows.double()
    gram = wide.mT @ wide if rows.shape[-1] <= rows.shape[-2] else wide @ wide.mT
    singular = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    return torch.special.entr(singular / singular.sum(-1, keepdim=True)).sum(-1).exp()


def span(rows: Tensor) -> Tensor:
    """An orthonormal basis (rank, D) of the span of the rows (K, D)."""
    _, singular, directions = torch.linalg.svd(rows.double(), full_matrices=False)
    threshold = singular[0] * max(rows.shape) * torch.finfo(torch.float64).eps
    return directions[singular > threshold]


def principal_angles(U: Tensor, V: Tensor) -> Tensor:
    """Angles in degrees between the spans of orthonormal rows U (a, D) and V (b, D), ascending: (min(a, b),)."""
    return torch.linalg.svdvals(U @ V.mT).clamp(max=1).arccos().rad2deg()


def random_cosine(D: int) -> float:
    """Expected |cosine| of two random directions in D dimensions."""
    return math.exp(math.lgamma(D / 2) - math.lgamma((D + 1) / 2)) / math.sqrt(math.pi)


@functools.cache
def random_angle(a: int, b: int, D: int) -> float:
    """Mean principal angle in degrees of random subspaces of a and b dimensions, from 4 seeded draws."""
    g = torch.Generator().manual_seed(0)
    draws = [[span(torch.randn(k, D, generator=g, dtype=torch.float64)) for k in (a, b)] for _ in range(4)]
    return torch.stack([principal_angles(U, V).mean() for U, V in draws]).mean().item()


def head_angles(layers: dict[str, Tensor]) -> list[Row]:
    """Principal angles in degrees between any two heads of layers (heads, M, D); overlap = mean squared cosine."""
    spans = [(label, head, span(rows)) for label, P in layers.items() for head, rows in enumerate(P, 1)]
    pairs: list[Row] = []
    for index, (layer, head, U) in enumerate(spans):
        for other_layer, other_head, V in spans[index + 1 :]:
            angles = principal_angles(U, V)
            pairs.append(
                {
                    "layer": layer,
                    "head": head,
                    "other_layer": other_layer,
                    "other_head": other_head,
                    "smallest": angles.min().item(),
                    "mean": angles.mean().item(),
                    "largest": angles.max().item(),
                    "random_mean": random_angle(len(U), len(V), U.shape[1]),
                    "overlap": angles.deg2rad().cos().square().mean().item(),
                    "random_overlap": max(len(U), len(V)) / U.shape[1],
                }
            )
    return pairs


def mean_angles(angles: list[Row], same_layer: bool) -> dict[str, float]:
    """Means over pairs of heads of the same layer or of different layers; empty if there are no such pairs."""
    rows = [row for row in angles if (row["layer"] == row["other_layer"]) == same_layer]
    keys = ("mean", "random_mean", "overlap", "random_overlap")
    return {key: mean(rows, key) for key in keys} if rows else {}


def mean(rows: Sequence[Row], key: str) -> float:
    """Mean of a column."""
    return sum(row[key] for row in rows) / len(rows)


@dataclass
class MeasuredGrams:
    """Bases and class embeddings, for figures and text."""

    layers: dict[str, Tensor]
    """P (heads, M, D) of every layer by name; empty for a decoder without bases."""
    class_gram: Tensor | None
    """Mean of Q Q^T over the images, (C, C), at unit length; None for a decoder without class embeddings."""
    classes: Sequence[str]
    dim: int
    """D."""


class Orthogonality(Analysis):
    """P P^T of every layer and head, Q Q^T of every image."""

    name = "orthogonality"

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        bases = [(block.name, block.bases()) for block in sub_blocks(model.decoder)]
        with_bases = [(name, P.detach().double().cpu()) for name, P in bases if P is not None]
        self.layers = {f"{name} {number}": P for number, (name, P) in enumerate(with_bases, 1)}
        self.images: list[dict[str, float]] = []
        self.gram = torch.zeros(model.num_classes, model.num_classes, dtype=torch.float64)

    def update(self, sample: Sample) -> None:
        """Measure the final class embeddings."""
        if sample.trace.Q_unit is not None:
            Q = sample.trace.Q_unit[0].double()
            self.images.append(row_measures(Q))
            self.gram += Q @ Q.mT

    def compute(self) -> Result:
        """Means over heads, pairs of heads and images."""
        model = self.model
        if not self.layers and not self.images:
            return Result(skipped=f"The decoder '{model.config.decoder.name}' has neither bases nor class embeddings.")
        gram = self.gram / len(self.images) if self.images else None
        result = Result(measured=MeasuredGrams(self.layers, gram, model.classes, model.decoder.dim))
        if self.layers:
            self._add_bases(result)
        if gram is not None:
            result.numbers |= {
                "mean |cosine| of two class embeddings": mean(self.images, "mean_abs_cosine"),
                "distance of the class embeddings to orthonormal": mean(self.images, "unit_distance"),
                "effective rank of the class embeddings / number of classes": (
                    mean(self.images, "effective_rank") / model.num_classes
                ),
            }
            result.data["classes"] = {
                "per_image": self.images,
                "mean_gram": gram.tolist(),
                "names": model.classes,
            }
        return result

    def _add_bases(self, result: Result) -> None:
        layers, heads = [], []
        for label, P in self.layers.items():
            layers.append({"layer": label, "bases": P.shape[0] * P.shape[1], **row_measures(P.flatten(0, 1))})
            for head, rows in enumerate(P, 1):
                measures = row_measures(rows)
                measures["relative_rank"] = measures["effective_rank"] / min(rows.shape)
                heads.append({"layer": label, "head": head, "bases": len(rows), **measures})
        angles = head_angles(self.layers)
        result.tables |= {"layers": layers, "heads": heads, "angles": angles}
        result.data["bases"] = {"layers": layers, "heads": heads, "angles": angles}
        result.numbers |= {
            "mean |cosine| of two bases of a head": mean(heads, "mean_abs_cosine"),
            "the same for random directions": random_cosine(self.model.decoder.dim),
            "mean |cosine| of two bases of a layer": mean(layers, "mean_abs_cosine"),
            "mean norm of a basis": mean(heads, "mean_norm"),
            "spread of the norms in a head (standard deviation / mean)": mean(heads, "norm_spread"),
            "distance of a head to orthonormal (0 = orthonormal)": mean(heads, "distance"),
            "distance of a head at unit length to orthonormal": mean(heads, "unit_distance"),
            "effective rank of a head / largest possible": mean(heads, "relative_rank"),
            "mean principal angle between heads of a layer (degrees)": mean_angles(angles, True).get("mean"),
            "mean principal angle between heads of different layers (degrees)": mean_angles(angles, False).get("mean"),
        }
