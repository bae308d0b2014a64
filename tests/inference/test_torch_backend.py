"""Inference in bands against plain loops over whole tensors, for any network and any size."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from depict.errors import UserError
from depict.inference import torch_backend
from depict.inference.sliding import MULTISCALE, NetworkSpec, SlidingWindow
from depict.inference.torch_backend import eval_mode, predict, probabilities
from support.naive_inference import naive_probabilities

NORMALIZATION = {"mean": (0.5, 0.4, 0.3), "std": (0.5, 0.6, 0.7)}
SPEC = NetworkSpec(**NORMALIZATION, multiple=(4, 4))
PIXELS = NetworkSpec(**NORMALIZATION)  # of a network with a logit for each pixel


def network(classes: int = 5, patch: tuple[int, int] = (4, 4), strength: float = 3.0):
    """A network whose logits depend on the pixels of each patch, their order, and the patch's place in the window."""
    generator = torch.Generator().manual_seed(classes)
    weight = torch.randn(classes, 3, *patch, generator=generator)

    def logits(images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        images = F.pad(images, (0, -width % patch[1], 0, -height % patch[0]))
        low = F.conv2d(images, weight, stride=patch) * strength / (patch[0] * patch[1]) ** 0.5
        ramp = torch.arange(low.shape[2])[:, None] * 0.3 - torch.arange(low.shape[3]) * 0.2
        return low + torch.sin(ramp + torch.arange(classes)[:, None, None])

    return logits


def picture(height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)


def both(image: Tensor, classes: int = 5, patch: tuple[int, int] = (4, 4), **options):
    """Our probabilities, our labels, and the naive probabilities."""
    net = network(classes, patch)
    plain = {"short_edge": None, "max_aspect": 4.0, "scales": (1.0,), "flip": False} | options
    naive = naive_probabilities(net, image, **plain, **NORMALIZATION, patch_size=patch)
    window, stride = plain.pop("window"), plain.pop("stride")
    sliding = SlidingWindow(window=(window, window), stride=(stride, stride), **plain)
    ours = torch.full_like(naive, torch.nan)
    spec = NetworkSpec(**NORMALIZATION, multiple=patch, batch=3)
    for start, stop, band in probabilities(net, image, sliding, spec):
        ours[:, start:stop] = band
    return ours, predict(net, image, sliding, spec), naive


def assert_same(ours: Tensor, labels: Tensor, naive: Tensor) -> None:
    torch.testing.assert_close(ours, naive, atol=1e-5, rtol=0)
    top = naive.topk(2, dim=0).values
    clear = top[0] - top[1] >= 1e-5
    assert torch.equal(labels[clear].long(), naive.argmax(0)[clear])


@pytest.mark.parametrize("stride", [16, 11, 8, 5, 1])
@pytest.mark.parametrize("size", [(16, 16), (40, 23), (7, 30), (33, 5), (1, 1), (17, 48)])
def test_any_stride_and_size_agree_with_plain_loops(size, stride):
    assert_same(*both(picture(*size), window=16, stride=stride, short_edge=None))


@pytest.mark.parametrize("size", [(40, 23), (9, 30), (64, 64), (1, 1), (3, 41)])
def test_multiscale_with_flips_agrees_with_plain_loops(size):
    assert_same(
        *both(picture(*size), window=16, stride=12, short_edge=24, max_aspect=3.0, scales=MULTISCALE, flip=True)
    )


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    short_edge=st.none() | st.integers(4, 40),
    window=st.integers(3, 20),
    data=st.data(),
)
@settings(max_examples=25)
@example(height=1, width=40, short_edge=None, window=20, data=None)
def test_every_combination_of_sizes_agrees_with_plain_loops(height, width, short_edge, window, data):
    stride = data.draw(st.integers(max(1, window // 4), window)) if data else window
    patch = data.draw(st.tuples(st.integers(1, 8), st.integers(1, 8))) if data else (7, 3)
    flip = data.draw(st.booleans()) if data else True
    options = {
        "window": window,
        "stride": stride,
        "short_edge": short_edge,
        "max_aspect": 2.5,
        "scales": (0.6, 1.0),
        "flip": flip,
    }
    assert_same(*both(picture(height, width), patch=patch, **options))


def test_bands_of_one_row_give_the_same_probabilities(monkeypatch):
    options = {"window": 16, "stride": 9, "short_edge": 30, "scales": (0.5, 1.5), "flip": True}
    image = picture(37, 51)
    whole = both(image, **options)[0]
    monkeypatch.setattr(torch_backend, "CPU_BAND", 1)
    monkeypatch.setattr(torch_backend, "WIDE_BAND", 51 * 5 * 4 * 7)
    assert_same(*both(image, **options))
    torch.testing.assert_close(both(image, **options)[0], whole, atol=1e-6, rtol=0)


def test_large_logits_neither_overflow_nor_vanish():
    net = network(strength=3000.0)
    sliding = SlidingWindow((16, 16), (12, 12), scales=(1.0, 1.5), flip=True)
    ours = torch.cat([band.clone() for *_, band in probabilities(net, picture(30, 30), sliding, SPEC)], 1)
    assert torch.isfinite(ours).all()
    torch.testing.assert_close(ours.sum(0), torch.ones(30, 30))


def test_a_window_need_not_be_square():
    sliding = SlidingWindow((8, 24), (6, 20), short_edge=20, scales=(0.5, 1.0))
    seen = set()

    def net(images: Tensor) -> Tensor:
        seen.add(tuple(images.shape[1:]))
        return network()(images)

    labels = predict(net, picture(33, 21), sliding, SPEC)
    assert seen == {(3, 8, 24)}
    assert labels.shape == (33, 21)


def test_windows_of_different_scales_share_a_batch():
    sizes = []

    def net(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return network()(images)

    sliding = SlidingWindow((16, 16), (16, 16), short_edge=16, max_aspect=1.0, scales=(0.5, 1.0, 2.0), flip=True)
    predict(net, picture(20, 20), sliding, dataclasses.replace(SPEC, batch=8))
    assert sizes == [8, 4]  # (1 + 1 + 4 windows) * 2


def test_flips_do_not_change_the_labels_of_a_mirror_symmetric_network():
    def net(images: Tensor) -> Tensor:
        return F.avg_pool2d(images, 4) * 4

    image = picture(32, 48)
    plain, flipped = (predict(net, image, SlidingWindow((16, 16), (16, 16), flip=flip), SPEC) for flip in (False, True))
    assert (plain == flipped).float().mean() > 0.995


def test_logits_of_full_resolution_are_not_resampled():
    classes = torch.randint(0, 3, (8, 8), generator=torch.Generator().manual_seed(1))

    def net(images: Tensor) -> Tensor:
        return F.one_hot(classes, 3).permute(2, 0, 1)[None].float()

    labels = predict(net, picture(8, 8), SlidingWindow((8, 8), (8, 8)), PIXELS)
    assert torch.equal(labels.long(), classes)
    assert labels.dtype == torch.uint8


def test_more_than_256_classes_fit():
    def net(images: Tensor) -> Tensor:
        return F.one_hot(torch.full((len(images), 2, 2), 299), 300).permute(0, 3, 1, 2).float()

    labels = predict(net, picture(8, 8), SlidingWindow((8, 8), (8, 8)), PIXELS)
    assert labels.unique().tolist() == [299]


def test_autocast_around_inference_does_not_round_the_rendering():
    image, sliding = picture(30, 44), SlidingWindow((16, 16), (12, 12), short_edge=24, scales=(1.0, 1.5))
    net = network()

    def exact(images: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return net(images)

    def rendered() -> Tensor:
        return torch.cat([band.clone() for *_, band in probabilities(exact, image, sliding, SPEC)], 1)

    plain = rendered()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(rendered(), plain, atol=1e-6, rtol=0)


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that torch creates."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def test_no_tensor_is_as_large_as_the_probabilities():
    image, sliding = picture(512, 512), SlidingWindow((64, 64), (64, 64), short_edge=64, scales=(0.5, 1.0), flip=True)
    with LargestTensor() as largest:
        labels = predict(network(150), image, sliding, SPEC)
    assert labels.shape == (512, 512)
    assert image.numel() <= largest.elements < 150 * 512 * 512 / 8


@pytest.mark.slow
def test_memory_stays_far_below_that_of_the_probabilities():
    code = """
import resource, torch
from depict.inference.sliding import NetworkSpec, SlidingWindow
from depict.inference.torch_backend import predict
torch.set_num_threads(1)
weight = torch.randn(150, 3, 16, 16)
network = lambda images: torch.nn.functional.conv2d(images, weight, stride=16)
spec = NetworkSpec((0.5,) * 3, (0.5,) * 3, (16, 16), batch=1)
peaks = []
for side in (64, 1024):
    image = torch.zeros(3, side, side, dtype=torch.uint8)
    predict(network, image, SlidingWindow((256, 256), (224, 224), short_edge=256, scales=(0.5, 1.0)), spec)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print((peaks[1] - peaks[0]) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 100  # of 600 MB for 150 x 1024 x 1024


@pytest.mark.parametrize("image", [torch.zeros(3, 4, 4), torch.zeros(4, 4, 3, dtype=torch.uint8)])
def test_an_image_of_another_shape_or_type_is_refused(image):
    with pytest.raises(UserError, match="uint8"):
        predict(network(), image, SlidingWindow((16, 16), (16, 16)), SPEC)


def test_a_network_that_returns_something_else_is_refused():
    with pytest.raises(UserError, match="must return logits"):
        predict(lambda images: images.mean(1), picture(8, 8), SlidingWindow((8, 8), (8, 8)), SPEC)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("size", [(40, 23), (16, 16), (7, 30), (1, 1)])
def test_a_full_image_is_one_window_of_its_own_size_for_each_scale(size, flip):
    net, seen = network(), []

    def watched(images: Tensor) -> Tensor:
        seen.append(tuple(images.shape))
        return net(images)

    image = picture(*size)
    scales = (1.0, 1.5)
    sliding = SlidingWindow((16, 16), (12, 12), scales=scales, flip=flip, full_image=True)
    labels = predict(watched, image, sliding, SPEC)
    sizes = [sliding.layout(*size, scale).size for scale in scales for _ in range(1 + flip)]
    assert seen == [(1, 3, *expected) for expected in sizes]
    mean = torch.tensor(NORMALIZATION["mean"]).view(3, 1, 1)
    std = torch.tensor(NORMALIZATION["std"]).view(3, 1, 1)
    if size == (40, 23) and not flip:  # by hand at scale 1
        alone = predict(net, image, SlidingWindow((16, 16), (12, 12), full_image=True), SPEC)
        low = net(((image / 255 - mean) / std)[None])
        logits = F.interpolate(low, size=(40, 24), mode="bilinear")[0, :, :, :23]
        top = logits.topk(2, dim=0).values
        clear = top[0] - top[1] > 1e-5
        assert torch.equal(alone[clear].long(), logits.argmax(0)[clear])
    assert labels.shape == size


def test_a_strip_needs_a_bounded_number_of_windows():
    count = 0

    def counted(images: Tensor) -> Tensor:
        nonlocal count
        count += len(images)
        return network()(images)

    labels = predict(counted, picture(1, 3000), SlidingWindow((16, 16), (16, 16)), SPEC)
    assert labels.shape == (1, 3000)
    assert count == 64


@pytest.mark.parametrize("training", [True, False])
def test_eval_mode_restores_the_previous_mode_even_after_an_error(training):
    module = torch.nn.Dropout().train(training)
    with pytest.raises(ZeroDivisionError), eval_mode(module):
        assert not module.training
        raise ZeroDivisionError
    assert module.training == training
