"""k-means: close to the best partition of small cases, exact on planted clusters, deterministic."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depict.analysis.kmeans import kmeans, sum_of_squares
from depict.analysis.partitions import compare


def partitions(points: int, clusters: int) -> Iterator[list[int]]:
    """Every way to label the points with at most this many clusters, up to the names of the clusters."""
    if points == 0:
        yield []
        return
    for labels in partitions(points - 1, clusters):
        for label in range(min(clusters, max(labels, default=-1) + 2)):
            yield [*labels, label]


def best_sum_of_squares(Z: np.ndarray, clusters: int) -> float:
    """The smallest over all partitions, by sum |z|^2 - sum over clusters |sum of its points|^2 / size."""
    labels = np.array(list(partitions(len(Z), clusters)))
    members = (labels[:, None] == np.arange(clusters)[:, None]).astype(float)  # (partitions, clusters, points)
    explained = np.square(members @ Z).sum(-1) / members.sum(-1).clip(1)
    return float(np.square(Z).sum() - explained.sum(1).max())


def test_the_brute_force_tries_all_partitions():
    assert len(list(partitions(4, 4))) == 15  # a Bell number
    assert len(list(partitions(5, 2))) == 16
    assert best_sum_of_squares(np.array([[0.0], [2.0], [7.0]]), 2) == 2


@given(st.integers(0, 2**20), st.integers(2, 4), st.integers(1, 3), st.booleans())
def test_small_cases_are_close_to_the_best_of_all_partitions(seed, clusters, dim, uneven):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(7, dim)) * (rng.exponential(size=(7, 1)) if uneven else 1)
    reached, best = sum_of_squares(Z, kmeans(Z, clusters)), best_sum_of_squares(Z, clusters)
    assert best - 1e-9 <= reached <= 1.25 * best


def test_most_small_cases_are_solved_exactly():
    cases = [np.random.default_rng(seed).normal(size=(7, 2)) for seed in range(40)]
    solved = [sum_of_squares(Z, kmeans(Z, 3)) <= best_sum_of_squares(Z, 3) + 1e-9 for Z in cases]
    assert sum(solved) >= 36


@given(st.integers(0, 2**20))
def test_ten_planted_clusters_are_all_found(seed):
    rng = np.random.default_rng(seed)
    truth = np.arange(120) % 10
    Z = (20 * np.linalg.qr(rng.normal(size=(16, 16)))[0][truth] + rng.normal(size=(120, 16))).astype(np.float32)
    assert compare(truth.reshape(10, 12), kmeans(Z, 10).reshape(10, 12)).adjusted_rand == pytest.approx(1)


def test_a_seed_gives_the_same_clusters_again():
    Z = np.random.default_rng(2).normal(size=(60, 8))
    assert (kmeans(Z, 5, seed=1) == kmeans(Z, 5, seed=1)).all()


@given(st.integers(0, 2**20))
def test_shifting_all_points_far_away_changes_nothing(seed):
    Z = np.random.default_rng(seed).normal(size=(30, 4))
    assert sum_of_squares(Z, kmeans(Z + 1e4, 4)) == pytest.approx(sum_of_squares(Z, kmeans(Z, 4)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("points", [1, 4])
def test_equal_points_are_one_cluster(points):
    assert set(kmeans(np.ones((points, 6), np.float32), 10)) == {0}


def test_there_are_at_most_as_many_clusters_as_different_points():
    Z = np.array([[0.0], [0.0], [1.0], [1.0], [5.0]])
    labels = kmeans(Z, 4)
    assert len(set(labels)) == 3
    assert sum_of_squares(Z, labels) == 0


def test_the_sum_of_squares_is_that_of_a_case_worked_out_by_hand():
    assert sum_of_squares(np.array([[0.0], [2.0], [7.0]]), np.array([4, 4, 1])) == 2
