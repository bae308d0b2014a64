"""What a data set is: numbered images with a label per pixel.

To add one, subclass `FileDataset` of `pairs.py` (images and masks in files, as in `camvid.py`) or `Dataset`
below (anything else, as in `scenes/dataset.py`), and enter it in `data/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from depict.data.palette import Color

if TYPE_CHECKING:
    import torch

IGNORE = 255
"""The label of pixels that are neither learned nor counted."""


@dataclass(frozen=True)
class Recipe:
    """The published way to train on a data set; every value can be overridden in the configuration."""

    short_edge: int
    """Short edge of the box that images are resized into."""
    max_aspect: float
    """Long edge of that box over its short edge."""
    crop: int
    """Side of the training crop, which is also the window in inference."""
    epochs: int
    batch: int
    lr: float
    stride: int | None = None
    """Step between windows when validating during training; None: the same as in `depict evaluate`."""


class Dataset:
    """Images and labels by index. Labels are indices into `classes` and `palette`."""

    name: str
    classes: tuple[str, ...]
    palette: tuple[Color, ...]
    recipe: Recipe
    splits: ClassVar[tuple[str, ...]] = ("train", "val", "trainval")
    """The splits it has; `trainval` is `train` and `val` together, `test` may be without labels."""
    submission_values: ClassVar[tuple[int, ...] | None] = None
    """The value of each class in label maps for the test server; None where there is no server."""
    labeled = True
    """Whether this split has ground truth."""
    sequential = True
    """Whether neighbors may be alike, such as frames of one video: `hold_out` then keeps them together."""

    def __init__(self, root: Path | None, split: str) -> None:
        self.root = root
        self.split = split

    def __len__(self) -> int:
        raise NotImplementedError

    def name_of(self, index: int) -> str:
        """A name for the sample, unique within the split and usable as a file name."""
        raise NotImplementedError

    def file_name(self, index: int) -> str:
        """The name of the image file without its suffix, where there is a file."""
        return self.name_of(index)

    def files(self, index: int) -> list[Path]:
        """The files that a sample is read from; none if it is generated."""
        return []

    def identity(self) -> Iterator[object]:
        """Plain values that differ whenever any sample does, cheap to find: a cache of features is keyed by them."""
        raise NotImplementedError

    def read(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The sample without augmentation: image uint8 (3, H, W), labels uint8 (H, W) with 255 = ignored."""
        raise NotImplementedError


class Subset(Dataset):
    """Some samples of another data set, in the given order."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        super().__init__(dataset.root, dataset.split)
        self.dataset = dataset
        self.indices = list(indices)
        self.name, self.recipe, self.labeled = dataset.name, dataset.recipe, dataset.labeled
        self.sequential = dataset.sequential
        self.classes, self.palette = dataset.classes, dataset.palette

    def __len__(self) -> int:
        return len(self.indices)

    def name_of(self, index: int) -> str:
        """The sample's name in the full data set."""
        return self.dataset.name_of(self.indices[index])

    def identity(self) -> Iterator[object]:
        """The indices and the identity of the full data set."""
        yield self.indices
        yield from self.dataset.identity()

    def read(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The sample as the full data set reads it."""
        return self.dataset.read(self.indices[index])


def unwrap(dataset: Dataset) -> tuple[Dataset, Sequence[int]]:
    """The data set below all subsets, and the indices of the samples in it."""
    indices: Sequence[int] = range(len(dataset))
    while isinstance(dataset, Subset):
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    return dataset, indices


def random_subset(dataset: Dataset, count: int, seed: int) -> Subset:
    """`count` samples chosen by the seed; a smaller subset of the same seed is contained in a larger one."""
    return Subset(dataset, np.random.default_rng(seed).permutation(len(dataset))[:count].tolist())


def every_nth(dataset: Dataset, step: int) -> Subset:
    """The first of every `step` samples."""
    return Subset(dataset, range(0, len(dataset), step))


def hold_out(dataset: Dataset, share: float) -> tuple[Subset, Subset]:
    """Split off a `share` of the samples: the other samples, and those held out.

    The last ones of a sequential data set, so that similar frames of one video do not end up on
    both sides; evenly spaced ones otherwise, so that both sides have the same kinds of images.
    """
    images = len(dataset)
    count = round(share * images)
    if dataset.sequential:
        return Subset(dataset, range(images - count)), Subset(dataset, range(images - count, images))
    held = {(2 * number + 1) * images // (2 * count) for number in range(count)}
    return Subset(dataset, [index for index in range(images) if index not in held]), Subset(dataset, sorted(held))
