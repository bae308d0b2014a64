"""Attention maps as heat over the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from depict.io.images import to_rgb
from depict.viz.overlays import INK, PAPER, fit_text

if TYPE_CHECKING:
    from depict.analysis.attention import AttentionMap
    from depict.io.images import ImageLike

TILE, SINGLE = 320, 960
"""Longest side in pixels of each map of a sheet, and of a map alone."""
GAP, CAPTION = 8, 22
"""Pixels between the maps, and for a line of text."""
HEADER = 2 * CAPTION
"""Pixels for the title and the color bar."""
BAR = 200
"""Width in pixels of the color bar."""
Scale = Literal["own", "common"]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def attention_sheet(
    picture: ImageLike,
    maps: Sequence[AttentionMap],
    cells: tuple[float, float],
    at: tuple[int, int] | None = None,
    scale: Scale = "own",
) -> Image.Image:
    """The maps over the image, a row for each layer and a column for each head; one map alone is drawn large.

    The image covers `cells` rows and columns of patches. Colors go from 0 to the largest value of each map (`own`)
    or of all maps (`common`); if there are signed weights, from its negative (blue) to it (red). A caption gives the
    range of its map. A ring marks the pixel `at` (x, y).
    """
    image = to_rgb(picture)
    height, width = image.shape[:2]
    single = len(maps) == 1
    factor = (SINGLE if single else TILE) / max(height, width)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    gray = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS).convert("L"))
    layers = sorted({each.layer for each in maps})
    heads = 1 if single else max(each.head for each in maps)
    signed = any(each.values.min() < 0 for each in maps)
    font = ImageFont.load_default(13)
    captions = [_caption(each, signed) for each in maps]
    column = max(size[0], 150, *(math.ceil(font.getlength(caption)) for caption in captions)) + GAP
    line = size[1] + CAPTION + GAP
    sheet = Image.new("RGB", (column * heads + GAP, line * len(layers) + GAP + HEADER), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, GAP), fit_text(f"attention of the {maps[0].query}", font, sheet.width - 2 * GAP), INK, font)
    highest = max(float(np.abs(each.values).max()) for each in maps)
    shared = single or scale == "common"
    ends = (f"{-highest:.2g}" if signed else "0", f"{highest:.2g}") if shared else _own_ends(signed)
    _draw_bar(sheet, (GAP, GAP + CAPTION), *ends, font, signed)
    for each, caption in zip(maps, captions, strict=True):
        x = GAP + column * (0 if single else each.head - 1)
        y = GAP + HEADER + line * layers.index(each.layer)
        largest = float(np.abs(each.values).max())
        sheet.paste(_heat(each.values, gray, cells, highest if shared else largest, signed), (x, y))
        draw.text((x, y + size[1] + 2), caption, INK, font)
        if at is not None:
            center = x + (at[0] + 0.5) * factor, y + (at[1] + 0.5) * factor
            for radius, color in ((7, "black"), (6, "white"), (5, "white"), (4, "black")):
                draw.circle(center, radius, outline=color)
    return sheet


def _caption(each: AttentionMap, signed: bool) -> str:
    """Operator, layer, head and range of a map."""
    low, high = float(each.values.min()), float(each.values.max())
    reach = f"{low:.2g} to {high:.2g}" if signed else f"up to {high:.2g}"
    return f"{each.operator} {each.layer}, head {each.head}: {reach}"


def _own_ends(signed: bool) -> tuple[str, str]:
    """The ends of the color bar if every map has its own scale."""
    return ("-max", "max |value| of each map") if signed else ("0", "largest value of each map")


def _draw_bar(sheet: Image.Image, corner: tuple[int, int], lowest: str, highest: str, font: Font, signed: bool) -> None:
    """A bar of the colors from `lowest` to `highest`, as they look over a gray image."""
    draw, (x, y) = ImageDraw.Draw(sheet), corner
    x += int(draw.textlength(lowest, font)) + 6
    width = max(20, int(min(BAR, sheet.width - x - GAP - 6 - draw.textlength(highest, font))))
    ramp = np.linspace(-1 if signed else 0, 1, width, dtype=np.float32)[None].repeat(12, 0)
    sheet.paste(_colored(ramp, np.full(ramp.shape, 128), signed), (x, y + 2))
    draw.text((corner[0], y), lowest, INK, font)
    draw.text((x + width + 6, y), highest, INK, font)


def _heat(
    values: np.ndarray, gray: np.ndarray, cells: tuple[float, float], highest: float, signed: bool
) -> Image.Image:
    """Heat (h, w) over a gray image (H, W), which covers the first `cells` rows and columns of patches."""
    box = (0, 0, cells[1], cells[0])
    size = (gray.shape[1], gray.shape[0])
    heat = np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BILINEAR, box=box))
    return _colored(np.clip(heat / max(highest, 1e-12), -1, 1), gray, signed)


def _colored(heat: np.ndarray, gray: np.ndarray, signed: bool) -> Image.Image:
    """The colors of heat (H, W) in 0..1, or -1..1 if signed, over gray levels (H, W): the hotter, the less of these."""
    from matplotlib import colormaps

    color = 255 * (colormaps["RdBu_r"](0.5 + 0.5 * heat) if signed else colormaps["inferno"](heat))[..., :3]
    strength = 0.25 + 0.65 * np.abs(heat)[..., None]
    return Image.fromarray(((1 - strength) * gray[..., None] + strength * color).astype(np.uint8))
