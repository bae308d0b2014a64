"""The figure of robustness, for one run or several."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from depict.analysis.base import Result
from depict.analysis.perturbation import READINGS, TRANSFORMATIONS, Row, find_row
from depict.viz.style import COLORS, MARKERS, add_grid

MAX_NAME = 70
"""Characters of a run's name that fit into the legend."""
LINE_STYLES = dict(zip(READINGS, ("-", ":"), strict=True))


def figures(result: Result) -> dict[str, Figure]:
    """mIoU after every perturbation."""
    return {"mIoU": miou_after_perturbation(result.measured)}


def miou_after_perturbation(runs: dict[str, list[Row]]) -> Figure:
    """Transformations on top, curves over sigma below; each run, given by its rows, has a color."""
    columns = 3 if max(map(len, runs)) <= 22 else 1  # long names get a line of the legend each
    figure = Figure(figsize=(6.5, 6.2 + 0.2 * (len(runs) // columns)), layout="constrained")
    top, bottom = figure.subplots(2, 1)
    for index, (name, rows) in enumerate(runs.items()):
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        shift = 0.5 * (index - (len(runs) - 1) / 2) / max(1, len(runs))
        transformed = [(x, row) for x, kind in enumerate(TRANSFORMATIONS) if (row := find_row(rows, kind))]
        top.errorbar(
            [x + shift for x, _ in transformed],
            [100 * row["mean"] for _, row in transformed],
            yerr=[100 * (row["spread"] or 0) for _, row in transformed],
            fmt=marker,
            color=color,
            capsize=3,
            label=name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…",
        )
        for reading, style in LINE_STYLES.items():
            curve = [row for row in rows if row["reading"] == reading]
            bottom.errorbar(
                [row["sigma"] for row in curve],
                [100 * row["mean"] for row in curve],
                yerr=[100 * (row["spread"] or 0) for row in curve],
                fmt=marker + style,
                color=color,
                capsize=3,
                ms=4,
            )
    labels = ("unperturbed", r"$P\,O_K$", r"$P'_h\,O_M$" + "\n(identity)", r"$\mathrm{Ortho}(P'_h)$")
    top.set_xticks(range(len(labels)), labels)
    top.set_xlim(-0.5, len(labels) - 0.5)
    bottom.set_xscale("log")
    bottom.set_xlabel("sigma of the noise on every parameter of the decoder")
    for axes in (top, bottom):
        axes.set_ylabel("mIoU (%)")
        axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
        add_grid(axes, "y")
    readings = [
        Line2D([], [], color="#444444", ls=style, label=f"sigma is the {reading}")
        for reading, style in LINE_STYLES.items()
    ]
    bottom.legend(handles=readings, fontsize=8)
    if len(runs) > 1:
        top.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, fontsize=8)
    return figure
