"""Figure of the four terms of self-attention on patches and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from torch import Tensor

from depict.analysis.base import Result
from depict.viz.style import COLORS, add_grid
from depict.viz.symbols import as_mathtext

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TERMS = (
    ("Z Zᵀ Z", "o", COLORS[0]),
    ("Q Qᵀ Z", "o", COLORS[4]),
    ("Z Zᵀ Q", "s", COLORS[2]),
    ("Q Qᵀ Q", "s", COLORS[3]),
)
"""Name, marker and color."""


def figures(result: Result) -> dict[str, Figure]:
    """The four terms in every layer."""
    return {"terms": term_sizes(result.measured.plain, result.measured.softmax)}


def term_sizes(plain: Tensor, softmax: Tensor) -> Figure:
    """Terms without and with softmax, (images, layers, heads, 4) each."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _plot_terms(left, plain)
    _plot_terms(right, softmax)
    left.set_title("without softmax", fontsize=10)
    right.set_title("with softmax", fontsize=10)
    left.set_ylabel("size per token (Frobenius)")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _plot_terms(axes: Axes, terms: Tensor) -> None:
    over_heads = terms.mean(2)
    mean, spread = over_heads.mean(0).numpy(), over_heads.std(0, correction=0).numpy()
    for index, (name, marker, color) in enumerate(TERMS):
        axes.errorbar(
            [layer + 1 + 0.14 * (index - 1.5) for layer in range(len(mean))],
            mean[:, index],
            yerr=spread[:, index],
            fmt=marker,
            capsize=3,
            ms=7,
            color=color,
            mfc="white" if index % 2 else color,
            label=as_mathtext(name),
        )
    axes.set_yscale("log")
    axes.set_xlim(0.5, len(mean) + 0.5)
    axes.set_xticks(range(1, len(mean) + 1))
    axes.set_xlabel("layer")
    add_grid(axes, "y")
