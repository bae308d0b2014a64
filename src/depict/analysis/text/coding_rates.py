"""Report text: the coding rates over depth."""

from __future__ import annotations

from typing import Any

from depict.analysis.base import Result
from depict.analysis.coding_rates import agreeing
from depict.analysis.verdict import Verdict, by_share, together
from depict.coding_rate import EPSILON

TITLE = "Does the sign of a step predict whether the coding rate in its subspace rises or falls?"
ABOUT = (
    "Every head of an MSSA layer has bases P. R(Pᵀ Z) is the coding rate of the patch embeddings in that subspace, "
    "R(P Pᵀ Z) / R(Z) its share of the total (paper, figure “coding-rate”). A positive step size should raise the "
    "rate in the layer's own subspace, a negative one should lower it. This always holds for orthonormal P without a "
    "norm. A trained layer computes Z + step · MSSA(LayerNorm(Z)): P is not orthonormal, the update is computed from "
    "normalized tokens but added to the tokens before the norm, and it may be long. The change is therefore measured "
    "in several ways: on the operator's input (normalized patches and classes in DEPICT-SA), for 1 % of the update "
    "and for the full update; and on the patches before and after the step, with and without the layer's norm, as a "
    f"rate and as a share of the total. Rates are in nats at distortion ε = {EPSILON}; the paper does not state its "
    "own. MSCA steps are left out: they move the class embeddings, not the patches."
)
CAPTIONS = {
    "depth": "Coding rate of the patches in the first head of every layer (left) and its share of the total rate "
    "(right) at every depth; mean and standard deviation over the images. Top: patches after the norm of the layer "
    "that owns the subspace. Bottom: patches before the norm. The thick segment of a line is the layer's own step: "
    "it should rise if the step is positive (▲) and fall if it is negative (▼)."
}


def verdict(result: Result) -> Verdict:
    """In which share of the cases the sign predicts the direction, on the operator's input and on the patches."""
    layers = result.tables["agreement"]
    total = sum(row["measured"] for row in layers)
    on_input, on_patches = (agreeing(layers, reading) / total for reading in ("operator", "stream"))
    number = f"in {100 * on_input:.0f} % of the cases on the operator's input, {100 * on_patches:.0f} % on the patches"
    return Verdict(together(by_share(on_input), by_share(on_patches)), number)


def findings(result: Result) -> list[str]:
    """Whether the sign predicts the direction, on the operator's input and on the patches."""
    layers = result.tables["agreement"]
    total = sum(row["measured"] for row in layers)
    return [
        _on_the_input(layers, total),
        _on_the_patches(layers, total),
        _cases(layers, total, result.data["images"]),
    ]


def _on_the_input(layers: list[dict[str, Any]], total: int) -> str:
    small, full = agreeing(layers, "small"), agreeing(layers, "operator")
    if small == total:
        text = "For a small step the sign always predicts the direction, although P is not orthonormal."
    else:
        text = f"Even a small step moves the rate against its sign in {total - small:,} of {total:,} cases."
    overshooting = [row for row in layers if row["operator_agrees"] < row["measured"] / 2 <= row["small_agrees"]]
    if overshooting:
        text += f" The full update is so long that it overshoots in most cases of {_names(overshooting)}."
    elif small == full == total:
        text += " The same holds for the full update."
    return text


def _on_the_patches(layers: list[dict[str, Any]], total: int) -> str:
    before_norm = agreeing(layers, "stream")
    against = [row for row in layers if row["stream_agrees"] < row["measured"] / 2]
    if before_norm == total:
        text = "The rate of the patches before the norm always follows the sign, as the paper reports for its ViT-L."
    elif against:
        text = (
            f"The rate of the patches before the norm mostly moves against the sign in {_names(against)}. The paper "
            "reports that the sign separates the two kinds of subspaces in its ViT-L."
        )
    else:
        exceptions = total - before_norm
        text = f"The rate of the patches before the norm mostly follows the sign, with {exceptions:,} exceptions."
    against = [row for row in layers if row["normed_agrees"] < row["measured"] / 2]
    if against:
        text += (
            f" After the layer's norm, which removes lengths, it mostly moves against the sign in {_names(against)}."
        )
    return text


def _cases(layers: list[dict[str, Any]], total: int, images: int) -> str:
    sizes = ", ".join(f"layer {row['layer']} {row['step_size']:+.2f}" for row in layers)
    return f"Step sizes: {sizes}. All heads of all layers on {images:,} images give {total:,} cases."


def _names(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"layer {row['layer']} (step {row['step_size']:+.2f})" for row in rows)
