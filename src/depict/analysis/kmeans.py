"""k-means, the baseline that PCA as a segmenter is compared with.

Why not scipy's `kmeans2`: its k-means++ tries a single candidate per centroid, and it always runs a fixed number of
iterations. On planted clusters the best of 3 starts ended up to 3 times above the best sum of squares. Greedy seeding
avoids that, and stopping at convergence makes 10 starts as fast as 3 were.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

STARTS = 10
MAX_ITERATIONS = 100
"""Far more than needed: a guard against assignments that alternate because of rounding."""


def kmeans(Z: Floats, clusters: int, seed: int = 0) -> NDArray[np.intp]:
    """The cluster of each row of Z (N, D) as (N,): the best of `STARTS` starts drawn from `seed`.

    There are at most as many clusters as different rows. Computed in the precision of Z.
    """
    rng = np.random.default_rng(seed)
    clusters = min(clusters, len(np.unique(Z, axis=0)))
    Z = Z - Z.mean(0)  # distances are expanded into dot products, which lose digits far from the origin
    seeds = np.stack([_greedy_seeds(Z, clusters, rng) for _ in range(STARTS)])
    return min(_lloyd(Z, Z[seeds]), key=lambda labels: sum_of_squares(Z, labels))


def sum_of_squares(Z: Floats, labels: NDArray[np.integer]) -> float:
    """The objective of k-means: squared distances of the rows (N, D) to the mean of their cluster (N,), summed."""
    clusters = (Z[labels == label].astype(np.float64) for label in np.unique(labels))
    return float(sum(np.square(rows - rows.mean(0)).sum() for rows in clusters))


def _greedy_seeds(Z: Floats, clusters: int, rng: np.random.Generator) -> list[int]:
    """Indices of the rows to start from, by greedy k-means++ (Arthur and Vassilvitskii 2007).

    Candidates are drawn with a probability proportional to the squared distance to the nearest seed so far. The one
    that reduces the sum of these distances most becomes the next seed.
    """
    lengths = np.square(Z).sum(1)
    candidates = 2 + int(math.log(clusters))

    def squared_distances(rows: NDArray[np.intp]) -> Floats:
        return (lengths[rows, None] + lengths - 2 * Z[rows] @ Z.T).clip(0)

    first = rng.integers(len(Z), size=1)
    seeds, nearest = [int(first[0])], squared_distances(first)[0]
    while len(seeds) < clusters:
        cumulative = nearest.cumsum(dtype=np.float64)
        drawn = np.searchsorted(cumulative, cumulative[-1] * rng.random(candidates), side="right")
        drawn = drawn.clip(max=len(Z) - 1)
        distances = np.minimum(nearest, squared_distances(drawn))
        best = int(distances.sum(1).argmin())
        seeds.append(int(drawn[best]))
        nearest = distances[best]
    return seeds


def _lloyd(Z: Floats, centroids: Floats) -> NDArray[np.intp]:
    """Alternate between assigning rows Z (N, D) to the nearest centroid and averaging, until no assignment changes.

    All starts advance together, centroids (S, K, D) to labels (S, N): few large matrix products take half the time of
    many small ones. Starts that have converged are left out.
    """
    starts, clusters, dim = centroids.shape
    labels = np.full((starts, len(Z)), -1)
    active = np.arange(starts)
    for _ in range(MAX_ITERATIONS):
        products = (centroids.reshape(-1, dim) @ Z.T).reshape(-1, clusters, len(Z))
        nearest = (np.square(centroids).sum(-1, keepdims=True) - 2 * products).argmin(1)
        changed = (nearest != labels[active]).any(1)
        labels[active] = nearest
        active, nearest, centroids = active[changed], nearest[changed], centroids[changed]
        if not len(active):
            break
        members = (nearest[:, None] == np.arange(clusters)[:, None]).astype(Z.dtype)  # (active starts, K, N)
        sizes = members.sum(-1, keepdims=True)
        sums = (members.reshape(-1, len(Z)) @ Z).reshape(centroids.shape)
        centroids = np.where(sizes > 0, sums / sizes.clip(1), centroids)  # an empty cluster keeps its centroid
    return labels
