"""Shared figure style: colors, markers, grid, and saving so that equal data give equal files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from depict.io.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette: distinguishable by color-blind readers."""
MARKERS = "osD^vPX"
GRID = "#dddddd"


@contextmanager
def figure_style(font_size: float) -> Iterator[None]:
    """Font size of the figures that are made and saved inside."""
    import matplotlib

    with matplotlib.rc_context({"font.size": font_size}):
        yield


def add_grid(axes: Axes, axis: str = "both") -> None:
    """A light grid behind the data."""
    axes.grid(axis=axis, color=GRID)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def save_figure(figure: Figure, stem: Path, dpi: int = 150) -> None:
    """Write `stem`.png and `stem`.svg atomically."""
    for kind in ("png", "svg"):
        with atomic_path(stem.with_name(f"{stem.name}.{kind}")) as temporary:
            temporary.write_bytes(figure_bytes(figure, kind, dpi))


def figure_bytes(figure: Figure, kind: str, dpi: int = 150) -> bytes:
    """The figure as `png` or `svg`, without dates or program names in it."""
    import matplotlib

    file = io.BytesIO()
    metadata = {"png": {"Software": None}, "svg": {"Date": None}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "depict"}):  # or SVG elements get random names
        figure.savefig(file, format=kind, dpi=dpi, metadata=metadata)
    return file.getvalue()
