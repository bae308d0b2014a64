"""`model.predictor()`: labels and probabilities as numpy arrays, in evaluation mode, on the model's device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from depict.errors import UserError
from depict.inference.sliding import NetworkSpec
from depict.inference.torch_backend import predict
from support.tiny_model import tiny_model


def picture(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_labels_are_those_of_the_backend_and_of_predict():
    model, image = tiny_model(), picture(70, 50)
    spec = NetworkSpec(model.mean, model.std, model.multiple)
    expected = predict(model.masks, torch.from_numpy(image).permute(2, 0, 1), model.sliding_window(), spec).numpy()
    np.testing.assert_array_equal(model.predictor().labels(image), expected)
    np.testing.assert_array_equal(model.predict(image).labels, expected)
    assert len(np.unique(expected)) > 1


def test_the_largest_probability_is_that_of_the_label():
    model, image = tiny_model(), picture(45, 60)
    predictor = model.predictor(model.sliding_window(multiscale=True))
    bands = [(start, stop, band.copy()) for start, stop, band in predictor.probabilities(image)]
    assert [start for start, _, _ in bands] == [0, *(stop for _, stop, _ in bands)][:-1]
    whole = np.concatenate([band for _, _, band in bands], 1)
    assert whole.shape == (model.num_classes, 45, 60)
    np.testing.assert_allclose(whole.sum(0), 1, atol=1e-5)
    np.testing.assert_array_equal(whole.argmax(0), predictor.labels(image))


def test_the_model_is_in_evaluation_mode_only_while_it_predicts():
    model = tiny_model().train()
    modes = []

    def network(images):
        modes.append(model.training)
        return model.masks(images)

    predictor = model.predictor(network=network, batch=1)
    predictor.labels(picture(40, 40))
    list(predictor.probabilities(picture(40, 40)))
    assert modes
    assert not any(modes)
    assert model.training


def test_a_read_only_array_is_not_a_problem():
    image = picture(40, 40)
    image.setflags(write=False)
    assert tiny_model().predictor().labels(image).shape == (40, 40)


@pytest.mark.parametrize("ask", [lambda p, image: p.labels(image), lambda p, image: list(p.probabilities(image))])
def test_an_image_that_does_not_fit_into_memory_is_named_by_its_size(ask):
    def network(images):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate ...")

    with pytest.raises(UserError, match=r"40 x 30 pixels \(height x width\) does not fit into the memory") as caught:
        ask(tiny_model().predictor(network=network), picture(40, 30))
    assert "\n" not in str(caught.value)
