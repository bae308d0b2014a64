"""Does the learned operator do what the derivation says? Its update against the exact gradient of the coding rate.

The objective of an MSSA step is sum_h R(P'_h^T Y) (paper eq. 10-11); Y are the normalized tokens that it acts on.
"""

from __future__ import annotations

import copy
import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from depict.analysis.orthogonality import effective_rank, span
from depict.analysis.base import Result, Analysis, Sample
from depict.analysis.steps import MSSAStep, mssa_blocks, mssa_steps, why_no_mssa
from depict.coding_rate import EPSILON, coding_rate_changes, projected_coding_rate_gradient
from depict.operators import MSSA

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from depict.model import SegmentationModel

EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Distortions for which the gradient's direction is compared: the paper does not state its own."""
SHARES = tuple(0.5**power for power in range(10))
"""Lengths of an exact step that are tried, in parts of the update's own."""


def cosine(A: Tensor, B: Tensor) -> float:
    """Between two matrices, in the Frobenius inner product; 0 if one of them is 0."""
    A, B = A.double(), B.double()
    return ((A * B).sum() / (A.norm() * B.norm()).clamp_min(torch.finfo(torch.float64).tiny)).item()


def head_updates(operator: MSSA, Y: Tensor) -> Tensor:
    """What every head adds by itself to the tokens Y (T, D): (heads, T, D); the operator's update is their sum."""
    updates = []
    for bases in operator.bases().detach():
        alone = copy.deepcopy(operator).eval()
        alone.heads, alone.P = 1, nn.Parameter(bases.clone())
        updates.append(alone(Y[None])[0])
    return torch.stack(updates)


