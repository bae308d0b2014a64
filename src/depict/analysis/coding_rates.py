"""How the coding rate of the patches moves in every layer's subspace, and whether the sign of the step foretells it.

Paper figure "coding-rate", eq. (22) as released.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depict.analysis.base import Result, Analysis, Sample
from depict.analysis.steps import MSSAStep, mssa_blocks, mssa_steps, why_no_mssa
from depict.coding_rate import (
    EPSILON,
    coding_rate_changes,
    coding_rate_from_gram,
    gram_matrix,
    subspace_rates_from_gram,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from depict.model import SegmentationModel

READINGS = {
    "small": "a hundredth of the update, on the tokens that the operator acts on",
    "operator": "the whole update, on the tokens that the operator acts on",
    "normed": "patches under the layer's norm, before and after the step",
    "stream": "patches as they are, before and after the step",
    "normed_share": "their share of the whole rate, under the layer's norm",
    "stream_share": "their share of the whole rate, as they are",
}
"""Whose rate is compared before and after a step."""
SMALL = 0.01
"""Share of an update that is too short to overshoot."""


class CodingRates(Analysis):
    """R(P'_h^T Z) for every layer's P at every depth."""

    name = "coding_rates"
    title = "Does a step raise or lower the coding rate in its subspace, as its sign says?"
    about = (
        "Every MSSA layer has bases P for each head; R(Pᵀ Z) is the coding rate of the patch embeddings in that "
        "subspace, R(P Pᵀ Z) / R(Z) its share of the whole (paper, figure “coding-rate”). A positive step size "
        "should raise the rate in the layer's own subspace, a negative one lower it: for orthonormal P and tokens "
        "without a norm that was true every time. A trained layer computes Z + step · MSSA(LayerNorm(Z)): its P is "
        "not orthonormal, its update is computed on normalized tokens but added to those before the norm, and it "
        "may be long. So several readings are counted: on the normalized tokens that the operator acts on (patches "
        "and classes in DEPICT-SA), a hundredth of the update, and the whole update; the patches under the layer's "
        "own norm, before and after the step; the patches as they are; and the share of the subspace in the whole "
        f"rate, for both. Rates are in nats at distortion ε = {EPSILON}; the paper does not state its own. MSCA "
        "steps move the class embeddings, not the patches, and are left out."
    )

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        self.blocks = mssa_blocks(model.decoder)
        self.rates: list[dict[str, Tensor]] = []
        self.changes: list[dict[str, Tensor]] = []
        self.places: list[int] = []

    @torch.no_grad()
    def update(self, sample: Sample) -> None:
        """Measure all heads of all layers at all depths."""
        if not self.blocks:
            return
        steps = mssa_steps(self.model.decoder, sample.trace)
        self.places = [step.place for step in steps]
        depths = [Z[0] for Z in sample.trace.Z[: steps[-1].place + 2]]
        self.rates.append(depth_rates(depths, steps))
        found = [operator_changes(step) for step in steps]
        self.changes.append({key: torch.stack([one[key] for one in found]) for key in found[0]})

    def compute(self) -> Result:
        """Curves, and how often direction and sign agree."""
        if not self.rates:
            return Result(skipped=why_no_mssa(self.model.config.decoder.name))
        rates = {key: torch.stack([one[key] for one in self.rates]) for key in self.rates[0]}
        sizes = [block.step_size().item() for block in self.blocks]
        changes = {key: torch.stack([one[key] for one in self.changes]) for key in self.changes[0]}
        for reading in rates:
            own = [rates[reading][:, layer, :, place : place + 2] for layer, place in enumerate(self.places)]
            changes[reading] = torch.stack([pair[..., 1] - pair[..., 0] for pair in own], dim=1)
        layers = [agreement_row(layer, size, changes) for layer, size in enumerate(sizes)]
        total = changes["operator"].numel()
        counts = {reading: sum(row[f"{reading}_agrees"] for row in layers) for reading in READINGS}
        result = Result(
            numbers={
                f"direction agrees with the sign (%): {READINGS[key]}": 100 * n / total for key, n in counts.items()
            },
            data={
                "epsilon": EPSILON,
                "images": len(self.rates),
                "step_sizes": sizes,
                "places": self.places,
                "axes": "layer of P, head, depth",
                **{key: {"mean": v.mean(0).tolist(), "spread": _spread(v).tolist()} for key, v in rates.items()},
            },
            tables={"agreement": layers, "rates": rate_rows(rates)},
            figures={"depth": draw_depth(rates, sizes, self.places)},
            captions={"depth": CAPTION},
        )
        result.numbers["steps that mean to raise the rate"] = float(sum(size > 0 for size in sizes))
        result.numbers["steps that mean to lower the rate"] = float(sum(size < 0 for size in sizes))
        result.text = words(layers, counts, total, len(self.rates))
        return result


def depth_rates(depths: list[Tensor], steps: list[MSSAStep]) -> dict[str, Tensor]:
    """Rates of one image's patches, Z (N, D) at every depth, in every layer's heads: (layers, heads, depths) each.

    stream, stream_share: R(P^T Z) and R(P P^T Z) / R(Z) of Z as it is; normed, normed_share: of LayerNorm(Z), with the
    norm of the layer that owns P.
    """
    N = len(depths[0])
    stream = torch.stack([gram_matrix(Z) for Z in depths])
    found: dict[str, list[Tensor]] = {}
    for step in steps:
        normed = torch.stack([gram_matrix(step.block.norm(Z)) for Z in depths])
        for key, gram in (("stream", stream), ("normed", normed)):
            alone, lifted = subspace_rates_from_gram(gram, N, step.P)
            whole = coding_rate_from_gram(gram, N)
            found.setdefault(key, []).append(alone.mT)
            found.setdefault(f"{key}_share", []).append((lifted / whole[:, None]).mT)
    return {key: torch.stack(values) for key, values in found.items()}


def operator_changes(step: MSSAStep) -> dict[str, Tensor]:
    """R(P^T (Y + share * update)) - R(P^T Y) of every head, Y = what the operator acted on: (heads,) each.

    `operator` is the whole update, `small` the share `SMALL` of it.
    """
    small, whole = coding_rate_changes(step.normed().double(), step.P, step.update.double(), (SMALL, 1.0))
    return {"small": small, "operator": whole}


def agreement_row(layer: int, size: float, changes: dict[str, Tensor]) -> dict[str, Any]:
    """What became of one layer: how often a change (images, layers, heads) has the sign of the step, and its mean."""
    row: dict[str, Any] = {"layer": layer + 1, "step_size": size, "means_to": "raise" if size > 0 else "lower"}
    row["measured"] = changes["operator"][:, layer].numel()
    for reading, change in changes.items():
        own = change[:, layer]
        row[f"{reading}_agrees"] = int((own * size > 0).sum())
        row[f"{reading}_change"] = own.mean().item()
        row[f"{reading}_change_spread"] = _spread(own.mean(1)).item()
    return row


def rate_rows(rates: dict[str, Tensor]) -> list[dict[str, Any]]:
    """A row for every layer's every head at every depth, mean and standard deviation over the images."""
    _, layers, heads, depths = rates["stream"].shape
    rows = []
    for layer, head, depth in itertools.product(range(layers), range(heads), range(depths)):
        row: dict[str, Any] = {"layer": layer + 1, "head": head + 1, "depth": depth}
        for key, values in rates.items():
            own = values[:, layer, head, depth]
            row |= {f"{key}_mean": own.mean().item(), f"{key}_spread": _spread(own).item()}
        rows.append(row)
    return rows


def _spread(values: Tensor) -> Tensor:
    return values.std(0, correction=0)


def words(layers: list[dict[str, Any]], counts: dict[str, int], total: int, images: int) -> list[str]:
    """What came out, in sentences."""
    signs = ", ".join(f"layer {row['layer']} {row['step_size']:+.2f} (means to {row['means_to']})" for row in layers)
    told = "; ".join(f"{READINGS[key]}: {n:,} of {total:,} ({100 * n / total:.1f} %)" for key, n in counts.items())
    paragraphs = [
        f"Step sizes: {signs}. Every layer's every head on {images:,} images makes {total:,} cases. Measured direction "
        f"and sign of the step agree in: {told}."
    ]
    if counts["small"] == total:
        law = "For a small step the sign decides the direction every time, although P is not orthonormal."
    else:
        law = f"Even a small step goes against its sign in {total - counts['small']:,} cases."
    long = [r for r in layers if r["operator_agrees"] < r["measured"] / 2 <= r["small_agrees"]]
    if long:
        law += f" The whole update mostly goes the other way in {_named(long)}, where it is so long that it overshoots."
    elif counts["small"] == counts["operator"] == total:
        law += " So it does for the whole update."
    paragraphs.append(law)
    failing = [row for row in layers if row["stream_agrees"] < row["measured"] / 2]
    if counts["stream"] == total:
        end = "The patches as they are go the way of the sign every time, as the paper reports for its ViT-L."
    elif failing:
        end = (
            f"The patches as they are mostly go against the sign in {_named(failing)}, while the paper reports that "
            "the sign tells both kinds of subspaces apart in its ViT-L."
        )
    else:
        end = f"The patches as they are mostly go the way of the sign, with {total - counts['stream']:,} exceptions."
    renormed = [row for row in layers if row["normed_agrees"] < row["measured"] / 2]
    if renormed:
        end += f" Under the layer's norm, which takes lengths away, they mostly go against it in {_named(renormed)}."
    return [*paragraphs, end]


def _named(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"layer {row['layer']} (step {row['step_size']:+.2f})" for row in rows)


CAPTION = (
    "Coding rate of the patches in the first head of every layer (left) and its share of the whole rate (right) at "
    "every depth, mean and standard deviation over the images. Top: under the norm of the layer that owns the "
    "subspace, as its operator sees them; bottom: as they are. The thick piece of a line is the layer's own step: "
    "it should rise where the step is positive (▲) and fall where it is negative (▼)."
)


def draw_depth(rates: dict[str, Tensor], sizes: list[float], places: list[int]) -> Figure:
    """The paper's figure, for normalized patches and for patches as they are: (images, layers, heads, depths) each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6.2), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    for line, (key, name) in enumerate((("normed", "normalized patches"), ("stream", "patches as they are"))):
        _curves(axes[line, 0], rates[key][:, :, 0], sizes, places)
        _curves(axes[line, 1], rates[f"{key}_share"][:, :, 0], sizes, places)
        axes[line, 0].set_title(name, loc="left")
        axes[line, 0].set_ylabel("R(Pᵀ Z) (nats)")
        axes[line, 1].set_ylabel("R(P Pᵀ Z) / R(Z)")
    depths = rates["stream"].shape[-1]
    for place in axes[1]:
        place.set_xticks(range(depths), [f"Z{depth}" for depth in range(depths)])
        place.set_xlabel("depth (steps taken)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def _curves(axes: Axes, values: Tensor, sizes: list[float], places: list[int]) -> None:
    """One line for each layer's subspace, values (images, layers, depths)."""
    from depict.viz.style import COLORS

    mean, spread = values.mean(0).numpy(), _spread(values).numpy()
    for layer, (size, place) in enumerate(zip(sizes, places, strict=True)):
        color = COLORS[layer % len(COLORS)]
        x = list(range(values.shape[-1]))
        mark, sign = ("^", "▲") if size > 0 else ("v", "▼")
        label = f"P of layer {layer + 1}, step {size:+.2f} {sign}"
        axes.plot(x, mean[layer], color=color, lw=1.2, marker=mark, ms=5, label=label)
        axes.plot(x[place : place + 2], mean[layer, place : place + 2], color=color, lw=4, alpha=0.7)
        axes.fill_between(x, mean[layer] - spread[layer], mean[layer] + spread[layer], color=color, alpha=0.15, lw=0)
    axes.grid(color="#dddddd")
    axes.set_axisbelow(True)
