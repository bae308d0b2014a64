"""Labels as pictures: indexed PNGs, and overlays of class colors on the image with a legend. NumPy and Pillow only.

Work is done in bands of rows, so that large pictures need little extra memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from depict.inference.resample import bands

if TYPE_CHECKING:
    from depict.data.palette import Color

PAPER, INK = (250, 250, 248), (32, 33, 36)
BAND_PIXELS = 1 << 20
LEGEND_ENTRIES = 24
"""At most this many classes are in a legend, those with the largest shares."""
# Weights of the image and the class color, and of the image on borders, in 256ths.
IMAGE, COLOR, BORDER = 110, 146, 90


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
) -> Image.Image:
    """The image (H, W, 3) blended with the colors of its labels (H, W), borders dark, and a legend below.

    `shares` maps the classes to show to the share of the image that each covers; labels without a class are gray. The
    size depends only on the image size and the classes, so that overlays of frames make a video.
    """
    height, width = labels.shape
    legend = draw_legend(width, classes, palette, shares)
    pixels = np.full((height + legend.height, legend.width, 3), PAPER, np.uint8)
    _blend(image, labels, palette, out=pixels[:height, :width])
    pixels[height:] = np.asarray(legend)
    return Image.fromarray(pixels)


def blend_labels(image: np.ndarray, labels: np.ndarray, palette: Sequence[Color]) -> np.ndarray:
    """The overlay without a legend: image (H, W, 3) and labels (H, W), uint8 or uint16, to uint8 (H, W, 3)."""
    pixels = np.empty_like(image)
    _blend(image, labels, palette, out=pixels)
    return pixels


def _blend(image: np.ndarray, labels: np.ndarray, palette: Sequence[Color], out: np.ndarray) -> None:
    """Write the overlay to `out` (H, W, 3), band by band."""
    colors = np.zeros((np.iinfo(labels.dtype).max + 1, 3), np.uint16)
    colors[: len(palette)] = np.array(palette, np.uint16) * COLOR
    for start, stop in _row_bands(*labels.shape):
        out[start:stop] = _blend_band(image, labels, start, stop, colors, len(palette))


def _blend_band(
    image: np.ndarray, labels: np.ndarray, start: int, stop: int, colors: np.ndarray, classes: int
) -> np.ndarray:
    """Rows `start` to `stop` of the overlay, uint8 (stop - start, W, 3)."""
    pixels, rows = image[start:stop], labels[start:stop]
    mixed = (pixels.astype(np.uint16) * IMAGE + colors[rows]) >> 8
    border = np.zeros(rows.shape, bool)
    border[:, 1:] = rows[:, 1:] != rows[:, :-1]
    above = labels[max(0, start - 1) : stop - 1]
    border[len(rows) - len(above) :] |= rows[len(rows) - len(above) :] != above
    mixed[border] = pixels[border].astype(np.uint16) * BORDER >> 8
    unknown = (rows >= classes) & ~border
    mixed[unknown] = pixels[unknown].mean(1, keepdims=True, dtype=np.float32)
    return mixed.astype(np.uint8)


def draw_legend(
    width: int, classes: Sequence[str], palette: Sequence[Color], shares: Mapping[int, float]
) -> Image.Image:
    """Color, name and share of the classes present, largest first, in columns; at least 160 pixels wide."""
    width = max(width, 160)
    size = int(min(80, max(12, width / 55)))
    font = ImageFont.load_default(size)
    line, gap = size * 3 // 2, size // 2
    names = {index: classes[index] for index in shares}
    column = int(min(width - 2 * gap, _widest(tuple(names.values()), size) + line + 2 * gap, 18 * size))
    columns = max(1, (width - 2 * gap) // max(1, column))
    rows = -(-min(LEGEND_ENTRIES, len(names)) // columns)
    legend = Image.new("RGB", (width, rows * line + 2 * gap), PAPER)
    draw = ImageDraw.Draw(legend)
    present = sorted((index for index in names if shares[index] > 0), key=lambda index: -shares[index])
    for position, index in enumerate(present[:LEGEND_ENTRIES]):
        x, y = gap + position // rows * column, gap + position % rows * line
        draw.rectangle((x, y, x + size, y + size), palette[index], outline=INK)
        text = fit_text(names[index], font, column - line - gap, f"  {100 * shares[index]:.1f} %")
        draw.text((x + line, y + size / 2), text, INK, font, anchor="lm")
    return legend


@functools.lru_cache
def _widest(names: tuple[str, ...], size: int) -> float:
    """Width in pixels of the longest legend entry; cached, since it is the same for all pictures of a size."""
    font = ImageFont.load_default(size)
    return max((font.getlength(f"{name}  100.0 %") for name in names), default=0)


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
