"""The protocol in numpy gives what the protocol in torch gives."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as T

from depict.inference import numpy_backend as numpy_inference
from depict.inference import torch_backend as inference
from depict.inference.numpy_backend import Settings
from depict.inference.sliding import MULTISCALE, SlidingWindow

MEAN, STD, PATCH = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), (8, 8)
SETTINGS = Settings(MEAN, STD, PATCH)
PROTOCOL = SlidingWindow(window=(32, 40), stride=(20, 30), short_edge=48, max_aspect=2.0)


class Network:
    """Some linear network with 5 classes on patches of 8 pixels, in torch and in numpy; counts its calls."""

    def __init__(self):
        self.weights = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        self.batches = []

    def torch(self, images):
        images = torch.nn.functional.pad(images, (0, -images.shape[3] % 8, 0, -images.shape[2] % 8))
        return torch.nn.functional.conv2d(images, self.weights, stride=8) / 10

    def numpy(self, images):
        assert images.dtype == np.float32
        self.batches.append(len(images))
        return self.torch(torch.from_numpy(images)).numpy()


def picture(height, width, seed=0):
    coarse = np.random.default_rng(seed).integers(0, 256, (-(-height // 4), -(-width // 4), 3), dtype=np.uint8)
    return coarse.repeat(4, 0).repeat(4, 1)[:height, :width].copy()


def both(image, sliding):
    network = Network()
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    ours = [
        (a, b, band.copy()) for a, b, band in numpy_inference.probabilities(network.numpy, image, sliding, SETTINGS)
    ]
    assert [a for a, _, _ in ours] == [0, *(b for _, b, _ in ours)][:-1]
    settings = {"mean": MEAN, "std": STD, "patch_size": PATCH}
    theirs = [band.clone() for _, _, band in inference.probabilities(network.torch, pixels, sliding, **settings)]
    labels = numpy_inference.predict(network.numpy, image, sliding, SETTINGS)
    expected = inference.predict(network.torch, pixels, sliding, **settings)
    return np.concatenate([band for _, _, band in ours], 1), torch.cat(theirs, 1).numpy(), labels, expected.numpy()


@pytest.mark.parametrize("size", [(48, 60), (100, 70), (20, 200), (1, 1), (33, 47)])
@pytest.mark.parametrize("scales", [(1.0,), MULTISCALE])
def test_probabilities_and_labels_are_those_of_torch(size, scales):
    # Without a box nothing is resized at scale 1, so there the two differ by rounding only.
    for sliding in (PROTOCOL, dataclasses.replace(PROTOCOL, short_edge=None)):
        sliding = dataclasses.replace(sliding, scales=scales, flip=len(scales) > 1)
        ours, theirs, labels, expected = both(picture(*size), sliding)
        assert ours.shape == theirs.shape == (5, *size)
        # A gray level of 256 that resizing rounds otherwise moves a probability by less than this.
        assert np.abs(ours - theirs).max() < (1e-5 if sliding.short_edge is None and len(scales) == 1 else 2e-2)
        clear = np.diff(np.sort(theirs, 0)[-2:], axis=0)[0] > 0.03
        assert (labels == expected)[clear].all()
        assert labels.dtype == np.uint8


def test_a_picture_seen_whole_agrees_too():
    ours, theirs, _, _ = both(picture(50, 90), dataclasses.replace(PROTOCOL, short_edge=None, full_image=True))
    assert np.abs(ours - theirs).max() < 1e-5


@given(st.tuples(*[st.integers(1, 90)] * 4), st.integers(0, 9))
def test_resizing_rounds_as_torch_does_but_for_ties(sizes, seed):
    image = picture(sizes[0], sizes[1], seed).transpose(2, 0, 1)
    ours = numpy_inference.resize(image, sizes[2:])
    theirs = T.resize(torch.from_numpy(image), sizes[2:], T.InterpolationMode.BILINEAR, antialias=False).numpy()
    difference = np.abs(ours.astype(int) - theirs)
    assert difference.max(initial=0) <= 1
    assert (difference > 0).mean() < 0.05 or difference.size < 600


def test_windows_come_in_batches():
    network = Network()
    numpy_inference.predict(network.numpy, picture(96, 96), PROTOCOL, dataclasses.replace(SETTINGS, batch=3))
    assert max(network.batches) == 3
    assert sum(network.batches) == 4


def test_many_classes_get_wider_labels():
    def network(images):
        masks = np.zeros((len(images), 300, 4, 5), np.float32)
        masks[:, 299] = 1
        return masks

    labels = numpy_inference.predict(network, picture(40, 50), PROTOCOL, SETTINGS)
    assert labels.dtype == np.int16
    assert (labels == 299).all()
