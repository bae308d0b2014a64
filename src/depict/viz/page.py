"""Self-contained HTML pages: one file without scripts or external addresses, light and dark, for phones and desktops.

`page.html.jinja` is the frame with the style (`page.css`), `parts.html.jinja` has the parts that the
reports share: tables, figures that a tap enlarges, legends.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from depict.io.files import atomic_path
from depict.viz.dark import dark_copy
from depict.viz.style import figure_bytes
from depict.viz.symbols import as_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISSING = "–"
LARGEST_SVG = 500_000
"""Bytes. A page embeds the PNG of a larger drawing, such as one of many thousand points."""
CSS_PIXELS = 96
"""Per inch."""


@dataclass(frozen=True)
class Picture:
    """A figure or photo as a page embeds it."""

    address: str
    """Data URL."""
    dark: str | None
    """Data URL for a dark page; None for a photo, which is the same."""
    width: int
    """CSS pixels."""
    height: int
    alt: str


def write_page(path: Path, template: str, **values: Any) -> None:
    """Fill in a template of the package, such as `analysis/report.html.jinja`; all values are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("depict", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["symbols"] = as_html
    page = environment.get_template(template).render(**values)
    with atomic_path(path) as temporary:
        temporary.write_bytes(page.encode("utf-8", "backslashreplace"))  # names of files may have broken characters


def embed_figure(figure: Figure, alt: str) -> Picture:
    """A figure, with a version for dark pages."""
    width, height = (round(CSS_PIXELS * side) for side in figure.get_size_inches())
    return Picture(_drawing(figure), _drawing(dark_copy(figure)), width, height, alt)


def embed_photo(pixels: np.ndarray, alt: str, flat: bool = False) -> Picture:
    """Pixels uint8 (H, W, 3) as JPEG, or as PNG if they are `flat` colors."""
    file = io.BytesIO()
    if flat:
        Image.fromarray(pixels).quantize(256).save(file, "png", optimize=True)
    else:
        Image.fromarray(pixels).save(file, "jpeg", quality=85)
    address = data_address(file.getvalue(), "png" if flat else "jpeg")
    return Picture(address, None, pixels.shape[1], pixels.shape[0], alt)


def _drawing(figure: Figure) -> str:
    """A data URL of the figure as SVG, or as PNG if that is large."""
    drawing = figure_bytes(figure, "svg")
    if len(drawing) <= LARGEST_SVG:
        return data_address(drawing, "svg+xml")
    return data_address(figure_bytes(figure, "png"), "png")


def data_address(content: bytes, kind: str) -> str:
    """A data URL of an image."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def format_number(value: float | None, label: str = "") -> str:
    """A number for people: one decimal for percentages and degrees, else about three digits; a dash for none."""
    if value is None or not math.isfinite(value):
        return MISSING
    if "%" in label or "degrees" in label:
        return f"{value:.1f}"
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.001:
        return f"{value:.2g}"
    return f"{value:.{1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3}f}"
