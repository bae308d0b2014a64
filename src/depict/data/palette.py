"""Colors for classes that come without any: natural ones where the name suggests one, all easy to tell apart.

Distances are Euclidean in CIELAB, where about 2 is just visible and 20 is obvious in small regions.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Color = tuple[int, int, int]

FIRST = (34, 119, 187)
"""The color of the first class where names suggest nothing."""
APART, SHARE = 25.0, 0.7
"""Least distance between natural colors: this, or this share of what as many colors can have at best."""
NATURAL: dict[str, Color] = {
    "background": (70, 70, 75),
    "sky": (135, 190, 235),
    "cloud": (205, 215, 225),
    "water sea river lake ocean": (40, 100, 190),
    "snow ice": (235, 242, 250),
    "tree forest vegetation": (40, 125, 60),
    "grass lawn meadow field": (160, 205, 85),
    "leaf plant": (95, 175, 45),
    "flower": (235, 110, 190),
    "sand beach": (225, 205, 140),
    "soil earth ground dirt": (125, 85, 50),
    "wood": (170, 120, 70),
    "rock stone mountain": (140, 120, 150),
    "road street asphalt": (115, 115, 120),
    "sidewalk pavement": (215, 165, 205),
    "building house": (205, 120, 70),
    "wall": (200, 180, 155),
    "roof": (150, 60, 45),
    "person pedestrian people human": (245, 160, 40),
    "skin": (240, 185, 160),
    "car vehicle": (220, 50, 60),
    "fire flame": (255, 95, 10),
}
_NATURAL = {word: color for words, color in NATURAL.items() for word in words.split()}


def palette_for(classes: Sequence[str]) -> tuple[Color, ...]:
    """One color per class: the one that its name suggests, or the nearest to it that is far from those in use."""
    suggested = {index: color for index, name in enumerate(classes) if (color := natural_color(name))}
    apart = min(APART, SHARE * _least_distance(distinct_colors(len(classes)))) if suggested else 0.0
    colors, in_lab = _candidates()
    to_used = np.full(len(colors), np.inf)  # distance of each candidate to the nearest color in use
    chosen: dict[int, Color] = {}
    for index in [*suggested, *(index for index in range(len(classes)) if index not in suggested)]:
        color = suggested.get(index)
        if color is None:
            color = colors[int(to_used.argmax())] if chosen else FIRST
        elif _least_distance([color, *chosen.values()]) < apart:
            far = np.flatnonzero(to_used >= min(apart, to_used.max()))
            color = colors[far[np.linalg.norm(in_lab[far] - lab(color), axis=1).argmin()]]
        chosen[index] = color
        np.minimum(to_used, np.linalg.norm(in_lab - lab(color), axis=1), out=to_used)
    return tuple(chosen[index] for index in range(len(classes)))


def distinct_colors(count: int) -> tuple[Color, ...]:
    """This many colors, each as far as possible from those before it; fewer are the beginning of more."""
    return palette_for([""] * count)


def natural_color(name: str) -> Color | None:
    """The color that a class name, or its last word ("palm tree", "trees"), suggests."""
    words = name.lower().replace("_", " ").split()
    if not words:
        return None
    return _NATURAL.get(words[-1]) or _NATURAL.get(words[-1].removesuffix("s"))


def lab(rgb: object) -> NDArray[np.float64]:
    """sRGB (..., 3) in 0..255 to CIELAB (..., 3), white point D65."""
    values = np.asarray(rgb, np.float64) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    to_xyz = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
    xyz = linear @ np.array(to_xyz).T / (0.95047, 1.0, 1.08883)
    x, y, z = np.moveaxis(np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116), -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


def voc_palette(count: int) -> tuple[Color, ...]:
    """The colors of Pascal VOC: the bits of the class index dealt to red, green and blue, highest first."""

    def channel(index: int, offset: int) -> int:
        return sum((index >> (3 * bit + offset) & 1) << (7 - bit) for bit in range(8))

    return tuple((channel(i, 0), channel(i, 1), channel(i, 2)) for i in range(count))


@functools.cache
def _candidates() -> tuple[list[Color], NDArray[np.float64]]:
    """Colors to choose from, as RGB and CIELAB: neither near black or white nor glaring."""
    steps = np.arange(0, 256, 17)
    grid = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1).reshape(-1, 3)
    values = lab(grid)
    saturation = (grid.max(1) - grid.min(1)) / np.maximum(grid.max(1), 1)
    kept = (values[:, 0] >= 35) & (values[:, 0] <= 88) & (saturation <= 0.85)
    return [(int(r), int(g), int(b)) for r, g, b in grid[kept]], values[kept]


def _least_distance(colors: Sequence[Color]) -> float:
    """The smallest distance between two of the colors; infinite for fewer than two."""
    values = lab(colors)
    pairs = np.linalg.norm(values[:, None] - values[None], axis=-1)
    return float(pairs[np.triu_indices(len(colors), 1)].min(initial=np.inf))
