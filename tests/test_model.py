"""The whole model: any image in, labels out; wrong input is refused in one line."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import depict
from depict import UserError
from depict.config.schema import Config, DecoderConfig, EncoderConfig
from depict.model import SegmentationModel


def small(decoder="depict_sa", classes=("sky", "road", "tree"), image_size=(32, 48), patch_size=8, **options):
    config = Config(
        encoder=EncoderConfig("vit_tiny_patch16_224", pretrained=False, patch_size=patch_size, dim=64, depth=1),
        decoder=DecoderConfig(decoder, **options),
        image_size=image_size,
    )
    return SegmentationModel(config, classes).eval()


def test_logits_have_the_size_of_the_image_whatever_it_is():
    model = small()
    for height, width in ((32, 48), (33, 47), (8, 8), (1, 1), (70, 20)):
        images = torch.randn(2, 3, height, width)
        assert model(images).shape == (2, 3, height, width)
        assert model.masks(images).shape == (2, 3, -(-height // 8), -(-width // 8))


def test_images_are_zero_padded_to_the_patch_and_logits_cropped():
    model, images = small(), torch.randn(1, 3, 30, 41)
    padded = F.pad(images, (0, 7, 0, 2))
    assert torch.equal(model(images), model(padded)[..., :30, :41])


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "I;16", "1", "CMYK"])
def test_images_of_any_mode_and_size_get_a_label_for_each_pixel(mode):
    model = small()
    for size in ((1, 1), (1, 50), (37, 1), (60, 45)):
        labels = model.predict(Image.new(mode, size)).labels
        assert labels.shape == size[::-1]
        assert labels.dtype == np.uint8
        assert labels.max() < 3


def test_arrays_and_tensors_are_segmented_like_the_same_pil_image():
    model = small()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    expected = model.predict(Image.fromarray(pixels)).labels
    np.testing.assert_array_equal(model.predict(pixels).labels, expected)
    np.testing.assert_array_equal(model.predict(torch.tensor(pixels).permute(2, 0, 1)).labels, expected)


def test_an_image_beyond_4k_is_segmented_in_windows():
    model = small("linear", image_size=(512, 512), patch_size=32)
    assert model.predict(np.zeros((4100, 4200, 3), np.uint8)).labels.shape == (4100, 4200)


def test_the_labels_of_a_window_sized_image_are_the_argmax_of_its_logits():
    model = small()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    logits = model(model.normalize(torch.tensor(pixels).permute(2, 0, 1)[None]))
    assert (model.predict(pixels).labels == logits[0].argmax(0).numpy()).mean() > 0.999


def test_unroll_takes_a_path_as_predict_does(tmp_path):
    model, pixels = small(layers=2), np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    expected = model.unroll(pixels).masks
    assert torch.equal(model.unroll(tmp_path / "a.png").masks, expected)
    assert torch.equal(model.unroll(str(tmp_path / "a.png")).masks, expected)


def test_unroll_returns_every_step_and_ends_in_the_masks():
    model = small(layers=2)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    trace = model.unroll(pixels, attention=True)
    assert trace.grid == (4, 6)
    assert len(trace.Z) == 3
    assert trace.steps[0].attention.shape == (1, 3, 27, 27)
    assert torch.equal(trace.masks, model.masks(model.normalize(torch.tensor(pixels).permute(2, 0, 1)[None])))


@pytest.mark.parametrize("size", [(32, 48), (16, 24), (20, 30), (7, 10), (1, 1), (30, 40), (21, 90)])
@pytest.mark.parametrize("short_edge", [None, 24, 32])
def test_unroll_gets_the_same_input_as_predict(size, short_edge):
    """Also below the window, where the image is enlarged, and where it is resized first."""
    model = small()
    model.config.data.short_edge = short_edge
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    inputs, logits = [], []

    def network(images):
        inputs.append(images)
        logits.append(model.masks(images))
        return logits[-1]

    model.predictor(model.sliding_window(full_image=True), network=network).labels(image)
    assert torch.equal(model.network_input(image)[None], inputs[0])
    torch.testing.assert_close(model.unroll(image).masks, logits[0], atol=1e-5, rtol=0)


def test_an_image_that_is_too_large_is_not_unrolled_but_segmented(monkeypatch):
    monkeypatch.setattr("depict.inference.sliding.MAX_FULL_IMAGE_PIXELS", 5000)
    model, image = small(), np.zeros((100, 51, 3), np.uint8)
    with pytest.raises(UserError, match=r"100 x 51 pixels \(height x width\) is too large to be processed whole"):
        model.unroll(image)
    assert model.predict(image).labels.shape == model.layout(100, 51).size == (100, 51)


def test_create_model_builds_by_names():
    model = depict.create_model("depict_ca", encoder="vit_tiny_patch16_224", num_classes=4, image_size=64, layers=1)
    assert model.num_classes == 4
    assert model.image_size == (64, 64)
    assert len(model.decoder.layers) == 1


def test_normalize_uses_the_encoder_s_own_statistics():
    white = small().normalize(torch.full((3, 2, 2), 255, dtype=torch.uint8))
    assert torch.equal(white, torch.ones(3, 2, 2))


TINY = {"encoder": "vit_tiny_patch16_224", "image_size": 32}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: depict.create_model("depict_sb", num_classes=3, **TINY), "unknown decoder 'depict_sb'"),
        (lambda: depict.create_model("depict_sa", num_classes=3, encoder="vit_huge"), "unknown encoder 'vit_huge'"),
        (lambda: depict.create_model("depict_sa", num_classes=0, **TINY), "num_classes must be at least 1, not 0"),
        (lambda: depict.create_model("depict_sa", **TINY), "num_classes must be a whole number, not None"),
        (lambda: depict.create_model("linear", num_classes=3, layers=2, **TINY), "unknown option for the decoder"),
        (lambda: depict.create_model("linear", num_classes=3, classes=["a"], **TINY), "1 class names do not match"),
        (lambda: depict.create_model("linear", classes=["a", "a"], **TINY), "two classes have the same name"),
        (
            lambda: depict.create_model("linear", num_classes=3, encoder="vit_tiny_patch16_224", image_size=0),
            "--image-size must be at least 1",
        ),
        (lambda: small().predict(np.zeros((0, 5, 3), np.uint8)), "is empty"),
        (lambda: small().predict(torch.full((3, 4, 4), torch.nan)), "NaN"),
        (lambda: small().forward(torch.zeros(3, 8, 8)), r"images must have shape \(batch, 3, height, width\)"),
    ],
)
def test_wrong_input_is_refused_in_one_line(call, message):
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
