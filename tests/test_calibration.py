"""Confidence against accuracy: by hand, over several images, and of a real model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depict.calibration import BINS, REDUCTION, Calibration
from depict.data import create_dataset
from support.tiny_model import tiny_model


class Fixed:
    """Scores with these probabilities (C, h, w), in bands of one row."""

    def __init__(self, probabilities: np.ndarray) -> None:
        self.values = probabilities

    def labels(self) -> np.ndarray:
        return self.values.argmax(0)

    def probabilities(self, size: tuple[int, int] | None = None) -> Iterator[tuple[int, int, np.ndarray]]:
        assert size == self.values.shape[1:]
        for row in range(len(self.values[0])):
            yield row, row + 1, self.values[:, row : row + 1]


def random_case(seed: int, height: int = 3, width: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (3, h, w), and labels of an image that is REDUCTION times as large."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, (height, width)).astype(np.uint8)
    labels[random.random(labels.shape) < 0.2] = 255
    enlarged = labels.repeat(REDUCTION, 0).repeat(REDUCTION, 1)
    return random.dirichlet(np.ones(3), (height, width)).transpose(2, 0, 1).astype(np.float32), enlarged


@given(seed=st.integers(0, 99))
def test_the_error_is_the_mean_difference_of_accuracy_and_confidence_in_the_bins(seed):
    values, truth = random_case(seed)
    found = Calibration()
    found.add(Fixed(values), truth)
    labels, confidence = truth[::REDUCTION, ::REDUCTION], values.max(0).astype(np.float64)
    right = values.argmax(0) == labels
    expected = 0.0
    for number in range(BINS):
        here = (labels != 255) & (np.minimum((confidence * BINS).astype(int), BINS - 1) == number)
        if here.any():
            expected += here.sum() * abs(right[here].mean() - confidence[here].mean())
    assert found.pixels.sum() == (labels != 255).sum()
    assert found.error == pytest.approx(expected / max(1, (labels != 255).sum()), abs=1e-9)


def test_images_add_up_in_any_order():
    parts = []
    for seed in range(3):
        parts.append(Calibration())
        values, truth = random_case(seed)
        parts[-1].add(Fixed(values), truth)
    one, two = sum(parts, Calibration()), sum(reversed(parts), Calibration())
    assert one.to_dict() == two.to_dict()
    assert one.pixels.sum() == sum(part.pixels.sum() for part in parts)


def test_a_model_that_is_always_right_and_sure_has_no_error_and_one_that_is_always_wrong_has_all():
    truth = np.zeros((8, 8), np.uint8)
    sure = np.stack([np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)])
    for values, error in ((sure, 0.0), (sure[::-1], 1.0)):
        found = Calibration()
        found.add(Fixed(values), truth)
        assert found.to_dict()["ece"] == error
        assert found.to_dict()["bins"][-1]["pixels"] == 4


def test_without_a_labeled_pixel_there_is_no_error():
    found = Calibration()
    found.add(Fixed(np.ones((1, 1, 1), np.float32)), np.full((4, 4), 255, np.uint8))
    assert math.isnan(found.error)
    assert found.to_dict()["ece"] is None
    assert found.to_dict()["accuracy"] is None


def test_the_confidence_is_that_of_the_model_at_a_quarter_of_the_resolution():
    model = tiny_model()
    image, truth = create_dataset("scenes", split="val").read(0)
    found = Calibration()
    found.add(next(model.predictor().scores([image.permute(1, 2, 0).numpy()])), truth.numpy())
    confidence = model.predict(image).probabilities(size=(32, 32)).max(0)
    assert found.to_dict()["confidence"] == pytest.approx(confidence.mean(), abs=1e-5)
