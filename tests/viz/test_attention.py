"""Attention maps as pictures."""

from __future__ import annotations

import numpy as np

from depict.analysis.attention import AttentionMap
from depict.viz.attention import CAPTION, GAP, SINGLE, TILE, attention_sheet


def test_the_picture_is_hot_where_attention_is_and_dark_elsewhere():
    values = np.zeros((3, 5), np.float32)
    values[0, 4] = 0.5
    black = np.zeros((40, 70, 3), np.uint8)
    sheet = np.asarray(attention_sheet(black, [AttentionMap(1, 1, "mssa", "class car", values)], (2.5, 70 / 16)))
    heat = sheet[GAP + CAPTION :, GAP:][:549, :SINGLE].astype(float).mean(2)
    # Patch (0, 4) covers columns 64 to 70 of 70, rows 0 to 16 of 40.
    assert heat[:80, 950:].mean() > 100
    assert heat[340:].max() == heat[:, :650].max() == 0


def test_a_sheet_has_a_row_for_every_layer_and_a_column_for_every_head():
    gray = np.full((40, 70, 3), 128, np.uint8)
    values = np.ones((3, 5), np.float32)
    maps = [AttentionMap(layer, head, "mssa", "patch at 5,5", values) for layer in (1, 2) for head in (1, 2, 3)]
    sheet = attention_sheet(gray, maps, (2.5, 70 / 16), (5, 5))
    assert sheet.width == 3 * (TILE + GAP) + GAP
    assert sheet.height == 2 * (183 + CAPTION + GAP) + GAP + CAPTION
    ring = np.asarray(sheet)[GAP + CAPTION :, GAP:][:60, :60]
    assert (ring == 255).all(2).any()  # the position is marked