def through_norm(norm: nn.LayerNorm, X: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with respect to X (T, D) of an objective whose gradient at LayerNorm(X) is given, in float64."""
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
    found = []
    for epsilon in epsilons:
        weights = 1 / (1 + M / (len(Y) * epsilon**2) * energies)
        length = (weights @ products @ weights).clamp_min(0).sqrt() * U.norm()
        found.append((weights @ along / length.clamp_min(torch.finfo(torch.float64).tiny)).item())
    return found


def compare(step: MSSAStep, epsilon: float = EPSILON) -> dict[str, Any]:
    """The update of one step against the exact gradient.

    Cosines are over the patches. `cosine`: the update and the gradient of sum_h R(P'_h^T Y) at Y; `heads`: every head's
    own update and its own term's gradient; `through_norm`: the gradient with respect to the tokens before the norm;
    `epsilons`: as `cosine`, at other distortions; `variance`: the gradient of the variance along the bases, with which
    the paper starts, eq. (5). Changes of the objective in nats, from Y: `learned` by the update; `exact` by a step of
    the same length along the gradient, the way that the step's sign means; `best` by the best such step up to that.
    """
    Y, P, U, N = step.normed().double(), step.P, step.update.double(), step.patches
    of_heads = projected_coding_rate_gradient(Y, P, epsilon)
    gradient = of_heads.sum(0)
    alone = head_updates(step.block.operator, step.normed())
    direction = 1.0 if step.step_size > 0 else -1.0
    exact = direction * U.norm() / gradient.norm().clamp_min(torch.finfo(torch.float64).tiny) * gradient
    changes = coding_rate_changes(Y, P, exact, SHARES, epsilon).sum(1).tolist()
    *by_epsilon, variance = cosines_by_epsilon(Y, P, U[:N], (*EPSILONS, math.inf))
    return {
        "cosine": cosine(U[:N], gradient[:N]),
        "heads": [cosine(u[:N], g[:N]) for u, g in zip(alone, of_heads, strict=True)],
        "through_norm": cosine(U[:N], through_norm(step.block.norm, step.before, gradient)[:N]),
        "epsilons": by_epsilon,
        "variance": variance,
        "learned": coding_rate_changes(Y, P, U, (1.0,), epsilon).sum().item(),
        "exact": changes[0],
        "best": max(changes, key=lambda change: direction * change),
        "relative_length": (U.norm() / Y.norm()).item(),
    }


def energy_share(Y: Tensor, basis: Tensor) -> float:
    """Share of the energy of Y (N, D) inside the span of the orthonormal rows of `basis`."""
    Y = Y.double()
    return ((Y @ basis.mT).square().sum() / Y.square().sum()).item()


class Derivation(Analysis):
    """Direction, progress, energy and rank of every MSSA step."""

    name = "derivation"
    title = "Does the trained operator do what the derivation says?"
    about = (
        "MSSA is derived as a gradient step on the coding rate in the subspaces of its heads, Σₕ R(P'ₕᵀ Z). Not in "
        "the paper, but what makes a white box: how much of that is left in the trained network? For every layer, "
        "on real embeddings: the cosine between the learned update of the patches and the exact gradient; how far "
        "the update moves the objective, against exact gradient steps of the same length and of the best length up "
        "to that; how much of the embeddings' energy lies in the span of P; and how the rank of the patches falls "
        "with depth. The layer acts on normalized tokens, LayerNorm(Z) (patches and classes in DEPICT-SA), so "
        "objective and gradient are taken there; “through the norm” is the gradient with respect to Z itself. Rates "
        f"are in nats at distortion ε = {EPSILON} unless another is given: the paper does not state its own, and the "
        "gradient's direction depends on it. For large ε it becomes that of the variance along the bases, from "
        "which the paper starts."
    )

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        blocks = mssa_blocks(model.decoder)
        self.sizes = [block.step_size().item() for block in blocks]
        bases = [block.bases().detach().double().cpu() for block in blocks]
        self.head_spans = [[span(rows) for rows in P] for P in bases]
        self.spans = [span(P.flatten(0, 1)) for P in bases]
        self.steps: list[list[dict[str, Any]]] = [[] for _ in blocks]
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
            self.steps[layer].append(compare(step) | energy)
        depths = torch.cat(sample.trace.Z[: steps[-1].place + 2])
        ranks = effective_rank(depths).tolist()
        self.ranks.append([ranks[0], *(ranks[step.place + 1] for step in steps)])

    def compute(self) -> Result:
        """One table, and a paragraph for each of its parts."""
        if not self.ranks:
            return Result(skipped=why_no_mssa(self.model.config.decoder.name))
        ranks = torch.tensor(self.ranks, dtype=torch.float64)
        rows = [self._row(layer, ranks) for layer in range(len(self.sizes))]
        ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
        result = Result(
            numbers={
                "cosine of update and exact gradient, in the direction of the sign": _meant(rows, "cosine"),
                "the same, every head by itself": _meant(rows, "head_cosine"),
                "the same, gradient through the norm": _meant(rows, "norm_cosine"),
                "the same, gradient of the variance": _meant(rows, "variance_cosine"),
                "change of the objective / best exact step up to that length": _mean(ratios) if ratios else None,
                "energy of the patches in the span of a head (%)": 100 * _mean([row["head_energy"] for row in rows]),
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
            captions={
                "steps": "Mean and standard deviation over the images. Top left: cosine between the learned update and "
                "the exact gradient; an exact step has +1 if its sign is positive, −1 if negative. Top right: the same "
                "(all heads) at other distortions. Bottom left: change of the objective by the learned update and by "
                "exact gradient steps. Bottom right: effective rank of the patches."
            },
        )
        cosines = torch.tensor([[one["epsilons"] for one in layer] for layer in self.steps])
        result.figures = {"steps": draw(rows, cosines.mean(1), ranks)}
        result.text = words(rows, self.model.decoder.dim)
        return result

    def _row(self, layer: int, ranks: Tensor) -> dict[str, Any]:
        """The table's row for one layer: means over images, and standard deviations."""
        found = self.steps[layer]
        row: dict[str, Any] = {"layer": layer + 1, "step_size": self.sizes[layer]}
        for name, key in (("cosine", "cosine"), ("norm_cosine", "through_norm"), ("variance_cosine", "variance")):
            row |= _statistics(name, [one[key] for one in found])
        row |= _statistics("head_cosine", [_mean(one["heads"]) for one in found])
        row |= _statistics("learned_change_nats", [one["learned"] for one in found])
        row |= _statistics("exact_change_nats", [one["exact"] for one in found])
        row |= _statistics("best_change_nats", [one["best"] for one in found])
        row["ratio"] = row["learned_change_nats"] / row["best_change_nats"] if row["best_change_nats"] else None
        row["relative_length"] = _mean([one["relative_length"] for one in found])
        row |= _statistics("head_energy", [_mean(one["head_energy"]) for one in found])
        row["random_head_energy"] = _mean([len(basis) / basis.shape[1] for basis in self.head_spans[layer]])
        row["layer_energy"] = _mean([one["energy"] for one in found])
        row["layer_dimensions"] = len(self.spans[layer])
        row["rank_before"], row["rank_after"] = ranks.mean(0)[layer : layer + 2].tolist()
        return row


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _statistics(name: str, values: list[float]) -> dict[str, float]:
    found = torch.tensor(values, dtype=torch.float64)
    return {name: found.mean().item(), f"{name}_spread": found.std(correction=0).item()}


def _sign(row: dict[str, Any]) -> int:
    return 1 if row["step_size"] > 0 else -1


def _meant(rows: list[dict[str, Any]], key: str) -> float:
    """Mean over the layers, positive where it has the sign of the step."""
    return _mean([_sign(row) * row[key] for row in rows])


def words(rows: list[dict[str, Any]], D: int) -> list[str]:
    """A paragraph for direction, progress, energy and rank."""
    return [_direction(rows), _progress(rows), _energy(rows, D), _decay(rows, D)]


def _direction(rows: list[dict[str, Any]]) -> str:
    told = "; ".join(f"layer {r['layer']} (step {r['step_size']:+.2f}) {r['cosine']:+.2f}" for r in rows)
    side = sum(_sign(row) * row["cosine"] > 0 for row in rows)
    strength, variance = (_mean([abs(row[key]) for row in rows]) for key in ("cosine", "variance_cosine"))
    heads, norm = _meant(rows, "head_cosine"), _meant(rows, "norm_cosine")
    near = "nearly the exact step" if strength > 0.9 else "a rough version of it" if strength > 0.5 else "far from it"
    end = (
        "it is closer to that simpler gradient; the softmax does not do the work of the inverse that it replaces."
        if variance > strength
        else "the coding rate describes it better."
    )
    return (
        f"Direction. Cosine of the learned update with the exact gradient: {told}. In {side} of {len(rows)} layers "
        f"it lies on the side that the sign means; with a mean |cosine| of {strength:.2f} the update is {near}. In "
        f"the direction of the sign it is {heads:+.2f} for every head by itself and {norm:+.2f} with the gradient "
        "through the norm. With the gradient of the variance, from which the paper starts, the mean |cosine| is "
        f"{variance:.2f}: {end}"
    )


def _progress(rows: list[dict[str, Any]]) -> str:
    told = "; ".join(
        f"layer {r['layer']} {r['learned_change_nats']:+.1f} nats (exact step of equal length "
        f"{r['exact_change_nats']:+.1f}, of the best length up to that {r['best_change_nats']:+.1f})"
        for r in rows
    )
    reached = sum(_sign(row) * row["learned_change_nats"] > 0 for row in rows)
    lengths = ", ".join(f"{row['relative_length']:.2f}" for row in rows)
    text = (
        f"Progress. On the tokens that the operator acts on, the update moves the objective by: {told}. {reached} of "
        f"{len(rows)} layers move it the way their sign means. The updates are {lengths} times as long as the tokens."
    )
    over = [str(row["layer"]) for row in rows if _sign(row) * row["exact_change_nats"] < 0]
    if over:
        text += f" In layer {', '.join(over)} even an exact step of that length overshoots and goes the wrong way."
    beyond = [str(row["layer"]) for row in rows if row["ratio"] is not None and row["ratio"] > 1]
    if beyond:
        text += f" In layer {', '.join(beyond)} the update gets further than exact steps along the gradient."
    return text


def _energy(rows: list[dict[str, Any]], D: int) -> str:
    energy, chance = (_mean([row[key] for row in rows]) for key in ("head_energy", "random_head_energy"))
    together = _mean([row["layer_energy"] for row in rows])
    end = (
        f"All heads of a layer together span all {D} dimensions and so hold everything."
        if all(row["layer_dimensions"] == D for row in rows)
        else f"All heads of a layer together hold {100 * together:.0f} %."
    )
    return (
        f"Energy. The span of one head holds {100 * energy:.0f} % of the energy of the normalized patches; a random "
        f"subspace of its size would hold {100 * chance:.0f} %. {end}"
    )


def _decay(rows: list[dict[str, Any]], D: int) -> str:
    ranks = [rows[0]["rank_before"], *(row["rank_after"] for row in rows)]
    steps = zip(rows, itertools.pairwise(ranks), strict=True)
    against = [str(row["layer"]) for row, (before, after) in steps if after >= before]
    rest = ranks[-1] / ranks[0]
    if against:
        end = f"it does not fall in layer {', '.join(against)}"
    else:
        end = f"it falls in every step, {'and rapidly' if rest < 0.5 else 'but not rapidly'}"
    told = ", ".join(f"{rank:.1f}" for rank in ranks)
    return (
        f"Rank. Effective rank of the patches by depth: {told} (of {D}). The paper expects the rank to fall rapidly "
        f"with depth, as in pure attention: {end}; at the end it is {100 * rest:.0f} % of what it was."
    )


def draw(rows: list[dict[str, Any]], by_epsilon: Tensor, ranks: Tensor) -> Figure:
    """Cosines, changes and ranks, layer by layer; by_epsilon (layers, EPSILONS), ranks (images, depths)."""
    from matplotlib.figure import Figure

    from depict.viz.style import COLORS, MARKERS

    figure = Figure(figsize=(7, 7), layout="constrained")
    (cosines, sweep), (changes, decay) = figure.subplots(2, 2)
    x = [row["layer"] for row in rows]
    series = {
        "cosine": "all heads",
        "head_cosine": "every head by itself",
        "norm_cosine": "through the norm",
        "variance_cosine": "of the variance",
    }
    for index, (key, name) in enumerate(series.items()):
        cosines.errorbar(
            [layer + 0.13 * (index - 1.5) for layer in x],
            [row[key] for row in rows],
            yerr=[row[f"{key}_spread"] for row in rows],
            fmt=MARKERS[index],
            ms=5,
            capsize=2,
            color=COLORS[index],
            label=name,
        )
    for index, (row, line) in enumerate(zip(rows, by_epsilon.numpy(), strict=True)):
        look = {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)], "ms": 4}
        sweep.plot(EPSILONS, line, **look, label=f"layer {row['layer']}, step {row['step_size']:+.2f}")
    sweep.set(xscale="log", xlabel="distortion ε")
    sweep.axvline(EPSILON, color="#666666", lw=1, ls=":")
    kinds = {"learned": "learned", "exact": "exact, equal length", "best": "exact, best length"}
    for index, (key, name) in enumerate(kinds.items()):
        changes.bar(
            [layer + 0.27 * (index - 1) for layer in x],
            [row[f"{key}_change_nats"] for row in rows],
            0.26,
            yerr=[row[f"{key}_change_nats_spread"] for row in rows],
            capsize=2,
            color=COLORS[index],
            hatch=("", "//", "..")[index],
            edgecolor="white",
            label=name,
        )
    changes.set_ylabel("change of the objective (nats)")
    depths = list(range(ranks.shape[1]))
    spread = ranks.std(0, correction=0).numpy()
    decay.errorbar(depths, ranks.mean(0).numpy(), yerr=spread, marker="o", capsize=2, color=COLORS[0])
    decay.set(ylim=(0, None), ylabel="effective rank of the patches", xlabel="depth (MSSA steps taken)")
    decay.set_xticks(depths)
    for axes in (cosines, sweep):
        axes.set(ylim=(-1.08, 1.08), ylabel="cosine with the gradient")
    for axes in (cosines, changes):
        axes.set_xticks(x)
        axes.set_xlabel("layer")
    for axes in (cosines, sweep, changes):
        axes.axhline(0, color="black", lw=0.8)
        axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    for axes in (cosines, sweep, changes, decay):
        axes.grid(axis="y", color="#dddddd")
        axes.set_axisbelow(True)
    return figure
