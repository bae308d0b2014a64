"""The learned update against the exact gradient of the coding rate: does the trained operator match its derivation?

The objective of an MSSA step is sum_h R(P_h^T Y) (paper eq. 10-11); Y are the normalized tokens, the operator's input.
For the exact operator it is sum_h R_h / a_h with its own a of every head: a control, which must score 1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from depict.analysis.base import Analysis, Result, Sample
from depict.analysis.orthogonality import effective_rank, span
from depict.analysis.steps import MSSAStep, mssa_blocks, mssa_steps, why_no_mssa
from depict.coding_rate import EPSILON, coding_rate_changes, projected_coding_rate_gradient
from depict.operators import MSSA

if TYPE_CHECKING:
    from depict.model import SegmentationModel

EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Distortions for which the gradient's direction is compared: the paper does not state its own."""
SHARES = tuple(0.5**power for power in range(10))
"""Lengths of an exact step that are tried, relative to the length of the update."""


def cosine(A: Tensor, B: Tensor) -> float:
    """Cosine of two matrices in the Frobenius inner product; 0 if one of them is 0."""
    A, B = A.double(), B.double()
    return ((A * B).sum() / (A.norm() * B.norm()).clamp_min(torch.finfo(torch.float64).tiny)).item()


def head_updates(operator: MSSA, Y: Tensor) -> Tensor:
    """The update of every head for tokens Y (T, D): (heads, T, D); the operator's update is their sum."""
    updates = []
    for head, bases in enumerate(operator.bases().detach()):
        single = copy.deepcopy(operator).eval()
        single.heads, single.P = 1, nn.Parameter(bases.clone())
        if operator.exact:
            single.log_c = nn.Parameter(operator.log_c.detach()[head : head + 1])
        updates.append(single(Y[None])[0])
    return torch.stack(updates)


def through_norm(norm: nn.LayerNorm, X: Tensor, gradient: Tensor) -> Tensor:
    """The gradient at X (T, D) of an objective whose gradient at LayerNorm(X) is given, in float64."""
    wide = copy.deepcopy(norm).double()
    with torch.enable_grad():
        X = X.double().requires_grad_()
        return torch.autograd.grad(wide(X), X, gradient.double())[0]


def cosines_by_epsilon(Y: Tensor, P: Tensor, U: Tensor, epsilons: tuple[float, ...]) -> list[float]:
    """Cosine of the update U of the first N tokens with the gradient of sum_h R(P_h^T Y), for every distortion.

    Y (T, D), P (heads, M, D), U (N, D). With W_h = Y P_h^T and W_h^T W_h = V diag(s) V^T, a head's gradient in the rows
    V^T P_h is c W_h V with its columns divided by 1 + c s: one decomposition serves all distortions. Infinity gives the
    gradient of the variance.
    """
    M = P.shape[1]
    W = Y @ P.mT
    energies, V = torch.linalg.eigh(W.mT @ W)
    energies = energies.clamp_min(0).flatten()
    columns = (W @ V)[:, : len(U)].transpose(0, 1).flatten(1)
    rows = (V.mT @ P).flatten(0, 1)
    along = (columns * (U @ rows.mT)).sum(0)
    products = (columns.mT @ columns) * (rows @ rows.mT)
    cosines = []
    for epsilon in epsilons:
        weights = 1 / (1 + M / (len(Y) * epsilon**2) * energies)
        length = (weights @ products @ weights).clamp_min(0).sqrt() * U.norm()
        cosines.append((weights @ along / length.clamp_min(torch.finfo(torch.float64).tiny)).item())
    return cosines


