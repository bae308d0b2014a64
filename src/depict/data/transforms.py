"""The published augmentation, in its order, on uint8 tensors.

All random choices about a sample come from one generator seeded by (seed, epoch, index): the result depends neither on
the process that computes it nor on other samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as T

from depict.data.dataset import IGNORE
from depict.inference.preprocess import resize_image
from depict.inference.sliding import resized_size

SCALE_RANGE = (0.5, 2.0)
CROP_TRIES = 10
LARGEST_SHARE = 0.75
BAND = 64
"""Rows whose colors are distorted together: few enough to stay in the processor's cache."""


def sample_generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The generator of all random choices about one sample in one epoch."""
    return np.random.default_rng((seed, epoch, index))


@dataclass(frozen=True)
class Augmentation:
    """Turns a sample into a training example. `mean` and `std` refer to values in 0..1."""

    short_edge: int
    max_aspect: float
    crop: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    scale_range: tuple[float, float] = SCALE_RANGE
    color_jitter: bool = True
    flip: bool = True

    def __call__(
        self, image: torch.Tensor, labels: torch.Tensor, generator: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Image uint8 (3, H, W), labels uint8 (H, W) -> float32 (3, h, w) normalized, uint8 (h, w); (h, w) = crop."""
        image, labels = self.vary(image, labels, generator)
        height, width = labels.shape
        padded, padded_labels = torch.zeros(3, *self.crop), torch.full(self.crop, IGNORE, dtype=torch.uint8)
        padded_labels[:height, :width] = labels
        inside = padded[:, :height, :width].copy_(image)
        T.normalize(inside, [255 * m for m in self.mean], [255 * s for s in self.std], inplace=True)
        return padded, padded_labels

    def vary(
        self, image: torch.Tensor, labels: torch.Tensor, generator: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The random part: scale, crop, flip and colors. uint8 in, uint8 out, at most as large as the crop."""
        factor = generator.uniform(*self.scale_range)
        size = resized_size(image.shape[1], image.shape[2], self.short_edge, self.max_aspect, factor)
        labels = resize_labels(labels, size)
        top, left = choose_crop(labels, self.crop, generator)
        window = (..., slice(top, top + self.crop[0]), slice(left, left + self.crop[1]))
        image, labels = resize_image(image, size)[window], labels[window]
        if generator.random() < 0.5 and self.flip:
            image, labels = T.horizontal_flip(image), T.horizontal_flip(labels)
        image = image.contiguous()
        return distort_colors(image, generator) if self.color_jitter else image, labels.contiguous()


def resize_labels(labels: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Nearest on (H, W): pixel i comes from floor(i * old / new)."""
    return T.resize(labels[None], list(size), InterpolationMode.NEAREST)[0]


def choose_crop(labels: torch.Tensor, crop: tuple[int, int], generator: np.random.Generator) -> tuple[int, int]:
    """Top and left of a crop that `is_varied`; after 10 failed tries, any crop."""
    spare = (max(labels.shape[0] - crop[0], 0), max(labels.shape[1] - crop[1], 0))
    if spare == (0, 0):
        return spare
    for _ in range(CROP_TRIES):
        top, left = (int(generator.integers(0, room, endpoint=True)) for room in spare)
        if is_varied(labels[top : top + crop[0], left : left + crop[1]]):
            return top, left
    return int(generator.integers(0, spare[0], endpoint=True)), int(generator.integers(0, spare[1], endpoint=True))


def is_varied(labels: torch.Tensor) -> bool:
    """Whether there are at least two classes, the largest with less than 75 % of the pixels that are not ignored."""
    counts = torch.bincount(labels.flatten(), minlength=256)[:IGNORE]
    return int((counts > 0).sum()) >= 2 and bool(counts.max() < LARGEST_SHARE * counts.sum())


def distort_colors(image: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    """Photometric distortion of uint8 (3, H, W): each step with probability 0.5, rounded to 0..255 after each."""
    brightness = (shift_brightness, generator.uniform(-32, 32))
    contrast = (scale_contrast, generator.uniform(0.5, 1.5))
    saturation = (scale_saturation, generator.uniform(0.5, 1.5))
    hue = (shift_hue, int(generator.integers(-18, 18)))
    contrast_first = generator.random() < 0.5
    order = (brightness, contrast, saturation, hue) if contrast_first else (brightness, saturation, hue, contrast)
    steps = [step for step in order if generator.random() < 0.5]
    distorted = torch.empty_like(image)
    for band, result in zip(image.split(BAND, dim=1), distorted.split(BAND, dim=1), strict=True):
        channels = band.float()
        for distort, amount in steps:
            distort(channels, amount)
        result.copy_(channels)
    return distorted


def shift_brightness(channels: torch.Tensor, amount: float) -> None:
    """Add to all channels. This and the next three work in place on float (3, H, W) with integer values 0..255."""
    channels.add_(amount).clamp_(0, 255).floor_()


def scale_contrast(channels: torch.Tensor, factor: float) -> None:
    """Multiply all channels."""
    channels.mul_(factor).clamp_(0, 255).floor_()


# The published code converts to OpenCV's uint8 HSV (hue in 180 steps of 2 degrees) and back. The two functions below
# are the same maps of HSV in floating point without ever forming HSV, so they differ by its rounding only (a few
# gray levels), and take a quarter of the time of torchvision's `adjust_hue`, which would dominate loading.
# torchvision's `adjust_saturation` is a different operation: it blends with gray, which also changes the value of HSV.


def scale_saturation(channels: torch.Tensor, factor: float) -> None:
    """Multiply S of HSV (up to 1), keeping H and V, by scaling each channel's distance to the largest."""
    largest, chroma = _extremes(channels)
    scale = (largest / chroma.clamp_min_(1)).clamp_max_(factor)
    channels.sub_(largest).mul_(scale).add_(largest).round_()


def shift_hue(channels: torch.Tensor, shift: float) -> None:
    """Add `shift` * 2 degrees (-30 <= shift <= 30) to H of HSV, keeping S and V."""
    red, green, blue = channels
    largest, chroma = _extremes(channels)
    per_chroma = chroma.clamp_min(1).reciprocal_()
    # Hue in sextants, -1..5: red at 0, green at 2, blue at 4. Values are whole, so the clamps are 0 where a channel is
    # the largest and 1 elsewhere; `lerp` selects by them much faster than `where`, which is not vectorized.
    hue = (red - green).mul_(per_chroma).add_(4)
    hue = torch.lerp((blue - red).mul_(per_chroma).add_(2), hue, (largest - green).clamp_max_(1))
    hue = torch.lerp((green - blue).mul_(per_chroma), hue, (largest - red).clamp_max_(1)).add_(shift / 30)
    for center, channel in zip((0, 2, 4), channels, strict=True):
        # A channel is full within one sextant of its center and falls to the smallest value over the next:
        # the distance around the circle of six is 3 - |d - 3|, and what it takes away is that distance - 1 in 0..1.
        taken = (hue - center).abs_().sub_(3).abs_().neg_().add_(2).clamp_(0, 1)
        torch.addcmul(largest, taken, chroma, value=-1, out=channel)
    channels.round_()


def _extremes(channels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest of the three channels, and largest - smallest, both (H, W)."""
    red, green, blue = channels
    largest = torch.maximum(torch.maximum(red, green), blue)
    return largest, largest - torch.minimum(torch.minimum(red, green), blue)
