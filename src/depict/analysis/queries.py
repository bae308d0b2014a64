"""Mask classification: how many queries does a class use in an image, and what does each of them cover?

The score of a class at a patch is sum_k p_k(c) sigmoid(m_k) (`decoders/mask_classification.py`). A patch belongs to the
query that adds the most to the score of its predicted class.
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
from depict.analysis.class_directions import effective_number
from depict.analysis.principal import thumbnail
from depict.decoders.mask_classification import MaskClassifier
from depict.decoders.matching import connected_components

if TYPE_CHECKING:
    from depict.model import SegmentationModel

MAX_IMAGES = 4
"""Images whose maps are kept for the figure."""
MAX_MASKS = 6
"""Queries of each of them whose masks are kept: those that most patches belong to."""
IN_USE = 0.05
"""Share of the patches of a class in an image from which on a query counts as used by it."""


@dataclass
class QueryMask:
    """What one query covers in an image."""

    query: int
    label: int
    """Its most probable class, "no object" left out."""
    probability: float
    """Of that class."""
    patches: int
    """That belong to it."""
    mask: NDArray[np.float32]
    """sigmoid(m_k), (h, w)."""


@dataclass
class QueryMap:
    """One image with the query of every patch, for the figure."""

    image: NDArray[np.uint8]
    """Thumbnail (h, w, 3)."""
    size: tuple[int, int]
    """Of the full image."""
    cells: tuple[float, float]
    """Rows and columns of patches that the image covers."""
    labels: NDArray[np.int64]
    """Predicted class of every patch, (h, w)."""
    queries: NDArray[np.int64]
    """The query that it belongs to, (h, w)."""
    masks: list[QueryMask]


@dataclass
class MeasuredQueries:
    """What figures and text need."""

    names: list[str]
    palette: list[tuple[int, int, int]]
    counts: Tensor
    """Patches by predicted class and query, of all images, (C, K)."""
    pairs: list[dict[str, Any]] = field(default_factory=list)
    """A row for each class in each image."""
    images: list[QueryMap] = field(default_factory=list)


def winning_queries(masks: Tensor, classes: Tensor, labels: Tensor) -> Tensor:
    """The query of each of the N patches: the one that adds the most to the score of its class.

    Masks (K, N) and classes (K, C + 1) are logits, labels (N,) the classes of the patches.
    """
    return (classes.softmax(-1)[:, labels] * masks.sigmoid()).argmax(0)


class QueryUse(Analysis):
    """The query of every patch."""

    name = "queries"

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        decoder = model.decoder
        self.applies = isinstance(decoder, MaskClassifier)
        queries = decoder.num_queries if isinstance(decoder, MaskClassifier) else 0
        self.measured = MeasuredQueries(
            list(model.classes), list(model.palette), torch.zeros(model.num_classes, queries)
        )

    @torch.no_grad()
    def update(self, sample: Sample) -> None:
        """Count the queries of each class in one image."""
        trace = sample.trace
        if trace.query_masks is None or trace.query_classes is None or trace.masks is None:
            return
        size = sample.image.shape[0], sample.image.shape[1]
        cells = self.model.layout(*size).cells(self.model.stride)
        inside = (..., slice(math.ceil(cells[0])), slice(math.ceil(cells[1])))  # the rest of the grid is padding
        masks, classes = trace.query_masks[0][inside], trace.query_classes[0]
        labels = trace.masks[0][inside].argmax(0)
        queries = winning_queries(masks.flatten(1), classes, labels.flatten()).view(labels.shape)
        counts = torch.zeros_like(self.measured.counts)
        counts.index_put_((labels, queries), torch.ones(()), accumulate=True)
        self.measured.counts += counts
        parts = connected_components(labels)
        for label in counts.sum(1).nonzero()[:, 0].tolist():
            self.measured.pairs.append(
                {
                    "image": sample.name,
                    "class": self.model.classes[label],
                    "patches": int(counts[label].sum()),
                    "effective_queries": effective_number(counts[label]).item(),
                    "queries_in_use": int((counts[label] >= IN_USE * counts[label].sum()).sum()),
                    "connected_parts": len(parts[labels == label].unique()),
                }
            )
        if len(self.measured.images) < MAX_IMAGES:
            won = counts.sum(0)
            order = won.argsort(descending=True, stable=True)[:MAX_MASKS].tolist()
            probabilities, names = classes.softmax(-1)[:, :-1].max(-1)
            kept = [
                QueryMask(k, int(names[k]), float(probabilities[k]), int(won[k]), masks[k].sigmoid().numpy())
                for k in order
                if won[k] > 0
            ]
            self.measured.images.append(
                QueryMap(thumbnail(sample.image), size, cells, labels.numpy(), queries.numpy(), kept)
            )

    def compute(self) -> Result:
        """Queries of a class in an image, over all images, and classes of a query."""
        if not self.applies:
            name = self.model.config.decoder.name
            return Result(skipped=f"The decoder '{name}' has no queries: each class has one mask.")
        pairs, counts = self.measured.pairs, self.measured.counts
        if not pairs:
            return Result(skipped="There are no images.")
        patches = sum(pair["patches"] for pair in pairs)
        by_class, by_query = counts[counts.sum(1) > 0], counts.mT[counts.sum(0) > 0]
        numbers: dict[str, float | None] = {
            "queries of a class in an image (effective number, mean over patches)": sum(
                pair["effective_queries"] * pair["patches"] for pair in pairs
            )
            / patches,
            f"queries with at least {100 * IN_USE:.0f} % of a class in an image (mean)": _mean(pairs, "queries_in_use"),
            "connected parts of a class in an image (mean)": _mean(pairs, "connected_parts"),
            "classes in an image with one query (%)": 100
            * sum(pair["queries_in_use"] == 1 for pair in pairs)
            / len(pairs),
            "queries of a class over all images (effective number, mean)": effective_number(by_class).mean().item(),
            "classes of a query over all images (effective number, mean)": effective_number(by_query).mean().item(),
            f"queries with a patch in any image, of {counts.shape[1]}": len(by_query),
        }
        rows = [
            {
                "class": name,
                "images": len(own := [pair for pair in pairs if pair["class"] == name]),
                "patches": int(counts[index].sum()),
                "effective_queries_per_image": _mean(own, "effective_queries"),
                "connected_parts_per_image": _mean(own, "connected_parts"),
                "effective_queries_over_images": effective_number(counts[index]).item(),
            }
            for index, name in enumerate(self.measured.names)
            if counts[index].sum() > 0
        ]
        return Result(numbers, {"classes": rows}, {"classes": rows, "images": pairs}, self.measured)


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    return sum(row[key] for row in rows) / len(rows)
