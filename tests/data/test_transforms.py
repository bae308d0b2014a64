import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as T

from depict.data.transforms import (
    Augmentation,
    choose_crop,
    distort_colors,
    is_varied,
    resize_image,
    resize_labels,
    sample_generator,
    scale_saturation,
    shift_hue,
)

HALF = (0.5, 0.5, 0.5)


def noise(height=40, width=56, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, height, width), np.uint8))


def blocks(height=40, width=56):
    """Labels 0..3 in quarters, with an ignored corner."""
    labels = torch.zeros(height, width, dtype=torch.uint8)
    labels[height // 2 :] += 1
    labels[:, width // 2 :] += 2
    labels[:4, :4] = 255
    return labels


@given(st.integers(1, 250), st.integers(1, 500))
def test_labels_are_resized_by_taking_the_pixel_below(old, new):
    column = torch.arange(old, dtype=torch.uint8)[:, None]
    places = np.arange(new) * old
    resized = resize_labels(column, (new, 1)).flatten().numpy()
    assert np.array_equal(resize_labels(column.T, (1, new)).flatten().numpy(), resized)
    # Like OpenCV, the library multiplies by a rounded quotient: it may fall just short of a whole number.
    short = (places % new == 0) & (resized == places // new - 1)
    assert np.array_equal(resized[~short], (places // new)[~short])


def test_images_are_resized_bilinearly_between_pixel_centers_without_antialiasing():
    image = torch.tensor([[0, 100, 200, 40]], dtype=torch.uint8).expand(3, 1, 4)
    assert resize_image(image, (1, 8))[0, 0].tolist() == [0, 25, 75, 125, 175, 160, 80, 40]
    # Shrunk by 4, only the two middle pixels count: antialiasing would weigh all four.
    assert resize_image(image, (1, 1))[0, 0].tolist() == [150]


@pytest.mark.parametrize(
    ("labels", "varied"),
    [
        ([0, 0, 0, 0], False),
        ([0, 0, 0, 1], False),  # exactly 75 %
        ([0, 0, 1, 1], True),
        ([0, 255, 255, 255], False),  # one class and ignored pixels
        ([0, 1, 255, 255], True),
        ([0, 0, 0, 255, 1, 255, 255, 255], False),  # 75 % of the four that count
        ([255, 255], False),
    ],
)
def test_a_crop_needs_two_classes_and_none_over_three_quarters(labels, varied):
    assert is_varied(torch.tensor([labels], dtype=torch.uint8)) is varied


def test_a_varied_crop_is_searched_for_ten_times():
    # Only crops that reach the last columns see the second class.
    labels = torch.zeros(8, 100, dtype=torch.uint8)
    labels[:, 90:] = 1
    found = sum(
        is_varied(labels[:, left : left + 20])
        for left in (choose_crop(labels, (8, 20), sample_generator(0, 0, index))[1] for index in range(400))
    )
    chance = 6 / 81  # of the offsets 0..80, those from 75 on
    assert abs(found / 400 - (1 - (1 - chance) ** 11)) < 0.06


def test_every_offset_of_a_crop_is_possible_and_no_other():
    labels = torch.randint(0, 9, (6, 9), dtype=torch.uint8)
    seen = {choose_crop(labels, (4, 4), sample_generator(0, 0, index)) for index in range(300)}
    assert seen == {(top, left) for top in range(3) for left in range(6)}


def test_an_axis_shorter_than_the_crop_is_not_cropped():
    labels = torch.randint(0, 9, (6, 9), dtype=torch.uint8)
    assert {choose_crop(labels, (10, 4), sample_generator(0, 0, i))[0] for i in range(20)} == {0}
    assert choose_crop(labels, (10, 10), sample_generator(0, 0, 0)) == (0, 0)


colors = st.tuples(*[st.integers(0, 255)] * 3)


@given(colors, st.integers(-18, 17))
def test_the_hue_turns_by_two_degrees_per_step(color, shift):
    hue, saturation, value = colorsys.rgb_to_hsv(*(part / 255 for part in color))
    expected = [255 * part for part in colorsys.hsv_to_rgb((hue + shift / 180) % 1, saturation, value)]
    channels = torch.tensor(color, dtype=torch.float32)[:, None, None]
    shift_hue(channels, shift)
    assert np.abs(channels.flatten().numpy() - expected).max() <= 0.501


def test_the_hue_is_that_of_torchvision():
    image = noise(64, 64)
    for shift in (-18, -1, 0, 9, 17):
        channels = image.float()
        shift_hue(channels, shift)
        assert (channels - T.adjust_hue(image, shift / 180)).abs().max() <= 1


@given(colors, st.floats(0.5, 1.5))
def test_the_saturation_is_scaled_up_to_full_and_nothing_else(color, factor):
    hue, saturation, value = colorsys.rgb_to_hsv(*(part / 255 for part in color))
    expected = [255 * part for part in colorsys.hsv_to_rgb(hue, min(1.0, saturation * factor), value)]
    channels = torch.tensor(color, dtype=torch.float32)[:, None, None]
    scale_saturation(channels, factor)
    assert np.abs(channels.flatten().numpy() - expected).max() <= 0.501


def test_one_sample_in_sixteen_keeps_its_colors():
    image = noise(4, 4)
    untouched = sum(torch.equal(distort_colors(image, sample_generator(1, 0, i)), image) for i in range(400))
    assert 14 <= untouched <= 40  # 25 expected, and a hue shift of 0 now and then


def test_brightness_stays_within_thirty_two():
    gray = torch.full((3, 4, 4), 128, dtype=torch.uint8)
    values = [int(distort_colors(gray, sample_generator(2, 0, i))[0, 0, 0]) for i in range(500)]
    # Gray has no hue or saturation: (128 +- 32) times 0.5 to 1.5.
    assert min(values) >= 48 and max(values) <= 240
    assert min(values) < 56 and max(values) > 215


def test_the_hue_turns_by_at_most_thirty_six_degrees():
    # Brightness, contrast and saturation leave the hue of a red that is never clipped alone.
    red = torch.tensor([120, 0, 0], dtype=torch.uint8)[:, None, None]
    hues = []
    for index in range(800):
        color = distort_colors(red, sample_generator(0, 0, index)).flatten().tolist()
        hue = 360 * colorsys.rgb_to_hsv(*(part / 255 for part in color))[0]
        hues.append(hue - 360 if hue > 180 else hue)
    assert -38 < min(hues) < -33
    assert 31 < max(hues) < 36


def test_the_scale_is_uniform_between_a_half_and_two():
    augmentation = Augmentation(short_edge=40, max_aspect=4, crop=(200, 200), mean=HALF, std=HALF)
    factors = [
        augmentation.vary(noise(), blocks(), sample_generator(0, 0, index))[1].shape[0] / 40 for index in range(200)
    ]
    assert 0.5 <= min(factors) < 0.55
    assert 1.95 < max(factors) <= 2
    assert abs(np.mean(factors) - 1.25) < 0.08


def augmented(crop=(32, 32), index=0, epoch=0, seed=0):
    augmentation = Augmentation(short_edge=40, max_aspect=4, crop=crop, mean=HALF, std=HALF)
    return augmentation(noise(), blocks(), sample_generator(seed, epoch, index))


def test_an_example_has_the_size_of_the_crop_and_normalized_values():
    for index in range(20):
        image, labels = augmented(crop=(32, 48), index=index)
        assert (image.dtype, image.shape) == (torch.float32, (3, 32, 48))
        assert (labels.dtype, labels.shape) == (torch.uint8, (32, 48))
        assert image.min() >= -1 and image.max() <= 1
        assert set(labels.unique().tolist()) <= {0, 1, 2, 3, 255}


def test_padding_is_zero_after_normalization_and_ignored():
    image, labels = augmented(crop=(100, 120))
    assert torch.equal(image[:, 81:], torch.zeros_like(image[:, 81:]))
    assert (labels[81:] == 255).all() and (labels[:, 113:] == 255).all()
    assert (labels[:20, :20] != 255).any()


def test_labels_stay_on_their_pixels():
    # Labels are a function of color, so that any misplacement shows.
    labels = blocks()
    labels[:4, :4] = 0
    image = (labels * 60 + 20).expand(3, -1, -1).contiguous()
    augmentation = Augmentation(short_edge=40, max_aspect=4, crop=(32, 32), mean=HALF, std=HALF)
    for index in range(40):
        varied, varied_labels = augmentation.vary(image, labels, sample_generator(0, 0, index))
        for label in varied_labels.unique().tolist():
            inside = varied[0][varied_labels == label].float()
            others = varied[0][varied_labels != label].float()
            # Bilinear borders mix colors; the median does not see them.
            if len(others):
                assert (others.median() - inside.median()).abs() > 4


def test_a_sample_depends_on_seed_epoch_and_index_and_on_nothing_else():
    first = augmented(index=3, epoch=2, seed=5)
    torch.manual_seed(123)
    np.random.seed(9)
    again = augmented(index=3, epoch=2, seed=5)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    for change in ({"index": 4}, {"epoch": 3}, {"seed": 6}):
        other = augmented(**{"index": 3, "epoch": 2, "seed": 5, **change})
        assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize(("mirror", "least", "most"), [(True, 160, 240), (False, 0, 0)])
def test_half_of_the_samples_are_flipped_unless_left_and_right_differ(mirror, least, most):
    ramp = torch.arange(64, dtype=torch.uint8).expand(3, 48, 64).contiguous()
    labels = (torch.arange(64) // 8).to(torch.uint8).expand(48, 64).contiguous()
    augmentation = Augmentation(short_edge=48, max_aspect=2, crop=(16, 16), mean=HALF, std=HALF, flip=mirror)
    flipped = 0
    for index in range(400):
        _, varied = augmentation.vary(ramp, labels, sample_generator(0, 0, index))
        flipped += int(varied[0, 0] > varied[0, -1])
    assert least <= flipped <= most
