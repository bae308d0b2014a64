"""Colors for classes that come without any."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depict.data.palette import NATURAL, distinct_colors, lab, natural_color, palette_for

WORDS = [word for words in NATURAL for word in words.split()]


def least_distance(colors):
    return min(np.linalg.norm(a - b) for a, b in combinations(lab(colors), 2))


def test_lab_has_its_known_values():
    known = {(255, 255, 255): (100, 0, 0), (0, 0, 0): (0, 0, 0), (255, 0, 0): (53.24, 80.09, 67.20)}
    for color, expected in known.items():
        assert lab(color) == pytest.approx(expected, abs=0.02)


@given(st.lists(st.sampled_from([*WORDS, "thing", "part"]), min_size=2, max_size=40))
def test_all_classes_can_be_told_apart_whatever_their_names(classes):
    colors = palette_for(classes)
    assert len(colors) == len(classes)
    assert least_distance(colors) >= (23 if len(classes) <= 20 else 17)


@pytest.mark.parametrize("count", range(2, 41))
def test_classes_without_known_names_are_further_apart(count):
    assert least_distance(distinct_colors(count)) >= (33 if count <= 20 else 25)


def test_as_many_classes_as_a_mask_can_hold_have_different_colors():
    assert len(set(distinct_colors(254))) == 254


def test_known_names_get_natural_colors():
    sky, tree, road, water, other = palette_for(["sky", "palm trees", "Road", "water", "widget"])
    assert sky[2] > sky[1] > sky[0] > 100
    assert tree[1] > tree[0] and tree[1] > tree[2]
    assert np.ptp(road) < 20
    assert water[2] > 2 * water[0]
    assert least_distance([sky, tree, road, water, other]) > 25
    assert natural_color("traffic light") is None
    assert natural_color("") is None


def test_fewer_colors_are_the_beginning_of_more():
    assert distinct_colors(5) == distinct_colors(12)[:5]
