"""Class embeddings across images: do they lie in a union of orthogonal subspaces, one for each class?

Paper section 4.2, figure "Inner product of class embeddings across images". The embeddings are the final ones of unit
length, whose dot products with the patches make the masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from depict.analysis.base import Result, Analysis, Sample
from depict.data.dataset import IGNORE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from depict.model import SegmentationModel

ENERGY = 0.95
"""Share of the sum of squares that a class's subspace must hold."""
SHOWN_CLASSES, SHOWN_EACH = 30, 100
"""Most classes in the picture, as in the paper, and most embeddings of each."""


@dataclass
class Union:
    """How near the embeddings of several classes are to a union of orthogonal subspaces."""

    cosines: Tensor
    """(C, C): mean |cos| between embeddings of two classes; on the diagonal between different ones of a class."""
    dimensions: list[int]
    """For each class, of the smallest principal subspace that holds `ENERGY` of its embeddings."""
    overlaps: Tensor
    """(C, C): mean squared cosine of the principal angles between two subspaces, from 0 (orthogonal) to 1 (one in the
    other)."""
    chance: float
    """The score that random subspaces of the same dimensions have on average."""

    @property
    def within(self) -> float:
        """Mean |cos| of two embeddings of one class, each class counting alike."""
        return float(self.cosines.diagonal().mean())

    @property
    def between(self) -> float:
        """Mean |cos| of embeddings of different classes, each pair of classes counting alike."""
        return _off_diagonal(self.cosines)

    @property
    def score(self) -> float:
        """1 - mean overlap over the pairs of classes: 1 for orthogonal subspaces, 0 where all lie in each other."""
        return 1 - _off_diagonal(self.overlaps)


def union_of_subspaces(groups: list[Tensor]) -> Union:
    """Measure embeddings of unit length by class, (n_c, D) each with n_c >= 2, of at least two classes."""
    groups = [group.double() for group in groups]
    dim = groups[0].shape[1]
    bases = [subspace(group) for group in groups]
    count = len(groups)
    cosines, overlaps = torch.eye(count, dtype=torch.float64), torch.eye(count, dtype=torch.float64)
    random = []
    for i, group in enumerate(groups):
        n = len(group)
        cosines[i, i] = ((group @ group.T).abs().sum() - n) / (n * (n - 1))
        for j in range(i):
            cosines[i, j] = cosines[j, i] = (group @ groups[j].T).abs().mean()
            smaller, larger = sorted((len(bases[i]), len(bases[j])))
            overlaps[i, j] = overlaps[j, i] = (bases[i] @ bases[j].T).square().sum() / smaller
            random.append(larger / dim)
    return Union(cosines, [len(basis) for basis in bases], overlaps, 1 - sum(random) / len(random))


def subspace(group: Tensor, energy: float = ENERGY) -> Tensor:
    """Orthonormal rows (k, D) of the smallest principal subspace that holds the share `energy` of (n, D).

    The mean is not taken off: the subspace goes through the origin.
    """
    _, lengths, rows = torch.linalg.svd(group, full_matrices=False)
    held = lengths.square().cumsum(0) / lengths.square().sum()
    return rows[: int((held < energy - 1e-12).sum()) + 1]


def _off_diagonal(matrix: Tensor) -> float:
    count = len(matrix)
    return float((matrix.sum() - matrix.diagonal().sum()) / (count * (count - 1)))


