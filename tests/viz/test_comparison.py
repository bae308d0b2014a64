"""Panels of one size, errors where labels differ, and a sheet with a legend."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depict.viz.comparison import IGNORED_COLOR, TILE, compare, draw_comparisons, error_picture

CLASSES, PALETTE = ("sky", "road", "car"), ((10, 20, 200), (200, 20, 10), (20, 200, 10))


def labels(height: int, width: int, seed: int, ignored: float = 0.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.integers(0, 3, (height, width), np.uint8)
    values[random.random((height, width)) < ignored] = 255
    return values


def test_wrong_pixels_are_red_correct_ones_dimmed_and_ignored_ones_gray():
    image = np.full((1, 3, 3), 100, np.uint8)
    errors = error_picture(image, np.array([[0, 1, 255]]), np.array([[0, 2, 2]]))
    assert errors[0, 0].tolist() == [40, 40, 40]
    assert errors[0, 1, 0] > 2 * errors[0, 1, 1]
    assert tuple(errors[0, 2]) == IGNORED_COLOR


@given(height=st.integers(1, 90), width=st.integers(1, 90), side=st.integers(16, 300), seed=st.integers(0, 9))
def test_panels_have_one_size_and_the_colors_of_the_classes(height, width, side, seed):
    truth, prediction = labels(height, width, seed, 0.2), labels(height, width, seed + 1)
    found = compare(0, "a", np.zeros((height, width, 3), np.uint8), truth, prediction, PALETTE, side)
    shapes = {panel.shape for panel in found.panels.values()}
    assert len(shapes) == 1
    assert max(shapes.pop()) == min(side, TILE)
    assert {tuple(color) for color in found.prediction.reshape(-1, 3).tolist()} <= set(PALETTE)


def test_a_large_image_is_reduced_and_its_accuracy_counts_all_labeled_pixels():
    truth = np.zeros((1000, 2000), np.uint8)
    truth[:100] = 255
    prediction = truth.copy()
    prediction[:300] = 1
    found = compare(3, "wide", np.zeros((1000, 2000, 3), np.uint8), truth, prediction, PALETTE, side=480)
    assert found.picture.shape == (240, 480, 3)
    assert found.accuracy == pytest.approx(700 / 900)
    assert found.shares == {0: 1.0, 1: 0.0}


def test_an_image_without_labels_has_no_accuracy():
    truth = np.full((4, 4), 255, np.uint8)
    found = compare(0, "blank", np.zeros((4, 4, 3), np.uint8), truth, np.zeros_like(truth), PALETTE)
    assert math.isnan(found.accuracy)
    assert draw_comparisons([found], "title", CLASSES, PALETTE).height > TILE


def test_the_sheet_has_a_row_for_each_image_and_a_legend_of_the_classes_that_are_labeled_or_predicted():
    truth, prediction = np.zeros((40, 60), np.uint8), np.ones((40, 60), np.uint8)
    comparisons = [compare(i, f"{i}", np.zeros((40, 60, 3), np.uint8), truth, prediction, PALETTE) for i in range(3)]
    one, three = (draw_comparisons(comparisons[:count], "title", CLASSES, PALETTE) for count in (1, 3))
    row = comparisons[0].picture.shape[0]
    assert three.height - one.height >= 2 * row
    legend = np.asarray(three)[-60:].reshape(-1, 3).tolist()
    assert list(PALETTE[0]) in legend
    assert list(PALETTE[1]) in legend
    assert list(PALETTE[2]) not in legend
