"""Report text: the learned update against the exact gradient."""

from __future__ import annotations

import itertools
from typing import Any

from depict.analysis.base import Result
from depict.analysis.derivation import mean, sign, signed_mean
from depict.analysis.verdict import Answer, Verdict
from depict.coding_rate import EPSILON

TITLE = "Is the trained step the gradient step that it is derived as?"
ABOUT = (
    "MSSA is derived as a gradient step on the coding rate in the subspaces of its heads, the sum of R(P_hᵀ Z). This "
    "analysis, which is not in the paper, measures how much of that remains in the trained network. For every layer, "
    "on real embeddings: the cosine between the learned update of the patches and the exact gradient; how far it "
    "moves the objective, compared with exact gradient steps of the same length and of the best length up to that; "
    "how much of the embeddings' energy is in the span of P; and how the rank of the patches falls with depth. The "
    "layer acts on normalized tokens, LayerNorm(Z) (patches and classes in DEPICT-SA), so objective and gradient are "
    "evaluated there; “through the norm” is the gradient with respect to Z itself. Rates are in nats at distortion "
    f"ε = {EPSILON} unless noted: the paper does not state its own, and the gradient's direction depends on it. For "
    "large ε it becomes the gradient of the variance along the bases, from which the paper starts. The objective of "
    "the exact operator is Σₕ Rₕ / aₕ at the aₕ of its own heads: it is the gradient by construction, so its cosine of "
    "1 is a control of this analysis and not a finding."
)
CAPTIONS = {
    "steps": "Mean and standard deviation over the images. Top left: cosine between the learned update and the exact "
    "gradient; an exact step has +1 if its sign is positive, −1 if it is negative. Top right: the same for all heads "
    "at other distortions. Bottom left: change of the objective by the learned update and by exact gradient steps. "
    "Bottom right: effective rank of the patches."
}


NEARLY, ROUGHLY = 0.9, 0.5
"""Mean |cosine| with the gradient from which on an update counts as the exact step, or as a rough version."""


def verdict(result: Result) -> Verdict:
    """How well the update is aligned with the gradient."""
    cosine = mean([abs(row["cosine"]) for row in result.tables["steps"]])
    answer: Answer = "does not hold"
    if cosine > ROUGHLY:
        answer = "holds" if cosine > NEARLY else "partly"
    return Verdict(answer, f"mean |cos| between update and exact gradient {cosine:.2f}; 1 is the exact step")


def findings(result: Result) -> list[str]:
    """A paragraph each on direction, progress, energy and rank."""
    rows, D = result.tables["steps"], result.measured.dim
    first = control(rows) if result.measured.exact else direction(rows)
    return [first, progress(rows), energy(rows, D), rank_decay(rows, D)]


def control(rows: list[dict[str, Any]]) -> str:
    """The exact operator is the gradient."""
    strength = mean([abs(row["cosine"]) for row in rows])
    steps = ", ".join(f"{row['step_size']:+.2f}" for row in rows)
    return (
        f"Direction. A control: this decoder uses the exact operator, and the mean |cosine| with the gradient of its "
        f"own objective, Σₕ Rₕ / aₕ, is {strength:.4f}. Steps: {steps}; a negative one lowers the coding rate."
    )


def direction(rows: list[dict[str, Any]]) -> str:
    """How well update and gradient are aligned."""
    strength, variance = (mean([abs(row[key]) for row in rows]) for key in ("cosine", "variance_cosine"))
    if strength > NEARLY:
        verdict = "nearly the exact gradient step"
    elif strength > ROUGHLY:
        verdict = "a rough version of the exact gradient step"
    else:
        verdict = "far from the exact gradient step"
    layers = "; ".join(f"layer {row['layer']} (step {row['step_size']:+.2f}) {row['cosine']:+.2f}" for row in rows)
    agreeing = sum(sign(row) * row["cosine"] > 0 for row in rows)
    closer = (
        "the update is closer to that simpler gradient, so the softmax does not do the work of the inverse it replaces."
        if variance > strength
        else "the coding rate describes the update better."
    )
    heads, norm = signed_mean(rows, "head_cosine"), signed_mean(rows, "norm_cosine")
    return (
        f"Direction. The learned update is {verdict}: the mean |cosine| is {strength:.2f}. By layer: {layers}. In "
        f"{agreeing} of {len(rows)} layers the cosine has the sign of the step. Signed by the step, its mean is "
        f"{heads:+.2f} for single heads and {norm:+.2f} with the gradient through the norm. With the gradient of the "
        f"variance, from which the paper starts, the mean |cosine| is {variance:.2f}: {closer}"
    )


def progress(rows: list[dict[str, Any]]) -> str:
    """How far the update moves the objective."""
    reached = sum(sign(row) * row["learned_change_nats"] > 0 for row in rows)
    changes = "; ".join(
        f"layer {row['layer']} {row['learned_change_nats']:+.1f} nats (exact step of equal length "
        f"{row['exact_change_nats']:+.1f}, of the best length up to that {row['best_change_nats']:+.1f})"
        for row in rows
    )
    lengths = ", ".join(f"{row['relative_length']:.2f}" for row in rows)
    text = (
        f"Progress. {reached} of {len(rows)} layers move the objective in the direction of their sign. Change on the "
        f"operator's input: {changes}. The updates are {lengths} times as long as the tokens."
    )
    overshooting = [row["layer"] for row in rows if sign(row) * row["exact_change_nats"] < 0]
    if overshooting:
        text += f" In {_layers(overshooting)} even an exact step of that length overshoots."
    ahead = [row["layer"] for row in rows if row["ratio"] is not None and row["ratio"] > 1]
    if ahead:
        text += f" In {_layers(ahead)} the update gets further than any tested step along the exact gradient."
    return text


def energy(rows: list[dict[str, Any]], D: int) -> str:
    """How much of the patches the subspaces hold, of D dimensions."""
    held, chance = (100 * mean([row[key] for row in rows]) for key in ("head_energy", "random_head_energy"))
    all_heads = (
        f"All heads of a layer together span all {D} dimensions and hold all of it."
        if all(row["layer_dimensions"] == D for row in rows)
        else f"All heads of a layer together hold {100 * mean([row['layer_energy'] for row in rows]):.0f} %."
    )
    return (
        f"Energy. The span of one head holds {held:.0f} % of the energy of the normalized patches; a random subspace "
        f"of the same size would hold {chance:.0f} %. {all_heads}"
    )


def rank_decay(rows: list[dict[str, Any]], D: int) -> str:
    """Whether the rank of the patches falls in every step."""
    ranks = [rows[0]["rank_before"], *(row["rank_after"] for row in rows)]
    steps = zip(rows, itertools.pairwise(ranks), strict=True)
    rising = [row["layer"] for row, (before, after) in steps if after >= before]
    remaining = ranks[-1] / ranks[0]
    if rising:
        verdict = f"it does not fall in {_layers(rising)}"
    else:
        verdict = f"it falls in every step, {'rapidly' if remaining < 0.5 else 'but not rapidly'}"
    listed = ", ".join(f"{rank:.1f}" for rank in ranks)
    return (
        "Rank. The paper expects the rank of the patches to fall rapidly with depth, as in pure attention. Here "
        f"{verdict}; at the end it is {100 * remaining:.0f} % of the initial rank. Effective rank by depth: {listed} "
        f"(of {D})."
    )


def _layers(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"layer {numbers[0]}"
    return f"layers {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
