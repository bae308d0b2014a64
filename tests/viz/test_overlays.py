"""Labels as pictures: palettes, overlays, shares and the legend."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

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


def test_the_overlay_mixes_colors_grays_the_rest_and_darkens_borders():
    image = np.zeros((4, 300, 3), np.uint8)
    image[:] = (90, 120, 150)
    labels = np.zeros((4, 300), np.uint8)
    labels[:, 100:] = 1
    labels[:, 200:] = 255
    drawn = np.asarray(overlay(image, labels, CLASSES, PALETTE, {0: 1 / 3, 1: 1 / 3, 2: 0.0}))[:4]
    assert drawn[0, 50].argmax() == 0
    assert drawn[0, 150].argmax() == 1
    assert drawn[0, 250].tolist() == [120, 120, 120]
    assert (drawn[:, [100, 200]] <= image[0, 0] * 0.4).all()


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


def test_the_size_of_an_overlay_does_not_depend_on_what_is_in_it():
    sizes = {
        draw_legend(400, CLASSES, PALETTE, dict(enumerate(shares))).size
        for shares in [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.3, 0.3, 0.4)]
    }
    assert len(sizes) == 1


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
