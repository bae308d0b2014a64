"""The geometry of sliding windows: sizes as published, windows that cover every pixel, overlaps that are averaged."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depict.errors import UserError
from depict.inference.resample import bilinear
from depict.inference.sliding import SlidingWindow, anchors, enlarged_size, overlapping, padded_size, resized_size
from support.axis_maps import dense

length = st.integers(1, 60)


@given(
    window=st.integers(1, 20),
    extra=st.integers(0, 40),
    stride=st.integers(1, 20),
    low=st.integers(1, 8),
    pad=st.integers(0, 4),
    blend=st.booleans(),
)
def test_overlapping_windows_are_averaged(window, extra, stride, low, pad, blend):
    size, stride = window + extra, min(stride, window)
    share = np.array([min(i + 1, window - i) if blend else 1 for i in range(window)])
    inside = share[:, None] * dense(bilinear(low, window + pad), low)[:window]
    total, count = 0, np.zeros(size)
    starts = anchors(size, window, stride)
    for index, start in enumerate(starts):
        part = np.zeros((size, len(starts) * low))
        part[start : start + window, index * low : (index + 1) * low] = inside
        total = total + part
        count[start : start + window] += share
    ours = dense(overlapping(size, window, stride, low, window + pad, blend), len(starts) * low)
    np.testing.assert_allclose(ours, total / count[:, None], atol=1e-6)


def test_blended_windows_leave_no_seam():
    one, other = dense(overlapping(14, 8, 6, 1, 8, blend=True), 2).T  # one value for each of two windows
    np.testing.assert_allclose(one, [1, 1, 1, 1, 1, 1, 2 / 3, 1 / 3, 0, 0, 0, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(one + other, 1, atol=1e-6)


@given(window=st.integers(1, 40), extra=st.integers(0, 200), stride=st.integers(1, 40))
def test_windows_cover_every_pixel_and_end_at_the_edge(window, extra, stride):
    size, stride = window + extra, min(stride, window)
    starts = anchors(size, window, stride)
    assert starts[0] == 0
    assert starts[-1] == size - window
    assert all(0 < b - a <= stride for a, b in itertools.pairwise(starts))


def test_anchors_are_the_published_ones():
    assert anchors(512, 512, 480) == [0]
    assert anchors(683, 512, 480) == [0, 171]
    assert anchors(992, 512, 480) == [0, 480]
    assert anchors(993, 512, 480) == [0, 480, 481]


@pytest.mark.parametrize(("size", "window", "stride"), [(20, 16, 17), (20, 16, 0), (15, 16, 8)])
def test_windows_that_would_miss_pixels_are_refused(size, window, stride):
    with pytest.raises(UserError):
        anchors(size, window, stride)


@pytest.mark.parametrize(
    ("size", "short_edge", "max_aspect", "factor", "expected"),
    [
        ((512, 683), 512, 4, 1.0, (512, 683)),
        ((683, 512), 512, 4, 1.0, (683, 512)),
        ((256, 3000), 512, 4, 1.0, (175, 2048)),  # the long edge binds: 256 * 2048 / 3000 = 174.76
        ((1024, 2048), 1024, 2, 0.75, (768, 1536)),
        ((375, 500), 520, 8, 1.75, (910, 1213)),
        ((375, 500), 512, 4, 0.333, (170, 227)),  # 512 * 0.333 = 170.496 is truncated first
        ((1, 10000), 512, 4, 1.0, (1, 2048)),
        ((1, 1), 512, 4, 0.5, (256, 256)),
    ],
)
def test_resizing_follows_the_published_arithmetic(size, short_edge, max_aspect, factor, expected):
    assert resized_size(*size, short_edge, max_aspect, factor) == expected


@pytest.mark.parametrize(
    ("size", "window", "expected"),
    [
        ((512, 683), (512, 512), (512, 683)),
        ((256, 342), (512, 512), (512, 684)),
        ((342, 256), (512, 512), (684, 512)),
        ((300, 401), (512, 512), (512, 684)),  # 684.37 is truncated
        ((1, 1), (512, 512), (512, 512)),
        ((600, 300), (512, 512), (1024, 512)),
        ((100, 30), (50, 60), (200, 60)),
        ((30, 100), (60, 50), (60, 200)),
    ],
)
def test_small_images_are_enlarged_until_the_window_fits(size, window, expected):
    assert enlarged_size(*size, window) == expected


@given(height=length, width=length, window=st.tuples(length, length))
def test_after_enlarging_every_window_fits(height, width, window):
    enlarged = enlarged_size(height, width, window)
    assert enlarged[0] >= max(height, window[0])
    assert enlarged[1] >= max(width, window[1])


@given(st.integers(1, 200), st.integers(1, 5000), st.tuples(st.integers(1, 64), st.integers(1, 64)))
def test_strips_are_enlarged_to_a_bounded_number_of_pixels(height, width, window):
    for size, sides in (((height, width), window), ((width, height), window[::-1])):
        enlarged = enlarged_size(*size, sides)
        assert all(edge >= side for edge, side in zip(enlarged, sides, strict=True))
        if enlarged != size:
            bound = max(64 * sides[0] * sides[1], 4 * height * width)
            assert enlarged[0] * enlarged[1] <= bound


def test_the_bound_changes_only_strips():
    assert enlarged_size(10, 640, (100, 100)) == (100, 6400)
    assert enlarged_size(10, 641, (100, 100)) == (100, 6400)
    assert enlarged_size(641, 10, (100, 100)) == (6400, 100)
    assert enlarged_size(50, 100_000, (100, 100)) == (100, 200_000)  # four times its pixels


def test_padding_rounds_up_to_a_multiple_of_the_patch():
    assert padded_size((512, 513), (16, 16)) == (512, 528)


def test_a_layout_says_how_many_patches_the_image_covers():
    layout = SlidingWindow((32, 48), (32, 48), short_edge=40).layout(50, 100)
    assert layout.size == (40, 80)
    assert layout.cells((16, 32)) == (2.5, 2.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stride": (17, 16)}, "stride 17"),
        ({"stride": (16, 0)}, "stride 0"),
        ({"scales": ()}, "scales"),
        ({"scales": (1.0, -1.0)}, "-1.0"),
        ({"short_edge": 0}, "short_edge"),
    ],
)
def test_impossible_settings_are_refused(options, said):
    with pytest.raises(UserError, match=said):
        SlidingWindow(**({"window": (16, 16), "stride": (16, 16)} | options))


def test_an_image_too_large_to_be_processed_whole_is_refused(monkeypatch):
    monkeypatch.setattr("depict.inference.sliding.MAX_FULL_IMAGE_PIXELS", 999)
    sliding = SlidingWindow((16, 16), (16, 16), full_image=True)
    with pytest.raises(UserError, match=r"20 x 50 pixels \(height x width\) is too large to be processed whole"):
        sliding.layout(20, 50)


def test_geometry_needs_no_torch():
    code = "import sys, depict.inference.sliding, depict.inference.numpy_backend; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
