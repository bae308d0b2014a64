"""The canvas of `scenes`: light, noise, anti-aliased shapes, and one label per pixel.

Coordinates are in units of the image height (y from 0 at the top to 1, x from 0 to width / height), so that a scene
looks the same at every resolution. Colors are RGB in 0..1. What a tree or a road looks like is defined elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[np.floating]
Box = tuple[slice, slice]

# zenith, horizon, direct light, ambient light, haze at the horizon (0..1)
_SKIES = {
    "noon": ((0.22, 0.45, 0.82), (0.68, 0.83, 0.96), (0.78, 0.74, 0.66), (0.42, 0.46, 0.53), 0.40),
    "golden": ((0.36, 0.48, 0.72), (1.00, 0.78, 0.48), (0.92, 0.62, 0.32), (0.40, 0.37, 0.42), 0.50),
    "sunset": ((0.27, 0.20, 0.44), (0.99, 0.47, 0.28), (0.85, 0.40, 0.24), (0.38, 0.30, 0.36), 0.40),
    "dawn": ((0.45, 0.55, 0.72), (0.98, 0.76, 0.76), (0.62, 0.46, 0.46), (0.44, 0.42, 0.50), 0.50),
    "dusk": ((0.12, 0.14, 0.34), (0.56, 0.38, 0.56), (0.34, 0.28, 0.42), (0.34, 0.33, 0.46), 0.40),
    "night": ((0.03, 0.05, 0.14), (0.11, 0.17, 0.32), (0.28, 0.32, 0.42), (0.24, 0.28, 0.38), 0.25),
    "overcast": ((0.60, 0.63, 0.68), (0.80, 0.82, 0.84), (0.26, 0.26, 0.26), (0.58, 0.59, 0.62), 0.50),
    "storm": ((0.22, 0.26, 0.32), (0.55, 0.57, 0.52), (0.26, 0.27, 0.25), (0.42, 0.45, 0.47), 0.45),
    "mist": ((0.72, 0.76, 0.78), (0.88, 0.87, 0.84), (0.25, 0.24, 0.22), (0.58, 0.59, 0.60), 0.70),
    "verdigris": ((0.20, 0.44, 0.46), (0.78, 0.86, 0.66), (0.58, 0.58, 0.42), (0.38, 0.44, 0.42), 0.50),
}


@dataclass
class Light:
    """Time of day and weather: colors as (3,) arrays, `side` -1 or 1 for a sun on the left or the right."""

    name: str
    zenith: Array
    horizon: Array
    direct: Array
    ambient: Array
    haze: float
    side: float
    sun: tuple[float, float]

    @property
    def dark(self) -> bool:
        """Whether lamps are on."""
        return self.name in ("dusk", "night", "storm")

    def on(self, color: Array, shade: Array | float) -> Array:
        """The color (..., 3) of a surface that receives `shade` (0..1, shape (...) ) of the direct light."""
        shade = np.asarray(shade, np.float32)[..., None]
        return color * (self.ambient + self.direct * shade)


def choose_light(rng: np.random.Generator, aspect: float, horizon: float) -> Light:
    """Choose time and weather at random, as a mix of two of the skies above, so that no two images are alike."""
    names = [*_SKIES, "noon", "noon", "noon", "golden", "verdigris"]  # most images are by day
    first, second = (names[int(rng.random() * len(names))] for _ in range(2))
    part = 0.35 * rng.random()
    pairs = zip(_SKIES[first], _SKIES[second], strict=True)
    values = [np.asarray(a, np.float32) * (1 - part) + np.asarray(b, np.float32) * part for a, b in pairs]
    zenith, low, direct, ambient, haze = values
    # Weaken the tint, or color would say nothing about the class.
    direct, ambient = (light + 0.35 * (light.mean() - light) for light in (direct, ambient))
    sun = (aspect * rng.uniform(0.08, 0.92), horizon * rng.uniform(0.1, 0.85))
    side = 1.0 if sun[0] > aspect / 2 else -1.0
    return Light(first, zenith, low, direct, ambient, float(haze), side, sun)


def colors(text: str) -> Array:
    """A palette (n, 3) from hexadecimal RGB values."""
    return np.asarray([tuple(bytes.fromhex(word)) for word in text.split()], np.float32) / 255


class Canvas:
    """An image in progress: `image` (H, W, 3) float32, `labels` (H, W) uint8, `x` (1, W) and `y` (H, 1)."""

    def __init__(self, rng: np.random.Generator, size: tuple[int, int], horizon: float) -> None:
        self.rng = rng
        self.height, self.width = size
        self.aspect = self.width / self.height
        self.horizon = horizon
        self.y = ((np.arange(self.height, dtype=np.float32) + 0.5) / self.height)[:, None]
        self.x = ((np.arange(self.width, dtype=np.float32) + 0.5) / self.height)[None, :]
        self.image = np.zeros((self.height, self.width, 3), np.float32)
        self.labels = np.zeros((self.height, self.width), np.uint8)
        self.light = choose_light(rng, self.aspect, horizon)
        # All texture is cut from one sheet of white noise, repeated once so that any cut fits; generating noise once
        # per image is what makes rendering fast.
        self.sheet = np.tile(rng.random((256, 256), dtype=np.float32), (2, 2))

    @property
    def whole(self) -> Box:
        """The box of the full image."""
        return slice(0, self.height), slice(0, self.width)

    def box(self, left: float, top: float, right: float, bottom: float) -> Box:
        """The pixels that a rectangle touches, clipped to the image (it may be empty)."""

        def span(low: float, high: float, end: int) -> slice:
            start = min(max(int(low * self.height) - 1, 0), end)
            return slice(start, max(min(int(high * self.height) + 2, end), start))

        return span(top, bottom, self.height), span(left, right, self.width)

    def grid(self, box: Box) -> tuple[Array, Array]:
        """The coordinates x (1, w) and y (h, 1) in a box."""
        return self.x[:, box[1]], self.y[box[0]]

    def cover(self, distance: Array) -> Array:
        """The share of each pixel that a shape covers, from the distance to its edge (positive inside)."""
        return np.clip(distance * self.height + 0.5, 0.0, 1.0)

    def polygon(self, box: Box, *points: tuple[float, float]) -> Array:
        """The coverage (h, w) of a convex polygon, with its corners given clockwise."""
        x, y = self.grid(box)
        inside = np.full((y.shape[0], x.shape[1]), np.inf, np.float32)
        for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
            length = float(np.hypot(x1 - x0, y1 - y0)) or 1.0
            inside = np.minimum(inside, ((x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)) / length)
        return self.cover(inside)

    def rectangle(self, box: Box, left: float, top: float, right: float, bottom: float) -> Array:
        """The coverage (h, w) of an axis-aligned rectangle."""
        x, y = self.grid(box)
        return self.cover(np.minimum(np.minimum(x - left, right - x), np.minimum(y - top, bottom - y)))

    def ellipse(self, box: Box, center: tuple[float, float], radius_x: float, radius_y: float) -> Array:
        """The coverage (h, w) of an ellipse."""
        x, y = self.grid(box)
        distance = 1 - np.sqrt(((x - center[0]) / radius_x) ** 2 + ((y - center[1]) / radius_y) ** 2)
        return self.cover(distance * min(radius_x, radius_y))

    def noise(self, box: Box, cells: float, stretch: float = 1.0, octaves: int = 1) -> Array:
        """Smooth noise (h, w) in 0..1: `cells` per unit of height, `stretch` times wider than high, halved octaves."""
        height, width = box[0].stop - box[0].start, box[1].stop - box[1].start
        total, weight = np.zeros((height, width), np.float32), 0.0
        for octave in range(octaves):
            top, left = (self.rng.random(2) * 256).astype(int)
            if total.size == 0:
                continue
            frequency = cells * 2**octave
            rows = min(max(round(height / self.height * frequency), 1) + 3, 256)
            columns = min(max(round(width / self.height * frequency / stretch), 1) + 3, 256)
            patch = Image.fromarray(self.sheet[top : top + rows, left : left + columns])
            inner = (1.0, 1.0, columns - 1.0, rows - 1.0)
            total += np.asarray(patch.resize((width, height), Image.Resampling.BICUBIC, inner)) * 0.5**octave
            weight += 0.5**octave
        return total / weight

    def slope(self, field: Array, axis: int) -> Array:
        """The slope of a field (h, w) along an axis, per unit of height."""
        return np.gradient(field, axis=axis) * self.height if field.shape[axis] > 1 else np.zeros_like(field)

    def line(self, cells: float, octaves: int = 3) -> Array:
        """Smooth noise along x (1, W) in -1..1, for the outlines of ridges and shores."""
        total, weight = np.zeros(self.width, np.float32), 0.0
        for octave in range(octaves):
            count = int(self.aspect * cells * 2**octave) + 4
            knots = self.sheet[int(self.rng.random() * 256)].take(np.arange(count), mode="wrap")
            at = self.x[0] / self.aspect * (count - 1)
            start = np.minimum(at.astype(int), count - 2)
            part = at - start
            part = part * part * (3 - 2 * part)
            total += (knots[start] * (1 - part) + knots[start + 1] * part) * 0.5**octave
            weight += 0.5**octave
        return (2 * total / weight - 1)[None, :]

    def depth(self, y: Array) -> Array:
        """Distance on the ground plane of a row below the horizon: 1 at the bottom edge, larger further away."""
        return (1 - self.horizon + 0.02) / np.maximum(y - self.horizon + 0.02, 0.004)

    def ground(self, box: Box, scale: float, stretch: float = 1.0) -> Array:
        """Noise (h, w) in 0..1 on the ground plane: coarse in front, fine and faint far away."""
        x, y = self.grid(box)
        depth = self.depth(y)
        rows = (depth * scale / stretch * 24).astype(int) + int(self.rng.random() * 256)
        columns = ((x - self.aspect / 2) * depth * scale * 24).astype(int) + int(self.rng.random() * 256)
        return 0.5 + (self.sheet[rows % 256, columns % 256] - 0.5) * np.clip(2.2 / depth, 0.15, 1.0)

    def scale(self, base: float) -> float:
        """Apparent size of an object whose base is at y = `base`: 0.45 at the horizon, 1 at the bottom edge."""
        return 0.45 + 0.55 * (base - self.horizon) / (1 - self.horizon)

    def haze(self, base: float) -> float:
        """Share of haze over an object whose base is at y = `base`."""
        return self.light.haze * 0.75 * max(0.0, 1 - (base - self.horizon) / (1 - self.horizon)) ** 2

    def paint(
        self, box: Box, coverage: Array, color: Array, label: int | None = None, haze: Array | float = 0.0
    ) -> None:
        """Blend in a color ((3,) or (h, w, 3)) by `coverage` (h, w); label the pixels covered by half or more."""
        if box[0].start >= box[0].stop or box[1].start >= box[1].stop:
            return
        air = np.asarray(haze, np.float32)[..., None]
        color = color + (self.light.horizon - color) * air
        view = self.image[box]
        view += coverage[..., None] * (color - view)
        if label is not None:
            self.labels[box][coverage >= 0.5] = label

    def shadow(self, x: float, base: float, width: float, height: float, strength: float = 0.45) -> None:
        """Darken the ground next to an object, away from the sun."""
        x += -self.light.side * width * 0.35
        box = self.box(x - width, base - height, x + width, base + height)
        gx, gy = self.grid(box)
        soft = np.clip(1.3 - ((gx - x) / width) ** 2 - ((gy - base) / height) ** 2, 0, 1)
        self.image[box] *= 1 - strength * soft[..., None]

    def finish(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Image and labels, uint8, with the effects of a camera: color cast, contrast, saturation, vignette, grain."""
        rng, image = self.rng, self.image
        image *= rng.uniform(0.93, 1.07, 3).astype(np.float32) * rng.uniform(0.9, 1.15)
        gray = image.mean(axis=2, keepdims=True)
        saturation = rng.uniform(0.75, 1.25)
        image = gray + (image - gray) * np.float32(saturation)
        image = np.clip(image, 0, 1) ** np.float32(rng.uniform(0.75, 1.1))
        away = (self.x / self.aspect - 0.5) ** 2 + (self.y - 0.5) ** 2
        image *= (1 - rng.uniform(0, 0.5) * away)[..., None]
        grain = self.noise(self.whole, 120) - 0.5
        image += (grain * rng.uniform(0.01, 0.05))[..., None]
        return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8), self.labels
