"""Class embeddings across images: are they in a union of orthogonal subspaces, one per class?

Paper section 4.2, figure "Inner product of class embeddings across images". The embeddings are the final ones at unit
length, whose dot products with the patches give the masks.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depict.analysis.base import Analysis, Result, Sample
from depict.analysis.steps import why_no_class_embeddings
from depict.data.dataset import IGNORE

if TYPE_CHECKING:
    from depict.model import SegmentationModel

ENERGY = 0.95
"""Share of the sum of squares that the subspace of a class must hold."""


@dataclass
class UnionOfSubspaces:
    """How close the embeddings of several classes are to a union of orthogonal subspaces."""

    cosines: Tensor
    """(C, C): mean |cos| between embeddings of two classes; on the diagonal, between different ones of a class."""
    dimensions: list[int]
    """For each class, of the smallest principal subspace that holds `ENERGY` of its embeddings."""
    overlaps: Tensor
    """(C, C): mean squared cosine of the principal angles between two subspaces, from 0 (orthogonal) to 1 (one contains
    the other)."""
    chance: float
    """Expected score of random subspaces of the same dimensions."""

    @property
    def within(self) -> float:
        """Mean |cos| of two embeddings of one class, averaged over classes."""
        return float(self.cosines.diagonal().mean())

    @property
    def between(self) -> float:
        """Mean |cos| of embeddings of different classes, averaged over pairs of classes."""
        return _off_diagonal_mean(self.cosines)

    @property
    def score(self) -> float:
        """1 - mean overlap over the pairs of classes: 1 for orthogonal subspaces, 0 if each contains the other."""
        return 1 - _off_diagonal_mean(self.overlaps)


def union_of_subspaces(groups: list[Tensor]) -> UnionOfSubspaces:
    """Measure unit vectors grouped by class, (n_c, D) each with n_c >= 2, of at least two classes."""
    groups = [group.double() for group in groups]
    dim = groups[0].shape[1]
    bases = [principal_subspace(group) for group in groups]
    count = len(groups)
    cosines, overlaps = torch.eye(count, dtype=torch.float64), torch.eye(count, dtype=torch.float64)
    random_overlaps = []
    for i, group in enumerate(groups):
        n = len(group)
        cosines[i, i] = ((group @ group.T).abs().sum() - n) / (n * (n - 1))
        for j in range(i):
            cosines[i, j] = cosines[j, i] = (group @ groups[j].T).abs().mean()
            smaller, larger = sorted((len(bases[i]), len(bases[j])))
            overlaps[i, j] = overlaps[j, i] = (bases[i] @ bases[j].T).square().sum() / smaller
            random_overlaps.append(larger / dim)
    chance = 1 - sum(random_overlaps) / len(random_overlaps)
    return UnionOfSubspaces(cosines, [len(basis) for basis in bases], overlaps, chance)


def principal_subspace(group: Tensor, energy: float = ENERGY) -> Tensor:
    """Orthonormal rows (k, D) of the smallest principal subspace that holds the share `energy` of (n, D).

    The mean is not subtracted: the subspace contains the origin.
    """
    _, lengths, rows = torch.linalg.svd(group, full_matrices=False)
    held = lengths.square().cumsum(0) / lengths.square().sum()
    return rows[: int((held < energy - 1e-12).sum()) + 1]


def _off_diagonal_mean(matrix: Tensor) -> float:
    count = len(matrix)
    return float((matrix.sum() - matrix.diagonal().sum()) / (count * (count - 1)))


@dataclass
class MeasuredClasses:
    """Embeddings by class, for figures and text."""

    names: list[str]
    """Of the classes that at least two images have."""
    groups: list[Tensor]
    """Embeddings (n_c, D) of these classes, one for each image that has the class."""
    union: UnionOfSubspaces
    embeddings: int
    """Of all classes that an image has, rare ones included."""


class ClassEmbeddings(Analysis):
    """Final class embeddings of all images, grouped by class."""

    name = "class_embeddings"

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        self.images: list[Tensor] = []
        """Class embeddings (C, D) of each image."""
        self.present: list[Tensor] = []
        """Which classes each image has, bool (C,)."""

    def update(self, sample: Sample) -> None:
        """Keep the final class embeddings and which classes are present."""
        trace = sample.trace
        if trace.Q_unit is None or trace.masks is None:
            return
        labels = trace.masks[0].argmax(0).flatten() if sample.patch_labels is None else sample.patch_labels
        present = torch.zeros(self.model.num_classes, dtype=torch.bool)
        present[labels[labels != IGNORE]] = True
        self.images.append(trace.Q_unit[0].clone())
        self.present.append(present)

    def compute(self) -> Result:
        """Cosines within and between classes, dimensions, and the score of the union of subspaces."""
        if not self.images:
            return Result(skipped=why_no_class_embeddings(self.model.config.decoder.name))
        Q, present = torch.stack(self.images), torch.stack(self.present)
        repeated = [index for index in range(Q.shape[1]) if present[:, index].sum() >= 2]
        if len(repeated) < 2:
            return Result(skipped=f"Fewer than two classes are in two or more of the {len(Q)} images.")
        names = [self.model.classes[index] for index in repeated]
        groups = [Q[present[:, index], index] for index in repeated]
        union = union_of_subspaces(groups)
        everywhere = union_of_subspaces(list(Q.transpose(0, 1)))
        return Result(
            numbers={
                "mean |cos| within a class": union.within,
                "mean |cos| between classes": union.between,
                f"dimension of a class ({100 * ENERGY:.0f} % energy), mean": statistics.fmean(union.dimensions),
                "union-of-orthogonal-subspaces score": union.score,
                "score of random subspaces": union.chance,
            },
            data={
                "images": len(Q),
                "dimension of the embeddings": Q.shape[2],
                "classes that an image has": _plain(union, names),
                "all classes in all images": _plain(everywhere, list(self.model.classes)),
            },
            tables={"classes": _class_rows(union, names, groups)},
            measured=MeasuredClasses(names, groups, union, int(present.sum())),
        )


def _class_rows(union: UnionOfSubspaces, names: list[str], groups: list[Tensor]) -> list[dict[str, Any]]:
    others = len(names) - 1
    return [
        {
            "class": name,
            "images": len(group),
            "dimension": dimension,
            "within": float(union.cosines[index, index]),
            "between": float((union.cosines[index].sum() - union.cosines[index, index]) / others),
            "overlap": float((union.overlaps[index].sum() - 1) / others),
        }
        for index, (name, group, dimension) in enumerate(zip(names, groups, union.dimensions, strict=True))
    ]


def _plain(union: UnionOfSubspaces, names: list[str]) -> dict[str, Any]:
    return {
        "classes": names,
        "within": union.within,
        "between": union.between,
        "score": union.score,
        "score of random subspaces": union.chance,
        "dimensions": union.dimensions,
        "mean |cos|": union.cosines.tolist(),
        "overlap": union.overlaps.tolist(),
    }
