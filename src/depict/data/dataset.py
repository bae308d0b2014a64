"""What a data set is: images with a label per pixel, numbered; and how pairs of files become one.

A new data set is one short file: a subclass of `FileDataset` that lists its images and masks, with class
names, a palette and what its mask values mean (or of `Dataset`, when the samples are not files).
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

IGNORE = 255
Color = tuple[int, int, int]


@dataclass(frozen=True)
class Recipe:
    """The published way to train on a data set; a configuration may say otherwise."""

    short_edge: int
    """Short edge of the box that images are resized into."""
    max_aspect: float
    """Long edge of that box over its short edge."""
    crop: int
    """Training crop, which is also the window in inference."""
    epochs: int
    batch: int
    lr: float
    stride: int | None = None
    """Step between windows in the validations of a training; None where nothing is published: that of evaluation."""


class Dataset:
    """Images and labels by index. `classes` and `palette` belong together; labels are indices into both."""

    name: str
    classes: tuple[str, ...]
    palette: tuple[Color, ...]
    recipe: Recipe

    def __init__(self, root: Path | None, split: str) -> None:
        self.root = root
        self.split = split

    def __len__(self) -> int:
        raise NotImplementedError

    def name_of(self, index: int) -> str:
        """A name for the sample, unique within the split and fit for a file name."""
        raise NotImplementedError

    def identity(self) -> Iterator[object]:
        """Plain values that differ when any sample does, without reading them all: a cache is known by these."""
        raise NotImplementedError

    def read(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The sample unaugmented: image uint8 (3, H, W), labels uint8 (H, W) with 255 = ignored."""
        raise NotImplementedError


class Subset(Dataset):
    """Some samples of another data set, in the given order."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        super().__init__(dataset.root, dataset.split)
        self.dataset = dataset
        self.indices = list(indices)
        self.name, self.classes, self.palette, self.recipe = (
            dataset.name,
            dataset.classes,
            dataset.palette,
            dataset.recipe,
        )

    def __len__(self) -> int:
        return len(self.indices)

    def name_of(self, index: int) -> str:
        """The name it has in the whole data set."""
        return self.dataset.name_of(self.indices[index])

    def identity(self) -> Iterator[object]:
        """Which samples, and of what."""
        yield self.indices
        yield from self.dataset.identity()

    def read(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The sample as the whole data set reads it."""
        return self.dataset.read(self.indices[index])


def draw(dataset: Dataset, count: int, seed: int) -> Subset:
    """So many samples, drawn by a seed; fewer of the same seed are part of more."""
    return Subset(dataset, np.random.default_rng(seed).permutation(len(dataset))[:count].tolist())


def hold_out(dataset: Dataset, part: float) -> tuple[Subset, Subset]:
    """All samples but the last `part` of them, and those.

    In order, so that frames of a film that resemble each other do not stand on both sides.
    """
    kept = len(dataset) - round(part * len(dataset))
    return Subset(dataset, range(kept)), Subset(dataset, range(kept, len(dataset)))


def voc_palette(count: int) -> tuple[Color, ...]:
    """The colors of Pascal VOC: the bits of the class index dealt to red, green and blue, highest first."""

    def channel(index: int, offset: int) -> int:
        return sum((index >> (3 * bit + offset) & 1) << (7 - bit) for bit in range(8))

    return tuple((channel(i, 0), channel(i, 1), channel(i, 2)) for i in range(count))


def default_palette(count: int) -> tuple[Color, ...]:
    """Colors for classes that have none: hues by the golden ratio, in four shades that alternate."""
    shades = ((0.65, 0.95), (0.9, 0.7), (0.45, 0.8), (0.8, 0.5))
    colors = (colorsys.hsv_to_rgb(0.58 + i * 0.618034, *shades[i % 4]) for i in range(count))
    return tuple((round(255 * r), round(255 * g), round(255 * b)) for r, g, b in colors)