@dataclass(frozen=True)
class Objective:
    """sum_h weight_h R(P_h^T Y) at a distortion of every head, for T tokens Y (T, D) and P (heads, M, D)."""

    P: Tensor
    epsilons: list[float]
    weights: list[float]

    @classmethod
    def of(cls, step: MSSAStep) -> Objective:
        """The objective of a step: all rates at `EPSILON`, or R_h / a_h at its own distortions if it is exact."""
        P, T = step.P, len(step.before)
        if step.a is None:
            return cls(P, [EPSILON] * len(P), [1.0] * len(P))
        return cls(P, [math.sqrt(P.shape[1] / (T * a)) for a in step.a], [1 / a for a in step.a])

    def gradients(self, Y: Tensor) -> Tensor:
        """The gradient of every head's term at Y, (heads, T, D)."""
        terms = zip(self.P, self.epsilons, self.weights, strict=True)
        return torch.stack([weight * projected_coding_rate_gradient(Y, P, e) for P, e, weight in terms])

    def changes(self, Y: Tensor, update: Tensor, fractions: Sequence[float]) -> Tensor:
        """How much every fraction of the update (T, D) changes the objective, (fractions,)."""
        terms = zip(self.P, self.epsilons, self.weights, strict=True)
        parts = [weight * coding_rate_changes(Y, P[None], update, fractions, e) for P, e, weight in terms]
        return torch.cat(parts, dim=1).sum(1)


def compare_with_gradient(step: MSSAStep) -> dict[str, Any]:
    """The update of one step against the exact gradient.

    Cosines are over the patches. `cosine`: the update and the gradient of the objective at Y; `heads`: every head's
    own update and its own term's gradient; `through_norm`: the gradient at the tokens before the norm; `epsilons`: as
    `cosine`, at other distortions; `variance`: the gradient of the variance along the bases, from which the paper
    starts, eq. (5). Changes of the objective in nats (divided by a if exact), from Y: `learned` by the update; `exact`
    by a step of the same length along the gradient, in the direction of the step's sign; `best` by the best such step
    up to that length.
    """
    Y, P, U, N = step.normed().double(), step.P, step.update.double(), step.patches
    objective = Objective.of(step)
    head_gradients = objective.gradients(Y)
    gradient = head_gradients.sum(0)
    updates = head_updates(step.block.operator, step.normed())
    direction = 1.0 if step.step_size > 0 else -1.0
    exact = direction * U.norm() / gradient.norm().clamp_min(torch.finfo(torch.float64).tiny) * gradient
    changes = objective.changes(Y, exact, SHARES).tolist()
    *by_epsilon, variance = cosines_by_epsilon(Y, P, U[:N], (*EPSILONS, math.inf))
    return {
        "cosine": cosine(U[:N], gradient[:N]),
        "heads": [cosine(u[:N], g[:N]) for u, g in zip(updates, head_gradients, strict=True)],
        "through_norm": cosine(U[:N], through_norm(step.block.norm, step.before, gradient)[:N]),
        "epsilons": by_epsilon,
        "variance": variance,
        "learned": objective.changes(Y, U, (1.0,)).item(),
        "exact": changes[0],
        "best": max(changes, key=lambda change: direction * change),
        "relative_length": (U.norm() / Y.norm()).item(),
    }


def energy_share(Y: Tensor, basis: Tensor) -> float:
    """Share of the energy of Y (N, D) inside the span of the orthonormal rows of `basis`."""
    Y = Y.double()
    return ((Y @ basis.mT).square().sum() / Y.square().sum()).item()


@dataclass
class MeasuredSteps:
    """What figures and text need besides the table."""

    dim: int
    """D."""
    cosines: Tensor
    """Mean cosine of each layer at each of `EPSILONS`, (layers, EPSILONS)."""
    ranks: Tensor
    """Effective rank of the patches, (images, layers + 1)."""
    exact: bool
    """Whether the operator is the gradient itself."""


