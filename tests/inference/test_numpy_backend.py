"""The numpy backend agrees with the torch backend."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from depict.inference import numpy_backend, preprocess, torch_backend
from depict.inference.sliding import MULTISCALE, NetworkSpec, SlidingWindow

SPEC = NetworkSpec((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), (8, 8))
EXACT = "AVX" in torch.backends.cpu.get_cpu_capability()
"""Whether torch resizes uint8 in integers, as numpy does here; on other processors it resizes floats."""
SLIDING = SlidingWindow(window=(32, 40), stride=(20, 30), short_edge=48, max_aspect=2.0)


class Network:
    """A linear network with 5 classes on patches of 8 pixels, in torch and in numpy; records its batches."""

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
    """Probabilities of numpy and of torch (5, H, W), labels of numpy and of torch (H, W)."""
    network = Network()
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    bands = [
        (start, stop, band.copy())
        for start, stop, band in numpy_backend.probabilities(network.numpy, image, sliding, SPEC)
    ]
    assert [start for start, _, _ in bands] == [0, *(stop for _, stop, _ in bands)][:-1]
    ours = np.concatenate([band for _, _, band in bands], 1)
    theirs = torch.cat([b.clone() for _, _, b in torch_backend.probabilities(network.torch, pixels, sliding, SPEC)], 1)
    labels = numpy_backend.predict(network.numpy, image, sliding, SPEC)
    return ours, theirs.numpy(), labels, torch_backend.predict(network.torch, pixels, sliding, SPEC).numpy()


@pytest.mark.parametrize("size", [(48, 60), (100, 70), (20, 200), (1, 1), (33, 47)])
@pytest.mark.parametrize("scales", [(1.0,), MULTISCALE])
def test_probabilities_and_labels_are_those_of_torch(size, scales):
    for sliding in (SLIDING, dataclasses.replace(SLIDING, short_edge=None)):
        sliding = dataclasses.replace(sliding, scales=scales, flip=len(scales) > 1)
        ours, theirs, labels, expected = both(picture(*size), sliding)
        assert ours.shape == theirs.shape == (5, *size)
        assert np.abs(ours - theirs).max() < (1e-5 if EXACT else 2e-2)
        clear = np.diff(np.sort(theirs, 0)[-2:], axis=0)[0] > (1e-4 if EXACT else 0.03)
        assert (labels == expected)[clear].all()
        assert labels.dtype == np.uint8


def test_full_images_agree_too():
    ours, theirs, _, _ = both(picture(50, 90), dataclasses.replace(SLIDING, short_edge=None, full_image=True))
    assert np.abs(ours - theirs).max() < 1e-5


@given(st.tuples(*[st.integers(1, 90)] * 4), st.integers(0, 9))
@example((360, 480, 270, 360), 0)  # weights of 1/8, 3/8, ...: many ties
@example((300, 401, 512, 684), 0)
def test_resizing_is_bit_equal_to_torch(sizes, seed):
    image = picture(sizes[0], sizes[1], seed).transpose(2, 0, 1)
    ours = numpy_backend.resize_image(image, sizes[2:])
    theirs = preprocess.resize_image(torch.from_numpy(image), sizes[2:]).numpy()
    assert np.abs(ours.astype(int) - theirs).max() <= (0 if EXACT else 1)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("size", [(48, 60), (100, 70), (20, 200), (1, 1), (33, 47)])
def test_the_network_gets_the_pixels_that_it_gets_in_torch(size, flip):
    """Whether the image is resized, enlarged, both or neither, whole and in crops."""
    image = picture(*size).transpose(2, 0, 1)
    for short_edge in (None, 24, 48):
        layout = dataclasses.replace(SLIDING, short_edge=short_edge).layout(*size)
        ours = numpy_backend.NetworkInput(image, layout, SPEC, flip)
        theirs = preprocess.NetworkInput(torch.from_numpy(image), layout, SPEC.mean, SPEC.std, flip=flip)
        assert ours.full().dtype == np.float32
        assert ours.full().shape == theirs.full().shape == (3, *layout.size)
        assert np.abs(ours.full() - theirs.full().numpy()).max() < (1e-5 if EXACT else 0.02)
        crop = ours.crop(3, 5, 20, 30)
        np.testing.assert_array_equal(crop, ours.full()[:, 3:23, 5:35])


def test_windows_come_in_batches():
    network = Network()
    numpy_backend.predict(network.numpy, picture(96, 96), SLIDING, dataclasses.replace(SPEC, batch=3))
    assert max(network.batches) == 3
    assert sum(network.batches) == 4


def test_more_than_256_classes_get_wider_labels():
    def network(images):
        masks = np.zeros((len(images), 300, 4, 5), np.float32)
        masks[:, 299] = 1
        return masks

    labels = numpy_backend.predict(network, picture(40, 50), SLIDING, SPEC)
    assert labels.dtype == np.int16
    assert (labels == 299).all()
