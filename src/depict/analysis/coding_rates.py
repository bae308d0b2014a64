"""Coding rate of the patches in every layer's subspace at every depth, and whether the step's sign predicts its change.

Paper figure "coding-rate", eq. (22) as released.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depict.analysis.base import Analysis, Result, Sample
from depict.analysis.steps import MSSAStep, mssa_blocks, mssa_steps, why_no_mssa
from depict.coding_rate import (
    EPSILON,
    coding_rate_changes,
    coding_rate_from_gram,
    gram_matrix,
    subspace_rates_from_gram,
)

if TYPE_CHECKING:
    from depict.model import SegmentationModel

READINGS = {
    "small": "1 % of the update, on the operator's input",
    "operator": "the full update, on the operator's input",
    "normed": "patches after the layer's norm",
    "stream": "patches before the norm",
    "normed_share": "share of the total rate, patches after the layer's norm",
    "stream_share": "share of the total rate, patches before the norm",
}
"""The rates that are compared before and after a step."""
SMALL = 0.01
"""A share of an update that is too short to overshoot."""


@dataclass
class MeasuredRates:
    """Rates of all images, for the figure."""

    rates: dict[str, Tensor]
    """As from `depth_rates`, (images, layers, heads, depths) each."""
    step_sizes: list[float]
    """Of each layer."""
    depths: list[int]
    """At which each layer takes its step."""


class CodingRates(Analysis):
    """R(P_h^T Z) for every layer's P at every depth."""

    name = "coding_rates"

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        self.blocks = mssa_blocks(model.decoder)
        self.rates: list[dict[str, Tensor]] = []
        self.changes: list[dict[str, Tensor]] = []
        self.depths: list[int] = []

    @torch.no_grad()
    def update(self, sample: Sample) -> None:
        """Measure all heads of all layers at all depths."""
        if not self.blocks:
            return
        steps = mssa_steps(self.model.decoder, sample.trace)
        self.depths = [step.depth for step in steps]
        patches = [Z[0] for Z in sample.trace.Z[: steps[-1].depth + 2]]
        self.rates.append(depth_rates(patches, steps))
        self.changes.append(_stack([operator_changes(step) for step in steps]))

    def compute(self) -> Result:
        """Rates, and how often the sign of the step predicts the direction of the change."""
        if not self.rates:
            return Result(skipped=why_no_mssa(self.model.config.decoder.name))
        rates, changes = _stack(self.rates), _stack(self.changes)
        for reading, values in rates.items():
            own = [values[:, layer, :, depth : depth + 2] for layer, depth in enumerate(self.depths)]
            changes[reading] = torch.stack([pair[..., 1] - pair[..., 0] for pair in own], dim=1)
        sizes = [block.step_size().item() for block in self.blocks]
        layers = [agreement_row(layer, size, changes) for layer, size in enumerate(sizes)]
        total = changes["operator"].numel()
        numbers: dict[str, float | None] = {
            f"sign predicts the direction (% of cases): {label}": 100 * agreeing(layers, reading) / total
            for reading, label in READINGS.items()
        }
        numbers["steps with a positive sign"] = float(sum(size > 0 for size in sizes))
        numbers["steps with a negative sign"] = float(sum(size < 0 for size in sizes))
        return Result(
            numbers=numbers,
            data={
                "epsilon": EPSILON,
                "images": len(self.rates),
                "step_sizes": sizes,
                "depths": self.depths,
                "axes": "layer of P, head, depth",
                **{key: {"mean": v.mean(0).tolist(), "spread": _spread(v).tolist()} for key, v in rates.items()},
            },
            tables={"agreement": layers, "rates": rate_rows(rates)},
            measured=MeasuredRates(rates, sizes, self.depths),
        )


def depth_rates(patches: list[Tensor], steps: list[MSSAStep]) -> dict[str, Tensor]:
    """Rates of one image's patches, Z (N, D) at every depth, in every layer's heads: (layers, heads, depths) each.

    stream, stream_share: R(P^T Z) and R(P P^T Z) / R(Z) of Z itself; normed, normed_share: of LayerNorm(Z), with the
    norm of the layer that owns P.
    """
    N = len(patches[0])
    stream = torch.stack([gram_matrix(Z) for Z in patches])
    rates: dict[str, list[Tensor]] = {}
    for step in steps:
        normed = torch.stack([gram_matrix(step.block.norm(Z)) for Z in patches])
        for key, gram in (("stream", stream), ("normed", normed)):
            projected, lifted = subspace_rates_from_gram(gram, N, step.P)
            total = coding_rate_from_gram(gram, N)
            rates.setdefault(key, []).append(projected.mT)
            rates.setdefault(f"{key}_share", []).append((lifted / total[:, None]).mT)
    return {key: torch.stack(values) for key, values in rates.items()}


def operator_changes(step: MSSAStep) -> dict[str, Tensor]:
    """R(P^T (Y + share * update)) - R(P^T Y) of every head, Y = the operator's input: (heads,) each.

    `operator` is the full update, `small` the share `SMALL` of it.
    """
    small, full = coding_rate_changes(step.normed().double(), step.P, step.update.double(), (SMALL, 1.0))
    return {"small": small, "operator": full}


def agreement_row(layer: int, size: float, changes: dict[str, Tensor]) -> dict[str, Any]:
    """How often the changes (images, layers, heads) in one layer have the sign of its step, and their mean."""
    row: dict[str, Any] = {"layer": layer + 1, "step_size": size, "means_to": "raise" if size > 0 else "lower"}
    row["measured"] = changes["operator"][:, layer].numel()
    for reading, change in changes.items():
        own = change[:, layer]
        row[f"{reading}_agrees"] = int((own * size > 0).sum())
        row[f"{reading}_change"] = own.mean().item()
        row[f"{reading}_change_spread"] = _spread(own.mean(1)).item()
    return row


def agreeing(layers: list[dict[str, Any]], reading: str) -> int:
    """Cases of all layers in which the change has the sign of the step."""
    return sum(row[f"{reading}_agrees"] for row in layers)


def rate_rows(rates: dict[str, Tensor]) -> list[dict[str, Any]]:
    """A row for every layer, head and depth: mean and standard deviation over the images."""
    _, layers, heads, depths = rates["stream"].shape
    rows = []
    for layer, head, depth in itertools.product(range(layers), range(heads), range(depths)):
        row: dict[str, Any] = {"layer": layer + 1, "head": head + 1, "depth": depth}
        for key, values in rates.items():
            own = values[:, layer, head, depth]
            row |= {f"{key}_mean": own.mean().item(), f"{key}_spread": _spread(own).item()}
        rows.append(row)
    return rows


def _stack(records: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.stack([record[key] for record in records]) for key in records[0]}


def _spread(values: Tensor) -> Tensor:
    return values.std(0, correction=0)