class ClassEmbeddings(Analysis):
    """Final class embeddings of all images, grouped by class."""

    name = "class_embeddings"
    title = "Do the class embeddings of all images lie in a union of orthogonal subspaces?"
    about = (
        "For each image the decoder ends with one embedding per class, of unit length. The paper (figure “Inner "
        "product of class embeddings across images”, 30 classes and 100 images) groups them by class and finds that "
        "different classes are nearly orthogonal, while those of one class share a subspace of few dimensions. Here an "
        "embedding counts in the images in which its class is the most frequent one of at least one patch of the truth "
        "(of the prediction, where there is no truth); the same numbers over all classes in all images stand in the "
        f"data. A class's subspace is the smallest principal one that holds {100 * ENERGY:.0f} % of the sum of "
        "squares. The union-of-orthogonal-subspaces score is 1 minus the mean squared cosine of the principal angles "
        "between the subspaces of two classes, over all pairs: 1 if all are orthogonal, 0 if each lies in the other. "
        "Random subspaces of these dimensions do not score 0, so their expected score stands beside it."
    )

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        self.images: list[Tensor] = []
        """Class embeddings (C, D) of each image."""
        self.present: list[Tensor] = []
        """Which classes (C,) an image has."""

    def update(self, sample: Sample) -> None:
        """Keep the final class embeddings and which classes are there."""
        trace = sample.trace
        if trace.Q_unit is None or trace.masks is None:
            return
        seen = trace.masks[0].argmax(0).flatten() if sample.patch_labels is None else sample.patch_labels
        present = torch.zeros(self.model.num_classes, dtype=torch.bool)
        present[seen[seen != IGNORE]] = True
        self.images.append(trace.Q_unit[0].clone())
        self.present.append(present)

    def compute(self) -> Result:
        """Within- and between-class cosines, dimensions, the score, and the block matrix."""
        if not self.images:
            return Result(skipped=f"The decoder '{self.model.config.decoder.name}' has no class embeddings.")
        Q, present = torch.stack(self.images), torch.stack(self.present)
        enough = [index for index in range(Q.shape[1]) if present[:, index].sum() >= 2]
        if len(enough) < 2:
            return Result(skipped=f"Fewer than two classes are in two or more of the {len(Q)} images.")
        groups = [Q[present[:, index], index] for index in enough]
        union, everywhere = union_of_subspaces(groups), None
        names = [self.model.classes[index] for index in enough]
        if len(Q) >= 2:
            everywhere = union_of_subspaces(list(Q.transpose(0, 1)))
        rows = [
            {
                "class": name,
                "images": len(group),
                "dimension": dimension,
                "within": float(union.cosines[index, index]),
                "between": float((union.cosines[index].sum() - union.cosines[index, index]) / (len(names) - 1)),
                "overlap": float((union.overlaps[index].sum() - 1) / (len(names) - 1)),
            }
            for index, (name, group, dimension) in enumerate(zip(names, groups, union.dimensions, strict=True))
        ]
        mean_dimension = float(np.mean(union.dimensions))
        result = Result(
            numbers={
                "mean |cos| within a class": union.within,
                "mean |cos| between classes": union.between,
                f"dimension of a class ({100 * ENERGY:.0f} % energy), mean": mean_dimension,
                "union-of-orthogonal-subspaces score": union.score,
                "score of random subspaces": union.chance,
            },
            data={
                "images": len(Q),
                "dimension of the embeddings": Q.shape[2],
                "classes that an image has": _plain(union, names),
                "all classes in all images": everywhere and _plain(everywhere, list(self.model.classes)),
            },
            tables={"classes": rows},
        )
        result.figures["gram"] = draw_gram(groups, names)
        result.captions["gram"] = (
            "Inner products of the final class embeddings of all images, sorted by class. Orthogonal subspaces would "
            "leave the blocks off the diagonal white."
        )
        result.text = [self._words(union, mean_dimension, names, len(Q), Q.shape[2], int(present.sum()))]
        return result

    def _words(self, union: Union, dimension: float, names: list[str], images: int, dim: int, total: int) -> str:
        overlaps = union.overlaps - torch.eye(len(names), dtype=torch.float64)
        i, j = divmod(int(overlaps.argmax()), len(names))
        against = "above" if union.score > union.chance else "below"
        few = "" if images >= 100 else f" (the paper shows 100; here are {images})"
        return (
            f"{total} embeddings of {len(names)} classes from {images} images{few}. Two embeddings of one class have a "
            f"mean |cos| of {union.within:.3f}, of different classes {union.between:.3f}. A class takes "
            f"{dimension:.1f} of {dim} dimensions on average. The subspaces score {union.score:.3f}, {against} the "
            f"{union.chance:.3f} of random ones of the same dimensions; the two that overlap most are {names[i]} and "
            f"{names[j]} ({float(overlaps[i, j]):.3f}). The paper's claim of nearly orthogonal subspaces asks for a "
            "score near 1 and a mean |cos| between classes near 0."
        )


def _plain(union: Union, names: list[str]) -> dict[str, Any]:
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


def draw_gram(groups: list[Tensor], names: list[str]) -> Figure:
    """Inner products of all embeddings as one matrix, with lines between the classes; the most frequent if many."""
    from matplotlib.figure import Figure

    order = sorted(range(len(groups)), key=lambda index: -len(groups[index]))[:SHOWN_CLASSES]
    shown = [groups[index][:SHOWN_EACH] for index in sorted(order)]
    labels = [names[index] for index in sorted(order)]
    stacked = torch.cat(shown)
    edges = np.cumsum([0, *(len(group) for group in shown)]) - 0.5
    figure = Figure(figsize=(6, 5.4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow((stacked @ stacked.T).numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="antialiased")
    for edge in edges[1:-1]:
        axes.axhline(edge, color="#444444", lw=0.4)
        axes.axvline(edge, color="#444444", lw=0.4)
    centers = (edges[1:] + edges[:-1]) / 2
    size = 8 if len(labels) <= 15 else 6
    axes.set_xticks(centers, labels, rotation=90, fontsize=size)
    axes.set_yticks(centers, labels, fontsize=size)
    axes.tick_params(length=0)
    figure.colorbar(image, label="inner product of unit vectors", shrink=0.8)
    return figure
