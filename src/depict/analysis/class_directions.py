"""The head `subspaces`: which direction of its class does a patch belong to, and what do the squares decide?

A logit is q_c . z + sum_k w_ck (u_ck . z)^2 + b_c (`decoders/heads.py`). A patch belongs to the direction of its
predicted class that adds the most to the logit, or subtracts the most: the largest |w_ck (u_ck . z)^2|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depict.analysis.base import Analysis, Result, Sample
from depict.analysis.orthogonality import random_cosine
from depict.analysis.principal import thumbnail
from depict.data.dataset import IGNORE
from depict.decoders.heads import SubspacesHead

if TYPE_CHECKING:
    from depict.model import SegmentationModel

MAX_IMAGES = 4
"""Images whose maps are kept for the figure."""


def strongest_directions(energies: Tensor, labels: Tensor) -> Tensor:
    """The direction of each patch in its class: energies (N, C, K) and labels (N,) -> indices (N,)."""
    return energies[torch.arange(len(labels)), labels].abs().argmax(-1)


def effective_number(counts: Tensor) -> Tensor:
    """exp of the entropy of counts (..., K): 1 if all are in one place, K if they are spread evenly."""
    shares = counts / counts.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


def direction_cosines(directions: Tensor) -> tuple[float | None, float | None]:
    """Mean |cosine| of two directions (C, K, D) of one class, and of two classes; None where there is no such pair."""
    C, K, _ = directions.shape
    unit = directions.double().flatten(0, 1)
    unit = unit / unit.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.mT).abs().unflatten(0, (C, K)).unflatten(2, (C, K))
    within = cosines.diagonal(dim1=0, dim2=2).sum().item() - C * K
    between = cosines.sum().item() - within - C * K
    pairs_within, pairs_between = C * K * (K - 1), C * (C - 1) * K * K
    return within / pairs_within if pairs_within else None, between / pairs_between if pairs_between else None


@dataclass
class DirectionMap:
    """One image with the direction of every patch, for the figure."""

    image: NDArray[np.uint8]
    """Thumbnail (h, w, 3)."""
    size: tuple[int, int]
    """Of the full image."""
    cells: tuple[float, float]
    """Rows and columns of patches that the image covers."""
    labels: NDArray[np.int64]
    """Predicted class of every patch, (h, w)."""
    directions: NDArray[np.int64]
    """Its direction in that class, (h, w)."""


@dataclass
class MeasuredDirections:
    """What figures and text need."""

    names: list[str]
    palette: list[tuple[int, int, int]]
    counts: Tensor
    """Patches by predicted class and direction, (C, K)."""
    images: list[DirectionMap] = field(default_factory=list)


class ClassDirections(Analysis):
    """The direction of every patch in its class."""

    name = "class_directions"

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        heads = [part for part in model.decoder.modules() if isinstance(part, SubspacesHead)]
        self.head = heads[0] if heads else None
        shape = (0, 0) if self.head is None else tuple(self.head.weights.shape)
        self.measured = MeasuredDirections(list(model.classes), list(model.palette), torch.zeros(shape))
        self.added = torch.zeros(shape[0], dtype=torch.float64)
        """What the squares add to the logits of each class, summed over its patches."""
        self.patches = self.changed = self.labeled = self.right = self.right_without = 0

    @torch.no_grad()
    def update(self, sample: Sample) -> None:
        """Count the directions of one image, and what the squares change."""
        trace = sample.trace
        if trace.energies is None or trace.masks is None:
            return
        energies, logits = trace.energies[0], trace.masks[0].flatten(1).mT
        labels = logits.argmax(1)
        directions = strongest_directions(energies, labels)
        squares = energies.sum(-1)
        without = (logits - squares).argmax(1)
        self.measured.counts.index_put_((labels, directions), torch.ones(len(labels)), accumulate=True)
        self.added.index_add_(0, labels, squares.gather(1, labels[:, None])[:, 0].double())
        self.patches += len(labels)
        self.changed += int((labels != without).sum())
        if sample.patch_labels is not None:
            known = sample.patch_labels != IGNORE
            self.labeled += int(known.sum())
            self.right += int((labels == sample.patch_labels)[known].sum())
            self.right_without += int((without == sample.patch_labels)[known].sum())
        if len(self.measured.images) < MAX_IMAGES:
            size = sample.image.shape[0], sample.image.shape[1]
            cells = self.model.layout(*size).cells(self.model.stride)
            inside = (slice(math.ceil(cells[0])), slice(math.ceil(cells[1])))  # the rest of the grid is padding
            maps = (values.view(trace.grid)[inside].numpy() for values in (labels, directions))
            self.measured.images.append(DirectionMap(thumbnail(sample.image), size, cells, *maps))

    def compute(self) -> Result:
        """Shares of the directions of each class, and what the squares decide."""
        if self.head is None:
            decoder = self.model.config.decoder
            if (head := decoder.head) is None:
                return Result(skipped=f"The decoder '{decoder.name}' has no head with directions of a class.")
            return Result(skipped=f"The head '{head}' has no directions: only the head 'subspaces' has them.")
        counts = self.measured.counts
        within, between = direction_cosines(self.head.directions.detach())
        rows = class_rows(self.measured.names, counts, self.added, self.head.weights.detach())
        used = sum(row["directions_used"] * row["patches"] for row in rows) / max(1, self.patches)
        numbers: dict[str, float | None] = {
            "patches that get another class without the squares (%)": 100 * self.changed / max(1, self.patches),
            "patches with the right class (%)": 100 * self.right / self.labeled if self.labeled else None,
            "the same without the squares (%)": 100 * self.right_without / self.labeled if self.labeled else None,
            f"directions in use, of {counts.shape[1]} (effective number, mean over patches)": used,
            "weights above 0 (%)": 100 * (self.head.weights > 0).double().mean().item(),
            "mean |cosine| of two directions of a class": within,
            "mean |cosine| of directions of two classes": between,
            "the same for random directions": random_cosine(self.head.directions.shape[-1]),
        }
        data = {"patches": self.patches, "classes": rows}
        return Result(numbers, data, {"classes": _flat(rows)}, self.measured)


def class_rows(names: list[str], counts: Tensor, added: Tensor, weights: Tensor) -> list[dict[str, Any]]:
    """A row for every class that was predicted."""
    return [
        {
            "class": name,
            "patches": int(counts[index].sum()),
            "shares": (counts[index] / counts[index].sum()).tolist(),
            "weights": weights[index].tolist(),
            "directions_used": effective_number(counts[index]).item(),
            "added_by_squares": added[index].item() / counts[index].sum().item(),
        }
        for index, name in enumerate(names)
        if counts[index].sum() > 0
    ]


def _flat(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with a column for every direction."""
    flat = []
    for row in rows:
        line = {key: value for key, value in row.items() if key not in ("shares", "weights")}
        for key in ("shares", "weights"):
            line |= {f"{key.removesuffix('s')}_{k}": value for k, value in enumerate(row[key], 1)}
        flat.append(line)
    return flat
