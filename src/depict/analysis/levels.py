"""How much each level of the encoder contributes to the tokens, over all images and for each class.

The neck is linear after its norms: Z0 is the sum of the contributions c_l of the levels (neck.py).
The energy of Z0 splits accordingly: |z|^2 is the sum over the levels of <c_l, z>. The shares add up
to 1; one is negative if its level cancels part of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from depict.analysis.base import Analysis, Result, Sample
from depict.analysis.principal import thumbnail
from depict.data.dataset import IGNORE

if TYPE_CHECKING:
    from depict.model import SegmentationModel

SHOWN = 3
"""Images with a map of each level."""


@dataclass
class LevelMaps:
    """The energy of each level at every token of one image."""

    image: np.ndarray
    """uint8 (H, W, 3), small."""
    cells: tuple[float, float]
    """Rows and columns of tokens that the image covers."""
    energy: np.ndarray
    """|c_l|^2 over the mean |z|^2, (levels, h, w)."""


@dataclass
class MeasuredLevels:
    """For figures and text."""

    names: list[str]
    """Of the levels."""
    shares: Tensor
    """Of the energy, mean over the images, (levels,)."""
    by_class: dict[str, Tensor] = field(default_factory=dict)
    """The same (levels,) for the tokens of each class."""
    images: dict[str, LevelMaps] = field(default_factory=dict)


def energies(contributions: Tensor) -> Tensor:
    """<c_l, z> at every token of contributions c (levels, N, D), without what all tokens share: (levels, N).

    A bias, or any other vector that is the same everywhere, tells no token from another, so the mean
    over the tokens is subtracted first.
    """
    centered = contributions.double() - contributions.double().mean(1, keepdim=True)
    return (centered * centered.sum(0)).sum(-1)


class Levels(Analysis):
    """Energy of each level in the tokens."""

    name = "levels"

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        self.shares: list[Tensor] = []
        self.class_energy = torch.zeros(len(model.level_names), model.num_classes, dtype=torch.float64)
        self.images: dict[str, LevelMaps] = {}

    @torch.no_grad()
    def update(self, sample: Sample) -> None:
        """Measure the levels in one image, by the class of the labels, or of the masks without them."""
        trace = sample.trace
        if trace.contributions is None or trace.masks is None:
            return
        contributions = trace.contributions[:, 0]
        energy = energies(contributions)
        self.shares.append(energy.sum(1) / energy.sum())
        labels = trace.masks[0].argmax(0).flatten() if sample.patch_labels is None else sample.patch_labels
        known = labels != IGNORE
        self.class_energy.index_add_(1, labels[known], energy[:, known])
        if len(self.images) < SHOWN:
            centered = contributions - contributions.mean(1, keepdim=True)
            squares = centered.square().sum(-1) / centered.sum(0).square().sum(-1).mean()
            size = (sample.image.shape[0], sample.image.shape[1])
            self.images[sample.name] = LevelMaps(
                thumbnail(sample.image).copy(),
                self.model.layout(*size).cells(self.model.stride),
                squares.unflatten(1, trace.grid).numpy(),
            )

    def compute(self) -> Result:
        """Shares of the energy, over all images and by class."""
        if not self.shares:
            return Result(skipped="The model has no neck: its tokens are one level of the encoder.")
        names, shares = self.model.level_names, torch.stack(self.shares)
        totals = self.class_energy.sum(0)
        by_class = {
            name: self.class_energy[:, index] / totals[index]
            for index, name in enumerate(self.model.classes)
            if totals[index] > 0
        }
        mean, spread = shares.mean(0), shares.std(0, correction=0)
        labels = _numbered(names)
        return Result(
            numbers={f"energy of {name} (%)": 100 * value for name, value in zip(labels, mean.tolist(), strict=True)},
            data={
                "images": len(shares),
                "levels": labels,
                "mean": mean.tolist(),
                "spread": spread.tolist(),
            },
            tables={
                "classes": [
                    {"class": name, **dict(zip(labels, values.tolist(), strict=True))}
                    for name, values in by_class.items()
                ]
            },
            measured=MeasuredLevels(labels, mean, by_class, self.images),
        )


def _numbered(names: list[str]) -> list[str]:
    """Names that occur several times get a number."""
    return [f"{name} ({index})" if names.count(name) > 1 else name for index, name in enumerate(names, 1)]
