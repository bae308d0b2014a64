"""Labels as pictures: palettes, overlays, shares and the legend."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from depict.errors import UserError
from depict.viz import overlays
from depict.viz.overlays import PAPER, blend_labels, draw_legend, label_picture, label_shares, overlay

PALETTE = ((200, 0, 0), (0, 200, 0), (0, 0, 200))
CLASSES = ("red", "green", "blue")


def saved(picture: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    return Image.open(io.BytesIO(buffer.getvalue()))


@given(st.integers(1, 256), st.integers(0, 2**32 - 1))
def test_every_byte_of_a_label_map_survives_the_file(classes, seed):
    labels = np.random.default_rng(seed).integers(0, 256, (5, 7), np.uint8)
    palette = [(index, 255 - index, 7) for index in range(classes)]
    picture = saved(label_picture(labels, palette))
    np.testing.assert_array_equal(np.asarray(picture), labels)
    colors = np.asarray(picture.convert("RGB"))
    expected = np.array(palette + [(0, 0, 0)] * (256 - classes), np.uint8)[labels]
    np.testing.assert_array_equal(colors, expected)


def test_more_classes_than_a_byte_holds_are_written_in_sixteen_bits():
    labels = np.array([[0, 255, 256, 65535]], np.uint16)
    picture = saved(label_picture(labels, [(0, 0, 0)] * 300))
    np.testing.assert_array_equal(np.asarray(picture), labels)


def test_the_overlay_tints_classes_outlines_them_and_grays_the_rest():
    image = np.zeros((4, 300, 3), np.uint8)
    image[:] = (90, 120, 150)
    labels = np.zeros((4, 300), np.uint8)
    labels[:, 100:] = 1
    labels[:, 200:] = 255
    drawn = np.asarray(overlay(image, labels, CLASSES, PALETTE, {0: 1 / 3, 1: 1 / 3, 2: 0.0}, opacity=0.5))[:4]
    assert drawn[0, 50].tolist() == [145, 60, 75]
    assert drawn[0, 150].tolist() == [45, 160, 75]
    assert drawn[:, 99].tolist() == [list(PALETTE[0])] * 4
    assert drawn[:, [100, 199]].tolist() == [[list(PALETTE[1])] * 2] * 4
    assert drawn[:, 200:].reshape(-1, 3).tolist() == [[120, 120, 120]] * 400


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_outlines_are_the_pixels_near_another_label_in_their_row_or_column(line, rows, seed):
    labels = np.random.default_rng(seed).choice(np.array([0, 0, 0, 1], np.uint8), (12, 15))
    expected = np.zeros(labels.shape, bool)
    for (y, x), label in np.ndenumerate(labels):
        row, column = labels[y, max(0, x - line) : x + line + 1], labels[max(0, y - line) : y + line + 1, x]
        expected[y, x] = (row != label).any() or (column != label).any()
    found = [overlays._outlines(labels, start, min(12, start + rows), line) for start in range(0, 12, rows)]
    np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize("opacity", [0, 0.25, 1])
def test_opacity_goes_from_the_image_to_the_color(opacity):
    image, labels = np.full((3, 5, 3), 80, np.uint8), np.ones((3, 5), np.uint8)
    expected = (1 - opacity) * image + opacity * np.array(PALETTE[1])
    np.testing.assert_allclose(blend_labels(image, labels, PALETTE, opacity), expected, atol=1)


def test_an_opacity_that_is_no_share_is_refused():
    with pytest.raises(UserError, match="between 0 and 1, not 35"):
        blend_labels(np.zeros((2, 2, 3), np.uint8), np.zeros((2, 2), np.uint8), PALETTE, 35)


@given(st.integers(1, 30), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_bands_of_any_height_give_the_same_overlay_and_shares(height, width, seed):
    random = np.random.default_rng(seed)
    image = random.integers(0, 256, (height, width, 3), np.uint8)
    labels = random.choice(np.array([0, 1, 2, 255], np.uint8), (height, width))
    shares = {index: float((labels == index).mean()) for index in (0, 2)}
    whole = np.asarray(overlay(image, labels, CLASSES, PALETTE, shares))
    np.testing.assert_array_equal(blend_labels(image, labels, PALETTE), whole[:height, :width])
    was = overlays.BAND_PIXELS
    try:
        overlays.BAND_PIXELS = 3 * width
        np.testing.assert_array_equal(np.asarray(overlay(image, labels, CLASSES, PALETTE, shares)), whole)
        assert label_shares(labels, (0, 2)) == pytest.approx(shares)
    finally:
        overlays.BAND_PIXELS = was


def test_with_room_for_all_classes_the_size_does_not_depend_on_those_present():
    every = [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.3, 0.3, 0.4)]
    sizes = {draw_legend(160, CLASSES, PALETTE, dict(enumerate(shares)), True).size for shares in every}
    assert len(sizes) == 1
    compact = [draw_legend(160, CLASSES, PALETTE, dict(enumerate(shares))).height for shares in every]
    assert compact[1] < compact[2] == sizes.pop()[1]


def test_the_entries_of_a_legend_stand_in_columns_of_one_width():
    classes, palette = [f"class {index}" for index in range(8)], [(200, 10 * index, 0) for index in range(8)]
    legend = np.asarray(draw_legend(700, classes, palette, dict.fromkeys(range(8), 1 / 8)))
    corners = [np.argwhere((legend == color).all(2)).min(0) for color in palette]
    assert len({row for row, _ in corners}) == 2
    assert set(np.diff([column for _, column in corners[:4]])) <= {172, 173, 174}
    assert [column for _, column in corners[:4]] == [column for _, column in corners[4:]]


def test_the_legend_shows_the_colors_of_the_classes_present():
    legend = np.asarray(draw_legend(400, CLASSES, PALETTE, {0: 0.0, 1: 0.4, 2: 0.6})).reshape(-1, 3)
    found = {tuple(color) for color in np.unique(legend, axis=0).tolist()}
    assert {PALETTE[1], PALETTE[2], PAPER} <= found
    assert PALETTE[0] not in found


@pytest.mark.parametrize("width", [1, 7, 159, 5000])
@pytest.mark.parametrize("classes", [1, 3, 150, 300])
def test_a_legend_fits_any_width_and_any_number_of_classes(width, classes):
    names = ["a class with quite a long name " * 4 if index == 0 else f"class {index}" for index in range(classes)]
    palette = [(index % 256, 0, 0) for index in range(classes)]
    legend = draw_legend(width, names, palette, dict.fromkeys(range(classes), 1 / classes))
    assert legend.width == max(width, 160)
    assert legend.height < 2000