class Derivation(Analysis):
    """Direction, progress, energy and rank of every MSSA step."""

    name = "derivation"

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        blocks = mssa_blocks(model.decoder)
        self.exact = any(block.exact for block in blocks)
        self.sizes = [block.step_size().item() for block in blocks]
        bases = [block.bases().detach().double().cpu() for block in blocks]
        self.head_spans = [[span(rows) for rows in P] for P in bases]
        self.spans = [span(P.flatten(0, 1)) for P in bases]
        self.steps: list[list[dict[str, Any]]] = [[] for _ in blocks]
        """For each layer, the measures of every image."""
        self.ranks: list[list[float]] = []

    @torch.no_grad()
    def update(self, sample: Sample) -> None:
        """Measure every step."""
        if not self.sizes:
            return
        steps = mssa_steps(self.model.decoder, sample.trace)
        for layer, step in enumerate(steps):
            Y = step.normed()[: step.patches]
            energy = {
                "energy": energy_share(Y, self.spans[layer]),
                "head_energy": [energy_share(Y, basis) for basis in self.head_spans[layer]],
            }
            self.steps[layer].append(compare_with_gradient(step) | energy)
        ranks = effective_rank(torch.cat(sample.trace.Z[: steps[-1].depth + 2])).tolist()
        self.ranks.append([ranks[0], *(ranks[step.depth + 1] for step in steps)])

    def compute(self) -> Result:
        """A row for every layer, and means over the layers."""
        if not self.ranks:
            return Result(skipped=why_no_mssa(self.model.config.decoder.name))
        ranks = torch.tensor(self.ranks, dtype=torch.float64)
        rows = [self._row(layer, ranks) for layer in range(len(self.sizes))]
        ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
        cosines = torch.tensor([[image["epsilons"] for image in layer] for layer in self.steps])
        return Result(
            numbers={
                "cosine of update and exact gradient, signed by the step": signed_mean(rows, "cosine"),
                "the same, mean over single heads": signed_mean(rows, "head_cosine"),
                "the same, gradient through the norm": signed_mean(rows, "norm_cosine"),
                "the same, gradient of the variance": signed_mean(rows, "variance_cosine"),
                "change of the objective / best exact step up to that length": mean(ratios) if ratios else None,
                "energy of the patches in the span of a head (%)": 100 * mean([row["head_energy"] for row in rows]),
                "effective rank of the patches, input": rows[0]["rank_before"],
                "effective rank of the patches, after the last step": rows[-1]["rank_after"],
            },
            data={
                "epsilon": EPSILON,
                "epsilons": EPSILONS,
                "images": len(self.ranks),
                "layers": self.steps,
                "effective_ranks": self.ranks,
            },
            tables={"steps": rows},
            measured=MeasuredSteps(self.model.decoder.dim, cosines.mean(1), ranks, self.exact),
        )

    def _row(self, layer: int, ranks: Tensor) -> dict[str, Any]:
        """The table's row for one layer: means over the images, and standard deviations."""
        images = self.steps[layer]
        row: dict[str, Any] = {"layer": layer + 1, "step_size": self.sizes[layer]}
        for name, key in (("cosine", "cosine"), ("norm_cosine", "through_norm"), ("variance_cosine", "variance")):
            row |= _statistics(name, [image[key] for image in images])
        row |= _statistics("head_cosine", [mean(image["heads"]) for image in images])
        for key in ("learned", "exact", "best"):
            row |= _statistics(f"{key}_change_nats", [image[key] for image in images])
        row["ratio"] = row["learned_change_nats"] / row["best_change_nats"] if row["best_change_nats"] else None
        row["relative_length"] = mean([image["relative_length"] for image in images])
        row |= _statistics("head_energy", [mean(image["head_energy"]) for image in images])
        row["random_head_energy"] = mean([len(basis) / basis.shape[1] for basis in self.head_spans[layer]])
        row["layer_energy"] = mean([image["energy"] for image in images])
        row["layer_dimensions"] = len(self.spans[layer])
        row["rank_before"], row["rank_after"] = ranks.mean(0)[layer : layer + 2].tolist()
        return row


def mean(values: list[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


def sign(row: dict[str, Any]) -> int:
    """1 for a layer that is meant to raise the coding rate, -1 for one that is meant to lower it."""
    return 1 if row["step_size"] > 0 else -1


def signed_mean(rows: list[dict[str, Any]], key: str) -> float:
    """Mean over the layers, positive where a value has the sign of the step."""
    return mean([sign(row) * row[key] for row in rows])


def _statistics(name: str, values: list[float]) -> dict[str, float]:
    over_images = torch.tensor(values, dtype=torch.float64)
    return {name: over_images.mean().item(), f"{name}_spread": over_images.std(correction=0).item()}
