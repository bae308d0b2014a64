"""The results of a study as a figure: a curve over sizes, or a point for every decoder."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from depict.studies.collect import Line
from depict.studies.plan import Study
from depict.viz.style import COLORS, MARKERS, add_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT_SIZE = 9


def results_figure(study: Study, lines: list[Line]) -> Figure:
    """The figure of all lines; to be made and saved under `figure_style(FONT_SIZE)`."""
    groups = list(dict.fromkeys(line["group"] for line in lines))
    figure = _subset_figure(lines, groups) if study.name == "subset" else _decoder_figure(lines, groups)
    settings = study.settings
    title = f"{settings.data.name}, {settings.encoder.name}{', frozen' if settings.encoder.freeze else ''}"
    several = any(len(line["seeds"]) > 1 for line in lines)
    figure.suptitle(f"{title}\n{'mean ± standard deviation over seeds' if several else 'one seed'}", fontsize=10)
    return figure


def _subset_figure(lines: list[Line], groups: list[str]) -> Figure:
    """mIoU over the number of training images, a curve for each decoder."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for index, (group, name) in enumerate(zip(groups, short_names(groups), strict=True)):
        curve = sorted((line for line in lines if line["group"] == group), key=lambda line: line["images"])
        shift = 1.012 ** (index - (len(groups) - 1) / 2)  # so that error bars do not cover each other
        axes.errorbar(
            [line["images"] * shift for line in curve],
            [100 * line["mean"] for line in curve],
            yerr=[100 * (line["spread"] or 0) for line in curve],
            color=COLORS[index % len(COLORS)],
            marker=MARKERS[index % len(MARKERS)],
            capsize=3,
            label=name,
        )
    sizes = sorted({line["images"] for line in lines})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axes.set_xlabel("training images")
    axes.set_ylabel("validation mIoU (%)")
    add_grid(axes)
    axes.legend()
    return figure


def _decoder_figure(lines: list[Line], groups: list[str]) -> Figure:
    """mIoU of each decoder, one panel for each group."""
    from matplotlib.figure import Figure

    counts = [sum(line["group"] == group for line in lines) for group in groups]
    width = 4.5 + 0.075 * max(len(name) for name in short_names([line["label"] for line in lines]))
    figure = Figure(figsize=(width, 1 + 0.5 * len(groups) + 0.3 * sum(counts)), layout="constrained")
    panels = figure.subplots(len(groups), 1, squeeze=False, sharex=True, height_ratios=[n + 1 for n in counts])[:, 0]
    for axes, group, color in zip(panels, groups, itertools.cycle(COLORS), strict=False):
        _draw_points(axes, [line for line in lines if line["group"] == group], color)
        axes.set_title(group if len(groups) > 1 else "", loc="left", fontsize=FONT_SIZE)
    panels[-1].set_xlabel("validation mIoU (%)")
    return figure


def _draw_points(axes: Axes, lines: list[Line], color: str) -> None:
    """A row for each line: its mean with the standard deviation, and its seeds in gray."""
    rows = range(len(lines))
    for row, line in zip(rows, lines, strict=True):
        scores = [100 * score for score in line["miou"]]
        axes.plot(scores, [row] * len(scores), "o", mfc="none", mec="#888888", ms=4, zorder=1)
        axes.errorbar(100 * line["mean"], row, xerr=100 * (line["spread"] or 0), fmt="D", color=color, capsize=3, ms=5)
    axes.set_yticks(rows, short_names([line["label"] for line in lines]))
    axes.set_ylim(len(lines) - 0.5, -0.5)
    add_grid(axes, "x")


def short_names(labels: list[str]) -> list[str]:
    """Labels `NAME,SETTING=VALUE…` without the settings that all labels of the same name share."""
    parts = [label.split(",") for label in labels]
    common = {name: set.intersection(*(set(part) for part in parts if part[0] == name)) for name, *_ in parts}
    return [",".join([name, *(one for one in settings if one not in common[name])]) for name, *settings in parts]
