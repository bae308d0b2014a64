"""The geometry: sizes as published, anchors that cover everything, interpolation that is torch's."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from depict.errors import UserError
from depict.inference.resample import AxisMap, bands, bilinear
from depict.inference.sliding import anchors, enlarged_size, overlapping, padded_size, resized_size

length = st.integers(1, 60)


def dense(axis: AxisMap, inputs: int) -> np.ndarray:
    """The whole matrix (outputs, inputs)."""
    matrix = np.zeros((len(axis), inputs))
    np.add.at(matrix, (np.arange(len(axis))[:, None], axis.indices), axis.weights)
    return matrix


@given(inputs=length, outputs=length, double=st.booleans())
def test_interpolation_is_that_of_torch(inputs, outputs, double):
    dtype = torch.float64 if double else torch.float32
    identity = torch.eye(inputs, dtype=dtype)[:, None, None]  # (inputs, 1, 1, inputs)
    expected = F.interpolate(identity, size=(1, outputs), mode="bilinear")[:, 0, 0].T.numpy()
    ours = dense(bilinear(inputs, outputs, np.float64 if double else np.float32), inputs)
    np.testing.assert_allclose(ours, expected, atol=1e-14 if double else 1e-5)


@pytest.mark.parametrize(("inputs", "outputs"), [(32, 4096), (4096, 1000), (683, 2048), (7168, 4096)])
def test_interpolation_of_long_axes_is_that_of_torch(inputs, outputs):
    values = np.random.default_rng(0).random(inputs, dtype=np.float32)
    expected = F.interpolate(torch.from_numpy(values)[None, None, None], size=(1, outputs), mode="bilinear")
    axis = bilinear(inputs, outputs)
    ours = (values[axis.indices] * axis.weights).sum(1)
    np.testing.assert_allclose(ours, expected[0, 0, 0].numpy(), atol=1e-5)


@given(a=length, b=length, c=length)
def test_maps_compose_as_matrices_do(a, b, c):
    first, second = bilinear(a, b), bilinear(b, c)
    np.testing.assert_allclose(dense(second.after(first), a), dense(second, b) @ dense(first, a), atol=1e-6)


@given(inputs=length, outputs=length, start=length)
def test_a_block_holds_all_that_its_outputs_use(inputs, outputs, start):
    axis = bilinear(inputs, outputs)
    start %= outputs
    used, matrix = axis.block(start, outputs)
    assert (np.diff(used) > 0).all()
    whole = np.zeros((outputs - start, inputs))
    whole[:, used] = matrix
    np.testing.assert_allclose(whole, dense(axis, inputs)[start:])


@given(
    window=st.integers(1, 20),
    extra=st.integers(0, 40),
    stride=st.integers(1, 20),
    low=st.integers(1, 8),
    pad=st.integers(0, 4),
)
def test_overlapping_windows_are_averaged(window, extra, stride, low, pad):
    size, stride = window + extra, min(stride, window)
    inside = dense(bilinear(low, window + pad), low)[:window]
    total, count = 0, np.zeros(size)
    starts = anchors(size, window, stride)
    for index, start in enumerate(starts):
        part = np.zeros((size, len(starts) * low))
        part[start : start + window, index * low : (index + 1) * low] = inside
        total = total + part
        count[start : start + window] += 1
    ours = dense(overlapping(size, window, stride, low, window + pad), len(starts) * low)
    np.testing.assert_allclose(ours, total / count[:, None], atol=1e-6)


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


def test_padding_goes_to_the_next_multiple():
    assert padded_size((512, 513), (16, 16)) == (512, 528)


@given(size=length, step=length)
def test_bands_cut_an_axis_into_neighbors(size, step):
    pieces = list(bands(size, step))
    assert [i for start, stop in pieces for i in range(start, stop)] == list(range(size))


def test_geometry_needs_no_torch():
    code = "import sys, depict.inference.resample; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.integers(1, 200), st.integers(1, 5000), st.tuples(st.integers(1, 64), st.integers(1, 64)))
def test_strips_enlarge_to_a_bounded_number_of_pixels(height, width, window):
    for size, sides in (((height, width), window), ((width, height), window[::-1])):
        enlarged = enlarged_size(*size, sides)
        assert all(one >= side for one, side in zip(enlarged, sides, strict=True))
        if enlarged != size:
            bound = max(64 * sides[0] * sides[1], 4 * height * width)
            assert enlarged[0] * enlarged[1] <= bound


def test_only_strips_feel_the_bound():
    assert enlarged_size(10, 640, (100, 100)) == (100, 6400)
    assert enlarged_size(10, 641, (100, 100)) == (100, 6400)
    assert enlarged_size(641, 10, (100, 100)) == (6400, 100)
    assert enlarged_size(50, 100_000, (100, 100)) == (100, 200_000)  # four times its pixels
