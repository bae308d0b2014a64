"""Principal directions and k-means clusters of one set of patch embeddings, for `depict pca`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from depict.analysis.kmeans import Floats, kmeans
from depict.analysis.partitions import Labels, count_segments
from depict.analysis.principal import pca_segments, principal_directions


@dataclass
class PatchMaps:
    """Patches by direction, by cluster and by their first three components."""

    dimension: int
    """D of the embeddings."""
    energy: list[float]
    """Share of the energy on each direction."""
    labels: dict[str, Labels]
    """By method (PCA, k-means), on the patch grid (h, w)."""
    components: Floats
    """The first three centered components, each scaled to 0..1 between its 1st and 99th percentile: (h, w, 3)."""

    def shares(self) -> dict[str, list[float]]:
        """By method, the share of the patches with each label."""
        counts = {
            method: np.bincount(labels.ravel(), minlength=len(self.energy)) for method, labels in self.labels.items()
        }
        return {method: (count / count.sum()).tolist() for method, count in counts.items()}

    def facts(self) -> dict[str, Any]:
        """Everything but the maps, as plain JSON values."""
        segments = {
            method: count_segments(labels, np.ones(labels.shape, bool)) for method, labels in self.labels.items()
        }
        return {"dimension": self.dimension, "energy": self.energy, "shares": self.shares(), "segments": segments}


def patch_maps(Z: Floats, grid: tuple[int, int], directions: int, centered: bool) -> PatchMaps:
    """Segment embeddings Z (N, D) on a grid with N patches."""
    _, energy = principal_directions(Z, directions, centered)
    labels = {"PCA": pca_segments(Z, directions, centered), "k-means": kmeans(Z, directions)}
    return PatchMaps(
        dimension=Z.shape[1],
        energy=energy.tolist(),
        labels={method: parts.reshape(grid) for method, parts in labels.items()},
        components=as_colors(components(Z)).reshape(*grid, 3),
    )


def components(Z: Floats) -> Floats:
    """The first three principal components of the centered embeddings Z (N, D): (N, 3), zeros beyond D."""
    values = (Z - Z.mean(0)) @ principal_directions(Z, 3, centered=True)[0].T
    return np.pad(values, ((0, 0), (0, 3 - values.shape[1])))


def as_colors(values: Floats) -> Floats:
    """Components (N, 3), each scaled to 0..1 between its 1st and 99th percentile."""
    low, high = np.percentile(values, (1, 99), axis=0)
    return ((values - low) / np.maximum(high - low, 1e-12)).clip(0, 1)
