"""The metrics agree with counting pixels by hand, and the boundary with repeated erosion."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor

from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig
from depict.data import create_dataset
from depict.data.dataset import Dataset, Recipe, Subset
from depict.errors import UserError
from depict.evaluation import Result, boundary, boundary_counts, confusion_matrix, evaluate, sliding_window_for
from depict.model import SegmentationModel
from support.tiny_model import tiny_model


def random_labels(height: int, width: int, classes: int, seed: int, void: float = 0.1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, classes, (height, width), generator=generator).to(torch.uint8)
    truth[torch.rand(truth.shape, generator=generator) < void] = 255
    return truth, torch.randint(0, classes, (height, width), generator=generator).to(torch.uint8)


def result(truth: Tensor, prediction: Tensor, classes: int) -> Result:
    names = tuple(f"class {index}" for index in range(classes))
    counts = confusion_matrix(truth, prediction, classes), boundary_counts(truth, prediction, classes)
    return Result(names, *counts, images=[])


@given(classes=st.integers(1, 5), height=st.integers(1, 9), width=st.integers(1, 9), seed=st.integers(0, 50))
def test_every_metric_agrees_with_counting_pixels(classes, height, width, seed):
    truth, prediction = random_labels(height, width, classes, seed)
    ours = result(truth, prediction, classes)
    pairs = [(t, p) for t, p in zip(truth.flatten().tolist(), prediction.flatten().tolist(), strict=True) if t != 255]
    ious, accuracies, precisions, dices = [], [], [], []
    for c in range(classes):
        both = sum(t == p == c for t, p in pairs)
        either = sum(c in (t, p) for t, p in pairs)
        true, predicted = sum(t == c for t, _ in pairs), sum(p == c for _, p in pairs)
        if either:
            ious.append(both / either)
            dices.append(2 * both / (true + predicted))
        if true:
            accuracies.append(both / true)
        if predicted:
            precisions.append(both / predicted)
    if not pairs:
        assert math.isnan(ours.miou)
        assert math.isnan(ours.aacc)
        return
    assert ours.miou == pytest.approx(np.mean(ious))
    assert ours.macc == pytest.approx(np.mean(accuracies))
    assert ours.to_dict()["dice"] == pytest.approx(np.mean(dices), abs=1e-6)
    assert ours.to_dict()["precision"] == pytest.approx(np.mean(precisions), abs=1e-6)
    assert ours.aacc == pytest.approx(np.mean([t == p for t, p in pairs]))


def test_a_class_that_appears_nowhere_is_left_out_and_one_that_is_only_predicted_counts_as_zero():
    truth = torch.tensor([[0, 0, 1, 1]])
    perfect = result(truth, truth, 4)
    assert perfect.miou == 1.0
    assert np.isnan(perfect.iou[2:]).all()
    wrong = result(truth, torch.tensor([[0, 0, 1, 2]]), 4)
    np.testing.assert_allclose(wrong.iou, [1.0, 0.5, 0.0, np.nan])
    assert wrong.miou == pytest.approx(0.5)
    np.testing.assert_allclose(wrong.accuracy, [1.0, 0.5, np.nan, np.nan])


def test_rows_of_the_confusion_matrix_are_the_ground_truth():
    counts = confusion_matrix(torch.tensor([[0, 0, 255]]), torch.tensor([[1, 1, 0]]), 2)
    assert counts.tolist() == [[0, 2], [0, 0]]


def test_a_label_outside_the_classes_is_named():
    with pytest.raises(UserError, match="label 7 is outside the 3 classes"):
        confusion_matrix(torch.tensor([[7]]), torch.tensor([[0]]), 3)


def test_labels_and_prediction_of_different_size_are_refused():
    with pytest.raises(UserError, match="differ in size"):
        confusion_matrix(torch.zeros(2, 3), torch.zeros(3, 2), 3)


@given(height=st.integers(1, 25), width=st.integers(1, 25), distance=st.integers(1, 6), seed=st.integers(0, 20))
def test_the_boundary_is_each_mask_minus_its_erosion(height, width, distance, seed):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 3, (1 + height // 6, 1 + width // 6), generator=generator)
    labels = coarse.repeat_interleave(6, 0).repeat_interleave(6, 1)[:height, :width]
    expected = np.zeros((height, width), bool)
    for c in range(3):
        mask = labels.numpy() == c
        expected |= mask & ~ndimage.binary_erosion(mask, np.ones((3, 3)), iterations=distance, border_value=0)
    np.testing.assert_array_equal(boundary(labels, distance).numpy(), expected)


def test_boundary_iou_drops_for_ragged_edges_that_hardly_change_iou():
    truth = torch.zeros(100, 100, dtype=torch.uint8)
    truth[20:80, 20:80] = 1
    ragged = truth.clone()
    ragged[20:80:2, 78:82] = 1 - ragged[20:80:2, 78:82]
    ours = result(truth, ragged, 2)
    assert result(truth, truth, 2).mean_boundary_iou == 1.0
    assert ours.iou[1] > 0.95
    assert ours.boundary_iou[1] < 0.9


def test_predictions_on_ignored_pixels_change_nothing():
    truth, prediction = random_labels(30, 40, 4, seed=1, void=0.3)
    other = torch.where(truth == 255, (prediction + 1) % 4, prediction)
    assert str(result(truth, prediction, 4)) == str(result(truth, other, 4))


class Stripes(Dataset):
    """Images whose red channel is 100 times the class, in blocks of 8 x 8 pixels."""

    name = "stripes"
    classes = ("dark", "gray", "bright")
    palette = ((0, 0, 0), (128, 128, 128), (255, 255, 255))
    recipe = Recipe(short_edge=16, max_aspect=2, crop=16, epochs=1, batch=1, lr=1.0)

    def __init__(self):
        super().__init__(None, "val")

    def __len__(self):
        return 5

    def name_of(self, index):
        return f"stripe {index}"

    def read(self, index):
        labels = torch.randint(0, 3, (4, 5), generator=torch.Generator().manual_seed(index)).to(torch.uint8)
        labels = labels.repeat_interleave(8, 0).repeat_interleave(8, 1)
        image = (labels * 100)[None].expand(3, -1, -1).clone()
        labels[:3] = 255
        return image, labels


class RedPredictor:
    """Reads the class off the red channel, and predicts class 1 instead of 2."""

    classes, palette = Stripes.classes, Stripes.palette

    def labels(self, image: np.ndarray) -> np.ndarray:
        return np.minimum(image[..., 0] // 100, 1).astype(np.uint8)

    def probabilities(self, image: np.ndarray) -> NoReturn:
        raise NotImplementedError


def test_an_evaluation_reports_classes_images_and_confusion():
    seen = []
    ours = evaluate(RedPredictor(), Stripes(), watch=lambda index, *_: seen.append(index))
    assert seen == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(ours.accuracy, [1, 1, 0])
    assert ours.confusion.sum() == sum((Stripes().read(i)[1] != 255).sum() for i in range(5))
    assert [row["name"] for row in ours.images] == [f"stripe {i}" for i in range(5)]
    assert sum(row["aacc"] * row["pixels"] for row in ours.images) == pytest.approx(np.trace(ours.confusion), rel=1e-4)
    table = str(ours)
    for word in ("dark", "gray", "bright", "mIoU", "mAcc", "aAcc", "5 images"):
        assert word in table
    plain = json.loads(json.dumps(ours.to_dict(), allow_nan=False))
    assert plain["miou"] == pytest.approx(ours.miou, abs=1e-6)
    assert plain["confusion"] == ours.confusion.tolist()


def test_a_model_is_evaluated_by_the_labels_that_predict_returns():
    model, scenes = tiny_model().train(), create_dataset("scenes", split="val")
    images = Subset(scenes, [0, 1])
    ours = evaluate(model.predictor(), images)
    assert model.training
    expected = sum(
        confusion_matrix(truth, torch.from_numpy(model.predict(image).labels), model.num_classes)
        for image, truth in (images.read(index) for index in range(2))
    )
    np.testing.assert_array_equal(ours.confusion, expected)


def test_the_results_of_all_processes_add_up_to_that_of_one():
    whole = evaluate(RedPredictor(), Stripes())
    shards = [evaluate(RedPredictor(), Stripes(), rank, 3) for rank in range(3)]
    np.testing.assert_array_equal(sum(shard.confusion for shard in shards), whole.confusion)
    assert sorted(row["index"] for shard in shards for row in shard.images) == [0, 1, 2, 3, 4]


def test_a_model_with_another_number_of_classes_is_refused():
    predictor = RedPredictor()
    predictor.classes = (*Stripes.classes, "more")
    with pytest.raises(UserError, match="the model has 4 classes, 'stripes' has 3"):
        evaluate(predictor, Stripes())


def model(short_edge: int | None = None, data: str = "stripes") -> SegmentationModel:
    """Windows of 16 pixels, trained on `data` with this short edge."""
    encoder = EncoderConfig("vit_tiny_patch16_224", pretrained=False, dim=48, depth=1)
    config = Config(encoder=encoder, decoder=DecoderConfig("linear"), data=DataConfig(data, short_edge=short_edge))
    return SegmentationModel(dataclasses.replace(config, image_size=16), Stripes.classes)


@pytest.mark.parametrize(
    ("trained", "options", "short_edge"),
    [
        ({}, {}, 16),
        ({"short_edge": 20}, {}, 20),  # as in training
        ({"short_edge": 20, "data": "other"}, {}, 16),  # another data set has its own
        ({"short_edge": 20}, {"short_edge": 24}, 24),
    ],
)
def test_the_short_edge_is_that_of_the_flag_the_training_or_the_data_set(trained, options, short_edge):
    sliding = sliding_window_for(model(**trained), Stripes(), **options)
    assert sliding.short_edge == short_edge
    assert sliding.max_aspect == 2
    assert sliding.stride == (8, 8)


def test_images_are_not_resized_below_the_crop_of_the_model_unless_requested():
    small = Stripes()
    small.recipe = Recipe(short_edge=12, max_aspect=2, crop=12, epochs=1, batch=1, lr=1.0)
    assert sliding_window_for(model(), small).short_edge == 16
    requested = sliding_window_for(model(), small, short_edge=12, stride=5)
    assert (requested.short_edge, requested.stride) == (12, (5, 5))
