"""An image as the network sees it: resized as uint8, normalized, enlarged, whole or in crops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torchvision.transforms.v2 import functional as T

from depict.inference.preprocess import NetworkInput, normalize, resize_image
from depict.inference.sliding import SlidingWindow

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(height, width):
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def by_hand(image, layout, flip=False):
    """Resize, normalize, flip and enlarge whole tensors."""
    resized = T.resize(image, list(layout.resized), T.InterpolationMode.BILINEAR, antialias=False)
    normalized = (resized / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    normalized = normalized.flip(2) if flip else normalized
    return F.interpolate(normalized[None], size=layout.size, mode="bilinear")[0]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("short_edge", [None, 24, 48])
@pytest.mark.parametrize("size", [(48, 60), (100, 70), (20, 200), (1, 1), (33, 47)])
def test_an_image_is_resized_normalized_and_enlarged_until_the_window_fits(size, short_edge, flip):
    layout = SlidingWindow((32, 40), (20, 30), short_edge).layout(*size)
    image = picture(*size)
    ours = NetworkInput(image, layout, MEAN, STD, flip=flip)
    torch.testing.assert_close(ours.full(), by_hand(image, layout, flip), atol=6e-5, rtol=0)
    for _, _, top, left in layout.windows():
        crop = ours.crop(top, left, *layout.window)
        assert torch.equal(crop, ours.full()[:, top : top + 32, left : left + 40])


def test_normalizing_leaves_its_input_unchanged():
    for images in (picture(4, 5)[None], picture(4, 5).float()):
        before = images.clone()
        expected = (images / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
        assert torch.equal(normalize(images, MEAN, STD), expected)
        assert torch.equal(images, before)


def test_resizing_is_bilinear_without_antialiasing_unless_requested():
    stripes = torch.tensor([0, 255], dtype=torch.uint8).repeat(3, 4, 8)  # (3, 4, 16)
    assert resize_image(stripes, (4, 4)).unique().tolist() == [128]
    step = torch.tensor([0, 0, 0, 0, 0, 0, 0, 255], dtype=torch.uint8).repeat(3, 4, 1)
    assert resize_image(step, (4, 2))[0, 0].tolist() == [0, 0]  # 255 falls between the samples
    assert resize_image(step, (4, 2), antialias=True)[0, 0, 1] > 0
