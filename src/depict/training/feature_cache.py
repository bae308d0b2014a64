"""Reading cached features of a frozen encoder: training batches without running the encoder.

A cache is a folder of plain .npy files, one row per image: the tokens of the image and, if wanted,
of its mirror image, the labels, and the size. Their checksums are compared at every start of a
training. Every image is fitted whole into the model's window, keeping
its aspect ratio, and padded with zeros on the right and bottom. `feature_builder.py` builds caches.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from depict.data.dataset import IGNORE
from depict.data.transforms import sample_generator
from depict.errors import UserError
from depict.inference.sliding import padded_size
from depict.io.checksums import checksum

if TYPE_CHECKING:
    from depict.data.loading import Schedule
    from depict.model import SegmentationModel

META = "meta.json"
"""Describes a cache to a reader, and lists its arrays with their checksums."""
Arrays = dict[str, tuple[str, tuple[int, ...]]]
"""Name of each array -> numpy's name of its type, and its shape."""


class FeatureBatch(NamedTuple):
    """One process's share of a step; it may be empty in the last step of an epoch."""

    tokens: Tensor
    """float32 (B, N, F): `SegmentationModel.features` of the images or of their mirror images."""
    labels: Tensor
    """uint8 (B, H, W), 255 = ignored; (H, W) is the model's window, or the part of it that `grid` covers."""
    indices: Tensor
    """int64 (B,): which samples of the data set."""
    grid: tuple[int, int]
    """(h, w): features are of its cells row by row, N = h * w."""


class View(NamedTuple):
    """The part of a sample to return: mirrored or not, and the first row and column of the grid."""

    mirrored: bool = False
    top: int = 0
    left: int = 0


@dataclass(frozen=True)
class FeatureCache:
    """Features and labels of a split. The tensors are memory-mapped files: nothing is read before it is used."""

    folder: Path
    grid: tuple[int, int]
    """(h, w): features are of its cells row by row, N = h * w."""
    cell: tuple[int, int]
    """(height, width) of a cell in pixels."""
    tokens: Tensor
    """float16 (n, 2, N, F): of the image, and of its mirror image; (n, 1, N, F) without mirror images."""
    labels: Tensor
    """uint8 (n, H, W) of the image."""
    sizes: Tensor
    """int32 (n, 2): height and width that the image takes up in the window; the rest is padding."""
    rows: Sequence[int]
    """The rows of the arrays that the samples are in, in order: all n, or those of a subset."""

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: list[int], views: list[View], grid: tuple[int, int] | None = None) -> FeatureBatch:
        """These samples, each in its view of `grid` cells; by default of the whole grid."""
        h, w = grid = grid or self.grid
        window = self.labels.shape[1:]
        height, width = (min(most, n * patch) for most, n, patch in zip(window, grid, self.cell, strict=True))
        tokens = torch.empty(len(indices), h, w, self.tokens.shape[-1])
        labels = torch.full((len(indices), height, width), IGNORE, dtype=torch.uint8)
        for number, (index, (mirrored, top, left)) in enumerate(zip(indices, views, strict=True)):
            row = self.rows[index]
            cells = self.tokens[row, int(mirrored)].view(*self.grid, -1)
            tokens[number] = cells[top : top + h, left : left + w]
            full = self.labels[row]
            if mirrored:  # the image alone: its padding stays on the right
                image_width = int(self.sizes[row, 1])
                full = torch.cat([full[:, :image_width].flip(-1), full[:, image_width:]], 1)
            y, x = top * self.cell[0], left * self.cell[1]
            part = full[y : y + height, x : x + width]
            labels[number, : part.shape[0], : part.shape[1]] = part
        return FeatureBatch(tokens.flatten(1, 2), labels, torch.tensor(indices, dtype=torch.int64), grid)

    def random_view(self, index: int, grid: tuple[int, int], flip: bool, generator: np.random.Generator) -> View:
        """A view of `grid` cells anywhere on the image; mirrored with probability 1/2 if `flip`."""
        mirrored = bool(generator.random() < 0.5) and flip
        corner = []
        for n, size, patch in zip(grid, self.sizes[self.rows[index]].tolist(), self.cell, strict=True):
            corner.append(int(generator.integers(0, max(0, -(-size // patch) - n), endpoint=True)))
        return View(mirrored, *corner)


def feature_batches(
    cache: FeatureCache, schedule: Schedule, flip: bool = True, crop: float | None = None
) -> Iterator[FeatureBatch]:
    """Every batch of `schedule`. The view of a sample depends on (seed, epoch, index) alone.

    `flip`: mirror half of the samples. `crop`: take a random part of each, this share of its height
    and width.
    """
    if flip and cache.tokens.shape[1] < 2:
        raise UserError(f"'{cache.folder}' has no mirror images.")
    if schedule.images != len(cache):
        raise UserError(f"a schedule of {schedule.images} images does not fit the {len(cache)} of '{cache.folder}'.")
    h, w = (max(1, round((crop or 1.0) * n)) for n in cache.grid)
    for share in schedule:
        views = [
            cache.random_view(index, (h, w), flip, sample_generator(schedule.seed, epoch, index))
            for epoch, index in share
        ]
        yield cache.batch([index for _, index in share], views, (h, w))


def read_cache(folder: Path, model: SegmentationModel, images: int, mirrored: bool) -> FeatureCache | None:
    """The cache in `folder`, or None if it is missing or damaged: arrays, sizes and checksums must be as expected.

    An intact cache that cannot be read now, such as one of another user, is an error.
    """
    try:
        written = json.loads((folder / META).read_text(encoding="utf-8"))["files"]
        tensors = {}
        for name, (dtype, shape) in cache_arrays(model, images, mirrored).items():
            path = folder / f"{name}.npy"
            # Read-only: a writable map of a file, even a private one, counts as memory in full, and may not exceed it.
            array = np.lib.format.open_memmap(path, mode="r")
            if (array.dtype.name, array.shape) != (dtype, shape):
                return None
            if path.stat().st_size != array.offset + array.nbytes:
                return None
            if [dtype, list(shape), checksum(array.data)] != written[name]:
                return None
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # nothing writes to these tensors
                tensors[name] = torch.from_numpy(array)
    except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError):
        return None
    except OSError as error:
        raise UserError(
            f"cannot read the features in '{folder}': {error.strerror or error}. Make them readable, delete them, or "
            "set DEPICT_CACHE to another folder."
        ) from error
    return FeatureCache(folder, feature_grid(model), model.multiple, **tensors, rows=range(images))


def cache_arrays(model: SegmentationModel, images: int, mirrored: bool) -> Arrays:
    """The arrays of a cache of this many images, and of as many mirror images."""
    return {
        "tokens": ("float16", (images, 1 + mirrored, *feature_shape(model))),
        "labels": ("uint8", (images, *model.image_size)),
        "sizes": ("int32", (images, 2)),
    }


def feature_grid(model: SegmentationModel) -> tuple[int, int]:
    """Rows and columns of cells of the model's window: of patches, or of what a hierarchical encoder needs."""
    height, width = padded_size(model.image_size, model.multiple)
    return height // model.multiple[0], width // model.multiple[1]


def feature_shape(model: SegmentationModel) -> tuple[int, int]:
    """N and F: the cells of the model's window, and the features of a cell."""
    return math.prod(feature_grid(model)), sum(math.prod(shape) for shape in model.level_shapes)
