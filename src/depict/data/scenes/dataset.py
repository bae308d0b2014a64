"""`scenes`: a built-in data set of landscapes, rendered on the fly. Nothing is downloaded or stored.

A scene depends on (seed, index) only: it is the same on every machine, in every process, at every resolution.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from depict.data.dataset import Dataset, Recipe
from depict.data.scenes.canvas import Canvas
from depict.data.scenes.land import FIELD, ROAD, paint_field, paint_mountains, paint_road, paint_sky, paint_water
from depict.data.scenes.things import paint_building, paint_car, paint_tree

if TYPE_CHECKING:
    import torch

Thing = tuple[float, np.random.Generator, Callable[[], None]]
"""The y of its base, its own random generator, and the function that paints it."""


def render(seed: int, index: int, size: int | tuple[int, int] = 128) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Render scene `index` of the series `seed`: image uint8 (H, W, 3) and labels uint8 (H, W)."""
    height, width = (size, size) if isinstance(size, int) else size
    rng = np.random.Generator(np.random.PCG64([seed, index]))
    canvas = Canvas(rng, (height, width), horizon=rng.uniform(0.36, 0.54))
    paint_sky(canvas)
    if rng.random() < 0.7:
        paint_mountains(canvas)
    paint_field(canvas)
    if rng.random() < 0.62:
        paint_water(canvas)
    road = paint_road(canvas) if rng.random() < 0.68 else None
    for _, stream, paint in sorted(_things(canvas, road), key=lambda thing: thing[0]):
        canvas.rng = stream
        paint()
    canvas.rng = rng
    return canvas.finish()


def _things(canvas: Canvas, road: Callable[[float], tuple[float, float]] | None) -> list[Thing]:
    """The objects of a scene: houses and trees on land, cars mostly on the road.

    The same number of random values is drawn whether or not there is room, and each object has its own generator, so
    that an object that fits at one resolution and not at another changes nothing else.
    """
    rng, below = canvas.rng, 1 - canvas.horizon
    ground = canvas.labels.copy()
    streams = iter(rng.spawn(10))
    things: list[Thing] = []

    def is_on(label: int, x: float, base: float) -> bool:
        row, column = int(base * canvas.height), int(x * canvas.height)
        return 0 <= column < canvas.width and row < canvas.height and ground[row, column] == label

    def find_spot(near: float, far: float, half: float) -> tuple[float, float] | None:
        """A position on dry land with room for a base of this half width (times its scale)."""
        for u, v in rng.random((8, 2)).tolist():
            x, base = (1.04 * u - 0.02) * canvas.aspect, canvas.horizon + below * (far + (near - far) * v)
            corners = (x + side * half * canvas.scale(base) for side in (-1, 0, 1))
            if all(is_on(FIELD, min(max(corner, 0), canvas.aspect - 0.01), base) for corner in corners):
                return x, base
        return None

    for _ in range(int(rng.random() * 3.5)):
        size, stream = rng.uniform(0.55, 0.85), next(streams)
        if spot := find_spot(0.45, 0.04, 0.18):
            things.append((spot[1], stream, partial(paint_building, canvas, *spot, size * canvas.scale(spot[1]))))
    for _ in range(1 + int(rng.random() * 4)):
        size, stream = rng.uniform(0.5, 0.85), next(streams)
        if spot := find_spot(0.85, 0.04, 0.02):
            things.append((spot[1], stream, partial(paint_tree, canvas, *spot, size * canvas.scale(spot[1]))))
    for _ in range(int(rng.random() * 4)):
        on_road, size, lane, stream = rng.random() < 0.8, rng.random(), rng.random() < 0.5, next(streams)
        base = canvas.horizon + below * rng.uniform(0.45, 0.95)
        spot = find_spot(0.95, 0.3, 0.1)
        if road is not None and on_road:
            center, half = road(base)
            x = center + half * (0.45 if lane else -0.45)
            if is_on(ROAD, x, base):
                things.append((base, stream, partial(paint_car, canvas, x, base, half * (0.7 + 0.2 * size), False)))
        elif spot:
            height = (0.26 + 0.1 * size) * canvas.scale(spot[1])
            things.append((spot[1], stream, partial(paint_car, canvas, *spot, height, True)))
    return things


class Scenes(Dataset):
    """Eight classes of landscape; training and validation are different scenes of one series."""

    name = "scenes"
    classes = ("sky", "mountain", "field", "water", "road", "building", "tree", "car")
    palette = (
        (135, 190, 235),
        (140, 120, 150),
        (170, 200, 90),
        (40, 100, 190),
        (90, 90, 95),
        (205, 120, 70),
        (40, 125, 60),
        (220, 50, 60),
    )
    recipe = Recipe(short_edge=128, max_aspect=1.0, crop=128, epochs=30, batch=16, lr=0.001)
    images: ClassVar = {"train": 600, "val": 100}
    first: ClassVar = {"train": 0, "val": 1_000_000}
    seed = 0

    def __init__(self, root: Path | None, split: str, size: int | tuple[int, int] = recipe.short_edge) -> None:
        super().__init__(root, split)
        self.size = size
        parts = ("train", "val") if split == "trainval" else (split,)
        self._numbers = [self.first[part] + index for part in parts for index in range(self.images[part])]
        self._rendered: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def name_of(self, index: int) -> str:
        """The split and the index of the scene."""
        return f"{self.split}_{index:05d}"

    def identity(self) -> Iterator[object]:
        """Which scenes; and, because the drawing code may change, checksums of a few of them."""
        yield self.seed, self.split, len(self), self.size
        for number in self._numbers[:8]:
            image, labels = render(self.seed, number, self.size)
            yield zlib.crc32(image.tobytes()), zlib.crc32(labels.tobytes())

    def read(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Render the sample, once: image uint8 (3, H, W), labels uint8 (H, W)."""
        import torch

        if not 0 <= index < len(self):
            raise IndexError(index)
        if index not in self._rendered:
            self._rendered[index] = render(self.seed, self._numbers[index], self.size)
        image, labels = self._rendered[index]
        return torch.tensor(image).permute(2, 0, 1), torch.tensor(labels)
