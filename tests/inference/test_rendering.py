"""The largest class of each pixel, against all logits of all pixels in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depict.inference import resample as rendering
from depict.inference.resample import AxisMap, argmax_labels, bilinear
from depict.inference.sliding import overlapping


def dense(axis, inputs):
    matrix = np.zeros((len(axis), inputs))
    np.add.at(matrix, (np.arange(len(axis))[:, None], axis.indices), axis.weights)
    return matrix


def check(logits, rows, columns):
    found = argmax_labels(logits, rows, columns)
    left, right = dense(rows, logits.shape[0]), dense(columns, logits.shape[1])
    every = np.einsum("hi,ijc,wj->hwc", left, logits.astype(np.float64), right, optimize=True)
    of_found = np.take_along_axis(every, found[..., None].astype(np.int64), 2)[..., 0]
    np.testing.assert_allclose(of_found, every.max(2), atol=1e-5)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), *[st.integers(1, 8)] * 2, *[st.integers(1, 150)] * 2)
def test_no_class_is_larger_than_the_one_found(seed, classes, height, width, rows, columns):
    logits = np.random.default_rng(seed).normal(size=(height, width, classes)).astype(np.float32)
    check(logits, bilinear(height, rows), bilinear(width, columns))


def test_narrow_bands_give_the_same_labels(monkeypatch):
    logits = np.random.default_rng(0).normal(size=(5, 6, 20)).astype(np.float32)
    maps = bilinear(5, 90), bilinear(6, 70)
    whole = argmax_labels(logits, *maps)
    monkeypatch.setattr(rendering, "WIDE_BAND", 1)  # a row at a time, as of a very wide picture
    np.testing.assert_array_equal(argmax_labels(logits, *maps), whole)


def test_windows_that_overlap_flips_and_other_sizes_are_one_map_each():
    logits = np.random.default_rng(0).normal(size=(8, 16, 150)).astype(np.float32)
    rows, columns = overlapping(50, 32, 24, 4, 32), overlapping(100, 64, 40, 8, 64)
    check(logits, rows, columns)
    check(logits, bilinear(50, 700).after(rows), columns[::-1])


@pytest.mark.parametrize(("classes", "dtype"), [(256, np.uint8), (257, np.int16)])
def test_many_classes_get_wider_labels(classes, dtype):
    logits = np.zeros((1, 1, classes), np.float32)
    logits[..., -1] = 1
    found = argmax_labels(logits, bilinear(1, 3), bilinear(1, 4))
    assert found.dtype == dtype
    assert (found == classes - 1).all()


def test_of_equal_classes_the_first_is_taken():
    every = AxisMap(np.zeros((5, 1), np.int64), np.ones((5, 1), np.float32))
    assert (argmax_labels(np.zeros((1, 1, 4), np.float32), every, every) == 0).all()
