"""Bilinear maps are torch's and compose; labels rendered in bands are the argmax of all logits of all pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from depict.inference import resample
from depict.inference.resample import AxisMap, argmax_labels, bands, bilinear
from depict.inference.sliding import overlapping
from support.axis_maps import dense

length = st.integers(1, 60)


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
def test_maps_compose_like_matrices(a, b, c):
    first, second = bilinear(a, b), bilinear(b, c)
    np.testing.assert_allclose(dense(second.after(first), a), dense(second, b) @ dense(first, a), atol=1e-6)


@given(inputs=length, outputs=length, start=length)
def test_a_block_has_every_input_that_its_outputs_use(inputs, outputs, start):
    axis = bilinear(inputs, outputs)
    start %= outputs
    used, matrix = axis.block(start, outputs)
    assert (np.diff(used) > 0).all()
    whole = np.zeros((outputs - start, inputs))
    whole[:, used] = matrix
    np.testing.assert_allclose(whole, dense(axis, inputs)[start:])


@given(size=length, step=length)
def test_bands_cover_an_axis_without_overlap(size, step):
    pieces = list(bands(size, step))
    assert [i for start, stop in pieces for i in range(start, stop)] == list(range(size))


def assert_argmax(logits: np.ndarray, rows: AxisMap, columns: AxisMap) -> None:
    """No class has a larger score than the label, computed densely in float64."""
    labels = argmax_labels(logits, rows, columns)
    left, right = dense(rows, logits.shape[0]), dense(columns, logits.shape[1])
    scores = np.einsum("hi,ijc,wj->hwc", left, logits.astype(np.float64), right, optimize=True)
    of_labels = np.take_along_axis(scores, labels[..., None].astype(np.int64), 2)[..., 0]
    np.testing.assert_allclose(of_labels, scores.max(2), atol=1e-5)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), *[st.integers(1, 8)] * 2, *[st.integers(1, 150)] * 2)
def test_no_class_has_a_larger_score_than_the_label(seed, classes, height, width, rows, columns):
    logits = np.random.default_rng(seed).normal(size=(height, width, classes)).astype(np.float32)
    assert_argmax(logits, bilinear(height, rows), bilinear(width, columns))


def test_narrow_bands_give_the_same_labels(monkeypatch):
    logits = np.random.default_rng(0).normal(size=(5, 6, 20)).astype(np.float32)
    maps = bilinear(5, 90), bilinear(6, 70)
    whole = argmax_labels(logits, *maps)
    monkeypatch.setattr(resample, "WIDE_BAND", 1)  # one row at a time, as for a very wide image
    np.testing.assert_array_equal(argmax_labels(logits, *maps), whole)


def test_labels_of_overlapping_windows_flips_and_other_sizes_are_the_argmax():
    logits = np.random.default_rng(0).normal(size=(8, 16, 150)).astype(np.float32)
    rows, columns = overlapping(50, 32, 24, 4, 32), overlapping(100, 64, 40, 8, 64)
    assert_argmax(logits, rows, columns)
    assert_argmax(logits, bilinear(50, 700).after(rows), columns[::-1])


@pytest.mark.parametrize(("classes", "dtype"), [(256, np.uint8), (257, np.int16)])
def test_more_than_256_classes_get_wider_labels(classes, dtype):
    logits = np.zeros((1, 1, classes), np.float32)
    logits[..., -1] = 1
    labels = argmax_labels(logits, bilinear(1, 3), bilinear(1, 4))
    assert labels.dtype == dtype
    assert (labels == classes - 1).all()


def test_ties_go_to_the_first_class():
    constant = AxisMap(np.zeros((5, 1), np.int64), np.ones((5, 1), np.float32))
    assert (argmax_labels(np.zeros((1, 1, 4), np.float32), constant, constant) == 0).all()
