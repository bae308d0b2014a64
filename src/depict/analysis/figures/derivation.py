"""Figure of update against exact gradient, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from torch import Tensor

from depict.analysis.base import Result
from depict.analysis.derivation import EPSILONS
from depict.coding_rate import EPSILON
from depict.viz.style import COLORS, MARKERS, add_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COSINES = {
    "cosine": "all heads",
    "head_cosine": "single heads",
    "norm_cosine": "through the norm",
    "variance_cosine": "of the variance",
}
CHANGES = {"learned": "learned", "exact": "exact, equal length", "best": "exact, best length"}


def figures(result: Result) -> dict[str, Figure]:
    """All four panels as one figure."""
    return {"steps": steps_figure(result.tables["steps"], result.measured.cosines, result.measured.ranks)}


def steps_figure(rows: list[dict[str, Any]], cosines: Tensor, ranks: Tensor) -> Figure:
    """Cosines, cosines at other distortions (layers, EPSILONS), changes, and ranks (images, depths)."""
    figure = Figure(figsize=(7, 7), layout="constrained")
    (by_layer, by_epsilon), (changes, decay) = figure.subplots(2, 2)
    _plot_cosines(by_layer, rows)
    _plot_cosines_by_epsilon(by_epsilon, rows, cosines)
    _plot_changes(changes, rows)
    _plot_ranks(decay, ranks)
    for axes in (by_layer, by_epsilon):
        axes.set(ylim=(-1.08, 1.08), ylabel="cosine with the gradient")
    for axes in (by_layer, changes):
        axes.set_xticks([row["layer"] for row in rows])
        axes.set_xlabel("layer")
    for axes in (by_layer, by_epsilon, changes):
        axes.axhline(0, color="black", lw=0.8)
        axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    for axes in (by_layer, by_epsilon, changes, decay):
        add_grid(axes, "y")
    return figure


def _plot_cosines(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for index, (key, label) in enumerate(COSINES.items()):
        axes.errorbar(
            [row["layer"] + 0.13 * (index - 1.5) for row in rows],
            [row[key] for row in rows],
            yerr=[row[f"{key}_spread"] for row in rows],
            fmt=MARKERS[index],
            ms=5,
            capsize=2,
            color=COLORS[index],
            label=label,
        )


def _plot_cosines_by_epsilon(axes: Axes, rows: list[dict[str, Any]], cosines: Tensor) -> None:
    for index, (row, line) in enumerate(zip(rows, cosines.numpy(), strict=True)):
        axes.plot(
            EPSILONS,
            line,
            color=COLORS[index % len(COLORS)],
            marker=MARKERS[index % len(MARKERS)],
            ms=4,
            label=f"layer {row['layer']}, step {row['step_size']:+.2f}",
        )
    axes.set(xscale="log", xlabel="distortion ε")
    axes.axvline(EPSILON, color="#666666", lw=1, ls=":")


def _plot_changes(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for index, (key, label) in enumerate(CHANGES.items()):
        axes.bar(
            [row["layer"] + 0.27 * (index - 1) for row in rows],
            [row[f"{key}_change_nats"] for row in rows],
            0.26,
            yerr=[row[f"{key}_change_nats_spread"] for row in rows],
            capsize=2,
            color=COLORS[index],
            hatch=("", "//", "..")[index],
            edgecolor="white",
            label=label,
        )
    axes.set_ylabel("change of the objective (nats)")


def _plot_ranks(axes: Axes, ranks: Tensor) -> None:
    depths = list(range(ranks.shape[1]))
    spread = ranks.std(0, correction=0).numpy()
    axes.errorbar(depths, ranks.mean(0).numpy(), yerr=spread, marker="o", capsize=2, color=COLORS[0])
    axes.set(ylim=(0, None), ylabel="effective rank of the patches", xlabel="depth (MSSA steps taken)")
    axes.set_xticks(depths)
