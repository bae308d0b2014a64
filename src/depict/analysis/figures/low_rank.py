"""Figures of R(Z), R(Q) and R(Q_bar) (paper figure "RQRZ")."""

from __future__ import annotations

from matplotlib.figure import Figure
from torch import Tensor

from depict.analysis.base import Result
from depict.viz.style import COLORS, add_grid
from depict.viz.symbols import as_mathtext

RATES = (("R(Z)", "o", 0), ("R(Q)", "s", 1), ("R(Q̄)", "D", 2))
"""Name, marker and color of the three rates."""


def figures(result: Result) -> dict[str, Figure]:
    """A point for every image, and the rates over depth."""
    return {"images": rates_of_images(result.measured.final), "depth": rates_over_depth(result.measured.depths)}


def rates_of_images(final: dict[str, Tensor]) -> Figure:
    """R(Q_bar) and R(Q) against R(Z), (images, 3) for each form of the final embeddings."""
    titles = {"raw": "after the last step", "masks": "at unit length, as in the masks"}
    figure = Figure(figsize=(7, 3.7), layout="constrained")
    for axes, (form, rates) in zip(figure.subplots(1, 2), final.items(), strict=True):
        of_Z, of_Q, of_Q_bar = rates.numpy().T
        axes.plot(of_Z, of_Q_bar, "o", color=COLORS[2], ms=4, label=as_mathtext("R(Q̄)"))
        axes.plot(of_Z, of_Q, "s", mec=COLORS[1], mfc="none", ms=4, label=as_mathtext("R(Q)"))
        low, high = rates.min().item(), rates.max().item()
        margin = 0.05 * (high - low) + 1e-6
        ends = [low - margin, high + margin]
        axes.plot(ends, ends, "--", color="#666666", lw=1, label="equal")
        axes.set(xlim=ends, ylim=ends, xlabel=as_mathtext("R(Z) (nats)"))
        axes.set_title(titles[form], fontsize=10)
        add_grid(axes)
    figure.axes[0].set_ylabel(as_mathtext("R(Q̄), R(Q) (nats)"))
    figure.axes[0].legend()
    return figure


def rates_over_depth(depths: dict[str, Tensor]) -> Figure:
    """The three rates, mean and standard deviation of (images, depths, 3)."""
    titles = {"raw": "raw", "unit": "at unit length"}
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    for axes, (form, rates) in zip(figure.subplots(1, 2), depths.items(), strict=True):
        mean, spread = rates.mean(0).numpy(), rates.std(0, correction=0).numpy()
        x = list(range(len(mean)))
        for index, (name, marker, color) in enumerate(RATES):
            y, error = mean[:, index], spread[:, index]
            axes.plot(x, y, marker=marker, ms=4, color=COLORS[color], label=as_mathtext(name))
            axes.fill_between(x, y - error, y + error, color=COLORS[color], alpha=0.2, lw=0)
        axes.set_xticks(x)
        axes.set_xlabel("depth (steps taken)")
        axes.set_title(titles[form], fontsize=10)
        add_grid(axes)
    figure.axes[0].set_ylabel("coding rate (nats)")
    figure.axes[0].legend()
    return figure
