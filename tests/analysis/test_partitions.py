"""Scores of partitions: known values, and properties that always hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from depict.analysis.partitions import Contingency, compare, count_segments

TRUTH = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 2, 255]])
grids = arrays(np.int64, (4, 5), elements=st.integers(0, 4))


def test_the_truth_scores_perfectly():
    assert compare(TRUTH, TRUTH) == (1, 1, 1)


def test_a_single_part_matches_only_one_class():
    scores = compare(TRUTH, np.zeros_like(TRUTH))
    assert scores.over_segmentation == pytest.approx(1 / 3)
    assert scores.best_match_miou == pytest.approx(4 / 11 / 3)
    assert scores.adjusted_rand == 0


def test_a_part_for_every_patch_over_segments():
    scores = compare(TRUTH, np.arange(12).reshape(3, 4))
    assert scores.over_segmentation == pytest.approx(11 / 3)
    assert scores.best_match_miou == pytest.approx((1 / 4 + 1 / 4 + 1 / 3) / 3)
    assert scores.adjusted_rand == 0


def test_ignored_patches_do_not_count():
    other = TRUTH.copy()
    other[2, 3] = 7
    assert compare(TRUTH, other) == (1, 1, 1)


def test_a_published_example_of_the_adjusted_rand_index():
    # Hubert and Arabie's formula on [[1, 1, 0], [1, 2, 1], [0, 0, 4]]: (7 - 14 * 13 / 45) / (13.5 - 14 * 13 / 45).
    counts = np.array([[1, 1, 0], [1, 2, 1], [0, 0, 4]])
    expected = 14 * 13 / 45
    assert Contingency(np.arange(3), np.arange(3), counts).adjusted_rand() == pytest.approx(
        (7 - expected) / (13.5 - expected)
    )


def test_segments_are_connected_by_edges_not_corners():
    labels = np.array([[1, 0, 1], [0, 1, 0]])
    assert count_segments(labels, np.ones_like(labels, bool)) == 6
    assert count_segments(labels, np.array([[True, True, True], [False, False, False]])) == 3


def test_the_best_match_is_not_the_greedy_one():
    truth = np.array([[0] * 7 + [1] * 2])
    found = np.array([[5] * 5 + [6] * 2 + [5] * 2])  # class 0 and part 5 have the largest IoU, 5 / 9
    pairs, miou = Contingency.of(truth, found).match()
    assert pairs == {5: 1, 6: 0}
    assert miou == pytest.approx(2 / 7)


@given(grids, st.permutations(range(5)))
def test_labels_of_parts_do_not_matter(found, order):
    truth = np.arange(20).reshape(4, 5) % 3
    assert compare(truth, np.array(order)[found]) == pytest.approx(compare(truth, found))


@given(grids, st.permutations(range(5)))
def test_a_relabeled_partition_is_the_same_partition(found, order):
    assert compare(found, np.array(order)[found]) == pytest.approx((1, 1, 1))


@given(grids, grids)
def test_scores_stay_in_their_ranges(truth, found):
    scores = compare(truth, found)
    assert 0 < scores.over_segmentation <= 20
    assert 0 < scores.best_match_miou <= 1
    assert -1 <= scores.adjusted_rand <= 1
    table = Contingency.of(truth, found)
    swapped = Contingency.of(found, truth)
    assert table.adjusted_rand() == pytest.approx(swapped.adjusted_rand())
