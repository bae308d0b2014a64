"""Attention maps as heat over the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from depict.io.images import to_rgb
from depict.viz.overlays import INK, PAPER

if TYPE_CHECKING:
    from depict.analysis.attention import AttentionMap
    from depict.io.images import ImageLike

TILE, SINGLE = 320, 960
"""Longest side in pixels of each map of a sheet, and of a map alone."""
GAP, CAPTION = 8, 22
"""Pixels between the maps, and for a line of text."""


def attention_sheet(
    picture: ImageLike, maps: Sequence[AttentionMap], cells: tuple[float, float], at: tuple[int, int] | None = None
) -> Image.Image:
    """The maps over the image, a row for each layer and a column for each head; one map alone is drawn large.

    The image covers `cells` rows and columns of patches. Each map has its own scale, from 0 to the largest value, which
    its caption gives. A ring marks the pixel `at` (x, y).
    """
    image = to_rgb(picture)
    height, width = image.shape[:2]
    single = len(maps) == 1
    factor = (SINGLE if single else TILE) / max(height, width)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    gray = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS).convert("L"))
    layers = sorted({each.layer for each in maps})
    heads = 1 if single else max(each.head for each in maps)
    column, line = max(size[0], 150) + GAP, size[1] + CAPTION + GAP
    sheet = Image.new("RGB", (column * heads + GAP, line * len(layers) + GAP + CAPTION), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    draw.text((GAP, GAP), f"attention of the {maps[0].query}", INK, font)
    for each in maps:
        x = GAP + column * (0 if single else each.head - 1)
        y = GAP + CAPTION + line * layers.index(each.layer)
        sheet.paste(_heat(each.values, gray, cells), (x, y))
        caption = f"{each.operator} {each.layer}, head {each.head}: up to {each.values.max():.2g}"
        draw.text((x, y + size[1] + 2), caption, INK, font)
        if at is not None:
            center = x + (at[0] + 0.5) * factor, y + (at[1] + 0.5) * factor
            for radius, color in ((7, "black"), (6, "white"), (5, "white"), (4, "black")):
                draw.circle(center, radius, outline=color)
    return sheet


def _heat(values: np.ndarray, gray: np.ndarray, cells: tuple[float, float]) -> Image.Image:
    """Heat (h, w) over a gray image (H, W), which covers the first `cells` rows and columns of patches."""
    from matplotlib import colormaps

    box = (0, 0, cells[1], cells[0])
    size = (gray.shape[1], gray.shape[0])
    heat = np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BILINEAR, box=box))
    heat = np.clip(heat / max(float(values.max()), 1e-12), 0, 1)[..., None]
    color = 255 * colormaps["inferno"](heat[..., 0])[..., :3]
    strength = 0.25 + 0.65 * heat
    return Image.fromarray(((1 - strength) * gray[..., None] + strength * color).astype(np.uint8))
