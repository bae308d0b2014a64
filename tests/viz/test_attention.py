"""Attention maps as pictures."""

from __future__ import annotations

import numpy as np

from depict.analysis.attention import AttentionMap
from depict.viz.attention import BAR, CAPTION, GAP, HEADER, SINGLE, TILE, attention_sheet


def test_the_picture_is_hot_where_attention_is_and_dark_elsewhere():
    values = np.zeros((3, 5), np.float32)
    values[0, 4] = 0.5
    black = np.zeros((40, 70, 3), np.uint8)
    sheet = np.asarray(attention_sheet(black, [AttentionMap(1, 1, "mssa", "class car", values)], (2.5, 70 / 16)))
    heat = sheet[GAP + HEADER :, GAP:][:549, :SINGLE].astype(float).mean(2)
    # Patch (0, 4) covers columns 64 to 70 of 70, rows 0 to 16 of 40.
    assert heat[:80, 950:].mean() > 100
    assert heat[340:].max() == heat[:, :650].max() == 0


def test_a_sheet_has_a_row_for_every_layer_and_a_column_for_every_head():
    gray = np.full((40, 70, 3), 128, np.uint8)
    values = np.ones((3, 5), np.float32)
    maps = [AttentionMap(layer, head, "mssa", "patch at 5,5", values) for layer in (1, 2) for head in (1, 2, 3)]
    sheet = attention_sheet(gray, maps, (2.5, 70 / 16), (5, 5))
    assert sheet.width == 3 * (TILE + GAP) + GAP
    assert sheet.height == 2 * (183 + CAPTION + GAP) + GAP + HEADER
    ring = np.asarray(sheet)[GAP + HEADER :, GAP:][:60, :60]
    assert (ring == 255).all(2).any()  # the position is marked


def test_captions_do_not_run_into_each_other_below_a_narrow_picture():
    values = np.array([[-0.00951, 0.0196]], np.float32)
    maps = [AttentionMap(3, head, "mssa_exact", "patch at 5,5", values) for head in (1, 2)]
    sheet = np.asarray(attention_sheet(np.full((120, 40, 3), 128, np.uint8), maps, (1, 2)))
    inked = (sheet[-GAP - CAPTION : -GAP] < 128).all(2).any(0).nonzero()[0]
    assert np.diff(inked).max() > GAP
    assert inked[-1] < sheet.shape[1] - GAP


def two_maps(scale: str) -> tuple[np.ndarray, np.ndarray]:
    """Two heads over black, the second with a tenth of the first's attention everywhere."""
    maps = [
        AttentionMap(1, head, "mssa", "class car", np.full((2, 2), 0.5 / 10 ** (head - 1), np.float32))
        for head in (1, 2)
    ]
    sheet = np.asarray(attention_sheet(np.zeros((32, 32, 3), np.uint8), maps, (2, 2), scale=scale))
    tiles = sheet[GAP + HEADER :][:TILE]
    return tiles[:, GAP : GAP + TILE], tiles[:, 2 * GAP + TILE : 2 * (GAP + TILE)]


def test_maps_have_their_own_scale_or_a_common_one():
    first, second = two_maps("own")
    np.testing.assert_array_equal(first, second)
    same, darker = two_maps("common")
    np.testing.assert_array_equal(first, same)
    assert darker.mean() < same.mean() / 5


def test_a_bar_shows_the_colors_from_zero_to_the_largest_value():
    gray = np.full((64, 64, 3), 128, np.uint8)
    values = np.array([[0.0, 0.2]], np.float32)
    sheet = np.asarray(attention_sheet(gray, [AttentionMap(1, 1, "mssa", "class car", values)], (1, 2)))
    bar = sheet[GAP + CAPTION + 6, GAP : GAP + 2 * BAR].tolist()
    heat = sheet[GAP + HEADER :, GAP:][500, :SINGLE].tolist()
    first = bar.index(heat[0])
    assert bar[first + BAR - 1] == heat[-1]
