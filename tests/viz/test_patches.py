"""Values of patches as pixels."""

import numpy as np

from depict.viz.patches import UNKNOWN, on_pixels, paint


def test_pixels_have_the_value_of_the_patch_that_covers_them():
    labels = np.array([[1, 2, 3], [4, 5, 6]])
    pixels = on_pixels(labels, (4, 5), (2.0, 2.5))  # the last column of patches is half padding
    assert pixels.tolist() == [[1, 1, 2, 2, 3]] * 2 + [[4, 4, 5, 5, 6]] * 2


def test_labels_without_a_color_are_gray():
    painted = paint(np.array([[1, 50, 255]]), {1: (200, 0, 0)})
    assert painted.tolist() == [[[200, 0, 0], list(UNKNOWN), list(UNKNOWN)]]


def test_labels_beyond_a_byte_have_their_color():
    colors = {label: (label % 256, label // 256, 7) for label in range(600)}
    assert paint(np.array([[3, 599]]), colors).tolist() == [[[3, 0, 7], [87, 2, 7]]]
    assert paint(np.array([[3]]), colors).tolist() == [[[3, 0, 7]]]
