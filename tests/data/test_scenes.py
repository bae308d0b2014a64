from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict.data import create_dataset
from depict.data.scenes.dataset import Scenes, render

COUNT = len(Scenes.classes)


def mean_iou(predicted: np.ndarray, labels: np.ndarray) -> float:
    confusion = np.bincount(labels.ravel() * COUNT + predicted.ravel(), minlength=COUNT**2).reshape(COUNT, COUNT)
    hits = np.diag(confusion)
    return float((hits / (confusion.sum(0) + confusion.sum(1) - hits)).mean())


def samples(split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    scenes = [render(Scenes.seed, Scenes.first[split] + i) for i in range(count)]
    return np.stack([s[0] for s in scenes]), np.stack([s[1] for s in scenes]).astype(int)


@pytest.fixture(scope="module")
def train() -> tuple[np.ndarray, np.ndarray]:
    return samples("train", 60)


@pytest.fixture(scope="module")
def val() -> tuple[np.ndarray, np.ndarray]:
    return samples("val", 20)


@given(
    st.integers(0, 2**63), st.integers(0, 2**40), st.tuples(st.integers(1, 90), st.integers(1, 90)) | st.integers(1, 90)
)
def test_any_scene_of_any_size_is_a_picture_with_a_label_per_pixel(seed, index, size):
    image, labels = render(seed, index, size)
    height, width = size if isinstance(size, tuple) else (size, size)
    assert (image.dtype, image.shape) == (np.uint8, (height, width, 3))
    assert (labels.dtype, labels.shape) == (np.uint8, (height, width))
    assert labels.max() < COUNT


def test_a_scene_depends_on_seed_and_index_alone():
    np.random.seed(1)
    image, labels = render(3, 5, 64)
    np.random.seed(2)
    torch.manual_seed(2)
    again, labels_again = render(3, 5, 64)
    assert (image == again).all()
    assert (labels == labels_again).all()
    assert (image != render(3, 6, 64)[0]).mean() > 0.5
    assert (image != render(4, 5, 64)[0]).mean() > 0.5


def test_a_scene_is_the_same_in_another_process():
    image, labels = render(0, 7, 64)
    program = (
        "import sys; from depict.data.scenes.dataset import render; "
        "sys.stdout.buffer.write(b''.join(array.tobytes() for array in render(0, 7, 64)))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert answer == image.tobytes() + labels.tobytes()


def test_a_scene_is_the_same_scene_at_another_resolution():
    agreements, differences = [], []
    for index in range(12):
        small, small_labels = render(0, index, 64)
        large, large_labels = render(0, index, 192)
        agreements.append((small_labels == large_labels[1::3, 1::3]).mean())
        differences.append(np.abs(large.reshape(64, 3, 64, 3, 3).mean(axis=(1, 3)) - small).mean())
    assert np.mean(agreements) > 0.94
    assert np.mean(differences) < 12  # of 255


def test_training_and_validation_share_no_scene():
    train, val = Scenes(None, "train"), Scenes(None, "val")
    assert len(train) >= 500
    assert len(val) >= 80
    assert Scenes.first["val"] >= Scenes.first["train"] + len(train)
    both = create_dataset("scenes", None, "trainval")
    assert len(both) == len(train) + len(val)
    assert both.read(len(train) + 1)[0].equal(val.read(1)[0])
    assert (train.read(0)[0] != val.read(0)[0]).float().mean() > 0.5


def test_every_class_has_its_share(train):
    shares = np.bincount(train[1].ravel(), minlength=COUNT) / train[1].size
    assert shares.min() > 0.03
    assert shares.max() < 0.4


def test_labels_are_crisp_regions_and_not_speckle(train):
    """A pixel whose label differs from those of all four neighbors is noise; there is next to none."""
    inner = train[1][:, 1:-1, 1:-1]
    around = [train[1][:, 1 + dy : 127 + dy, 1 + dx : 127 + dx] for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0))]
    alone = np.logical_and.reduce([inner != other for other in around])
    assert alone.mean() < 1e-3


def test_color_alone_does_not_solve_it(train, val):
    """A Bayes classifier on 16x16x16 colors, with and without the classes' frequencies."""

    def code(images: np.ndarray) -> np.ndarray:
        return ((images.astype(int) >> 4) * (256, 16, 1)).sum(-1)

    counts = np.zeros((4096, COUNT))
    np.add.at(counts, (code(train[0]).ravel(), train[1].ravel()), 1)
    for weights in (counts, counts / counts.sum(0)):
        score = mean_iou((weights + 1e-9 * counts.sum(0)).argmax(1)[code(val[0])], val[1])
        assert 0.1 < score < 0.45


def test_place_alone_does_not_solve_it(train, val):
    frequent = np.stack([(train[1] == k).sum(0) for k in range(COUNT)]).argmax(0)
    assert mean_iou(np.broadcast_to(frequent, val[1].shape), val[1]) < 0.35


def test_the_data_set_gives_tensors_by_index():
    scenes = create_dataset("scenes", None, "val")
    image, labels = scenes.read(3)
    expected, expected_labels = render(Scenes.seed, Scenes.first["val"] + 3, Scenes.recipe.short_edge)
    assert (image.permute(1, 2, 0).numpy() == expected).all()
    assert (labels.numpy() == expected_labels).all()
    assert scenes.name_of(3) == "val_00003"
    assert len(scenes.classes) == len(scenes.palette) == 8
    with pytest.raises(IndexError):
        scenes.read(len(scenes))
    assert Scenes(None, "val", (40, 60)).read(0)[0].shape == (3, 40, 60)
