"""Figure of the coding rates over depth (paper figure "coding-rate")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from torch import Tensor

from depict.analysis.base import Result
from depict.analysis.coding_rates import MeasuredRates
from depict.viz.style import COLORS, add_grid
from depict.viz.symbols import as_mathtext

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def figures(result: Result) -> dict[str, Figure]:
    """The rates over depth."""
    return {"depth": rates_over_depth(result.measured)}


def rates_over_depth(measured: MeasuredRates) -> Figure:
    """Rate and share in the first head of every layer, for patches after the norm (top) and before it (bottom)."""
    rates = measured.rates
    figure = Figure(figsize=(7, 6.2), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True)
    titles = {"normed": "patches after the layer's norm", "stream": "patches before the norm"}
    for (rate, share), (key, title) in zip(grid, titles.items(), strict=True):
        _plot_layers(rate, rates[key][:, :, 0], measured)
        _plot_layers(share, rates[f"{key}_share"][:, :, 0], measured)
        rate.set_title(title, loc="left")
        rate.set_ylabel(as_mathtext("R(Pᵀ Z) (nats)"))
        share.set_ylabel(as_mathtext("R(P Pᵀ Z) / R(Z)"))
    depths = rates["stream"].shape[-1]
    for axes in grid[1]:
        axes.set_xticks(range(depths), [as_mathtext(f"Z{depth}") for depth in range(depths)])
        axes.set_xlabel("depth (steps taken)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def _plot_layers(axes: Axes, values: Tensor, measured: MeasuredRates) -> None:
    """One line for each layer's subspace, values (images, layers, depths); the layer's own step is thick."""
    mean, spread = values.mean(0).numpy(), values.std(0, correction=0).numpy()
    x = list(range(values.shape[-1]))
    for layer, (size, depth) in enumerate(zip(measured.step_sizes, measured.depths, strict=True)):
        color = COLORS[layer % len(COLORS)]
        marker, sign = ("^", "▲") if size > 0 else ("v", "▼")
        label = as_mathtext(f"P of layer {layer + 1}, step {size:+.2f} {sign}")
        axes.plot(x, mean[layer], color=color, lw=1.2, marker=marker, ms=5, label=label)
        axes.plot(x[depth : depth + 2], mean[layer, depth : depth + 2], color=color, lw=4, alpha=0.7)
        axes.fill_between(x, mean[layer] - spread[layer], mean[layer] + spread[layer], color=color, alpha=0.15, lw=0)
    add_grid(axes)
