"""Labels as pictures: indexed PNGs, and overlays of class colors on the image with a legend. NumPy and Pillow only.

Work is done in bands of rows, so that large pictures need little extra memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from depict.errors import UserError
from depict.inference.resample import bands

if TYPE_CHECKING:
    from depict.data.palette import Color

PAPER, INK = (250, 250, 248), (32, 33, 36)
OPACITY = 0.35
"""Of the class colors over the image; outlines are opaque."""
BAND_PIXELS = 1 << 20
LEGEND_ENTRIES = 24
"""At most this many classes are in a legend, those with the largest shares."""


def label_picture(labels: np.ndarray, palette: Sequence[Color]) -> Image.Image:
    """Labels (H, W) as a picture whose pixel values are the labels: uint8 with the palette, uint16 as gray levels."""
    picture = Image.fromarray(labels)
    if labels.dtype == np.uint8:
        # All 256 colors, black for those without a class: with fewer, Pillow writes fewer bits and truncates values.
        picture.putpalette(np.array(palette, np.uint8).tobytes().ljust(768, b"\0"))
    return picture


def overlay(
    image: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    palette: Sequence[Color],
    shares: Mapping[int, float],
    opacity: float = OPACITY,
    room_for_all: bool = False,
) -> Image.Image:
    """The image (H, W, 3) under a light tint and the outlines of its labels (H, W), with a legend below.

    `shares` maps the classes to show to the share of the image that each covers; labels without a class are gray.
    `room_for_all` makes the legend as high for few classes as for many: all frames of a video get one size.
    """
    height, width = labels.shape
    legend = draw_legend(width, classes, palette, shares, room_for_all)
    pixels = np.full((height + legend.height, legend.width, 3), PAPER, np.uint8)
    _blend(image, labels, palette, opacity, out=pixels[:height, :width])
    pixels[height:] = np.asarray(legend)
    return Image.fromarray(pixels)


def blend_labels(
    image: np.ndarray, labels: np.ndarray, palette: Sequence[Color], opacity: float = OPACITY
) -> np.ndarray:
    """The overlay without a legend: image (H, W, 3) and labels (H, W), uint8 or uint16, to uint8 (H, W, 3)."""
    pixels = np.empty_like(image)
    _blend(image, labels, palette, opacity, out=pixels)
    return pixels


def check_opacity(opacity: float) -> None:
    """Raise unless it is a share."""
    if not 0 <= opacity <= 1:
        raise UserError(f"the opacity must be between 0 and 1, not {opacity}.")


def _blend(image: np.ndarray, labels: np.ndarray, palette: Sequence[Color], opacity: float, out: np.ndarray) -> None:
    """Write the overlay to `out` (H, W, 3), band by band."""
    check_opacity(opacity)
    strength = round(256 * opacity)
    solid = np.zeros((np.iinfo(labels.dtype).max + 1, 3), np.uint8)
    solid[: len(palette)] = palette
    tint = solid.astype(np.uint16) * strength
    line = max(1, min(3, round(min(labels.shape) / 400)))  # pixels on each side of a border
    for start, stop in _row_bands(*labels.shape):
        pixels, rows = image[start:stop], labels[start:stop]
        mixed = ((pixels.astype(np.uint16) * (256 - strength) + tint[rows]) >> 8).astype(np.uint8)
        known = rows < len(palette)
        mixed[~known] = pixels[~known].mean(1, keepdims=True, dtype=np.float32)
        outline = _outlines(labels, start, stop, line) & known
        mixed[outline] = solid[rows[outline]]
        out[start:stop] = mixed


def _outlines(labels: np.ndarray, start: int, stop: int, line: int) -> np.ndarray:
    """The pixels of rows `start` to `stop` with another label at most `line` rows or columns away, (rows, W)."""
    rows = labels[start:stop]
    outline = np.zeros(rows.shape, bool)
    for step in range(1, line + 1):
        differ = rows[:, step:] != rows[:, :-step]
        outline[:, step:] |= differ
        outline[:, :-step] |= differ
        above = labels[max(0, start - step) : max(0, stop - step)]
        below = labels[start + step : stop + step]
        outline[len(rows) - len(above) :] |= rows[len(rows) - len(above) :] != above
        outline[: len(below)] |= rows[: len(below)] != below
    return outline


def draw_legend(
    width: int,
    classes: Sequence[str],
    palette: Sequence[Color],
    shares: Mapping[int, float],
    room_for_all: bool = False,
) -> Image.Image:
    """Color, name and share of the classes present, largest first, row by row in columns of one width.

    At least 160 pixels wide. `room_for_all` gives it the height that all classes of `shares` need.
    """
    width = max(width, 160)
    size = int(min(80, max(12, width / 55)))
    font = ImageFont.load_default(size)
    line, gap = size * 3 // 2, size // 2
    present = sorted((index for index in shares if shares[index] > 0), key=lambda index: -shares[index])
    present = present[:LEGEND_ENTRIES]
    columns = max(1, min((width - gap) // (13 * size), len(shares) if room_for_all else len(present)))
    column = (width - gap) / columns
    rows = -(-min(LEGEND_ENTRIES, len(shares) if room_for_all else max(1, len(present))) // columns)
    legend = Image.new("RGB", (width, rows * line + 2 * gap), PAPER)
    draw = ImageDraw.Draw(legend)
    # With few classes, wide columns would tear a name and its share apart.
    end = min(column - 2 * gap, 20 * size)
    for position, index in enumerate(present):
        x, y = gap + position % columns * column, gap + position // columns * line
        draw.rectangle((x, y, x + size, y + size), palette[index], outline=INK)
        share = f"{100 * shares[index]:.1f} %" if shares[index] >= 0.0005 else "<0.1 %"
        name = fit_text(classes[index], font, end - line - gap - font.getlength(share))
        draw.text((x + line, y + size / 2), name, INK, font, anchor="lm")
        draw.text((x + end, y + size / 2), share, INK, font, anchor="rm")
    return legend


def label_shares(labels: np.ndarray, shown: Sequence[int]) -> dict[int, float]:
    """The share of the pixels (H, W) that each class in `shown` covers."""
    counts = np.zeros(max(shown) + 1, np.int64)
    for start, stop in _row_bands(*labels.shape):
        counts += np.bincount(labels[start:stop].ravel(), minlength=len(counts))[: len(counts)]
    return {index: int(counts[index]) / labels.size for index in shown}


def _row_bands(height: int, width: int) -> Iterator[tuple[int, int]]:
    return bands(height, max(1, BAND_PIXELS // width))


def fit_text(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: float, end: str = "") -> str:
    """`text` and `end`, with the text cut so that both fit into `width` pixels."""
    short = text
    while len(short) > 1 and font.getlength(short + end) > width:
        short = short[:-2] + "…"
    return short + end
