"""The whole model: any image in, labels out; saved and loaded; wrong input told in one line."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

import depict
from depict import UserError
from depict.config.schema import Config, DecoderConfig, EncoderConfig
from depict.decoders import DECODERS
from depict.model import SegmentationModel
from depict.runs import save


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


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_saved_model_comes_back_with_the_same_logits(tmp_path, decoder):
    model, images = small(decoder), torch.randn(1, 3, 32, 48)
    save(model, tmp_path / "run")
    loaded = depict.load(tmp_path / "run")
    assert torch.equal(loaded(images), model(images))
    assert loaded.classes == ("sky", "road", "tree")
    assert loaded.palette == model.palette
    assert loaded.image_size == (32, 48)
    assert loaded.config.decoder == model.config.decoder
    assert not loaded.training


def test_a_run_says_where_it_came_from(tmp_path):
    save(small(), tmp_path)
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert written["format"] == 1
    assert written["stamp"]["depict"] == depict.__version__
    assert written["stamp"]["torch"] == torch.__version__.split("+")[0]
    sizes = {"layers": 3, "heads": 3, "head_dim": 100}
    assert written["decoder"] == {"name": "depict_sa", **sizes, "dropout": 0.0, "logit_gain": 1.0}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "model.safetensors"]


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "I;16", "1", "CMYK"])
def test_pictures_of_any_mode_and_size_get_a_label_for_each_pixel(mode):
    model = small()
    for size in ((1, 1), (1, 50), (37, 1), (60, 45)):
        labels = model.segment(Image.new(mode, size))
        assert labels.shape == size[::-1]
        assert labels.dtype == torch.uint8
        assert labels.max() < 3


def test_arrays_and_tensors_are_segmented_as_the_picture_they_show():
    model = small()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    expected = model.segment(Image.fromarray(pixels))
    assert torch.equal(model.segment(pixels), expected)
    assert torch.equal(model.segment(torch.tensor(pixels).permute(2, 0, 1)), expected)


def test_a_picture_beyond_4k_is_segmented_in_windows():
    model = small("linear", image_size=(512, 512), patch_size=32)
    assert model.segment(np.zeros((4100, 4200, 3), np.uint8)).shape == (4100, 4200)


def test_segmenting_a_window_sized_picture_is_the_argmax_of_the_logits():
    model = small()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    logits = model(model.normalize(torch.tensor(pixels).permute(2, 0, 1)[None]))
    assert (model.segment(pixels) == logits[0].argmax(0)).float().mean() > 0.999


def test_segmenting_leaves_the_model_in_the_mode_it_was_in():
    model = small().train()
    model.segment(np.zeros((8, 8, 3), np.uint8))
    assert model.training


def test_unroll_shows_every_step_and_ends_in_the_masks():
    model = small(layers=2)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    trace = model.unroll(pixels, attention=True)
    assert trace.grid == (4, 6)
    assert len(trace.Z) == 3
    assert trace.steps[0].attention.shape == (1, 3, 27, 27)
    assert torch.equal(trace.masks, model.masks(model.normalize(torch.tensor(pixels).permute(2, 0, 1)[None])))


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
        (lambda: depict.create_model("depict_sa", **TINY), "num_classes must be at least 1, not None"),
        (lambda: depict.create_model("linear", num_classes=3, layers=2, **TINY), "unknown option for the decoder"),
        (lambda: depict.create_model("linear", num_classes=3, classes=["a"], **TINY), "1 class names do not match"),
        (lambda: depict.create_model("linear", classes=["a", "a"], **TINY), "two classes have the same name"),
        (
            lambda: depict.create_model("linear", num_classes=3, encoder="vit_tiny_patch16_224", image_size=0),
            "image_size",
        ),
        (lambda: small().segment(np.zeros((0, 5, 3), np.uint8)), "is empty"),
        (lambda: small().segment(torch.full((3, 4, 4), torch.nan)), "NaN"),
        (lambda: small().forward(torch.zeros(3, 8, 8)), r"images must have shape \(batch, 3, height, width\)"),
    ],
)
def test_wrong_input_is_told_in_one_line(call, message):
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    save(small(), folder)
    return folder


def damage(run, tmp_path, what):
    """A copy of `run` with one thing wrong."""
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    (tmp_path / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    config = yaml.safe_load((run / "config.yaml").read_text())
    weights = load_file(run / "model.safetensors")
    if what == "no config":
        (tmp_path / "config.yaml").unlink()
    elif what == "no weights":
        (tmp_path / "model.safetensors").unlink()
    elif what == "cut weights":
        (tmp_path / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:1000])
    elif what == "other classes":
        config["classes"]["car"] = [1, 2, 3]
    elif what == "newer format":
        config["format"] = 99
    elif what == "misspelt key":
        config["decoder"]["layer"] = 3
    elif what == "wrong type":
        config["decoder"]["layers"] = "three"
    elif what == "missing tensor":
        weights.pop("decoder.norm.weight")
    elif what == "spare tensor":
        weights["decoder.spare"] = torch.zeros(1)
    elif what == "no mapping":
        (tmp_path / "config.yaml").write_text("- 1\n")
        return
    if (tmp_path / "config.yaml").exists():
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    if what.endswith("tensor"):
        save_file(weights, tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no config", "is not a run folder: there is no config.yaml"),
        ("no weights", "has no model.safetensors"),
        ("cut weights", "model.safetensors' is damaged or unreadable"),
        ("other classes", "It is for 3 classes, the model has 4"),
        ("newer format", "has format 99, this depict reads format 1"),
        ("misspelt key", "unknown setting in .* 'layer'. Did you mean 'layers'"),
        ("wrong type", "'three' is not of type"),
        ("missing tensor", "it lacks 'decoder.norm.weight'"),
        ("spare tensor", "it has 'decoder.spare', which the model has not"),
        ("no mapping", "must hold a mapping"),
    ],
)
def test_a_damaged_run_is_told_in_one_line(run, tmp_path, what, message):
    damage(run, tmp_path, what)
    with pytest.raises(UserError, match=message) as caught:
        depict.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_exported_model_is_not_taken_for_a_run(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"a graph")
    with pytest.raises(UserError, match="m.onnx' is an exported model, .* give the run that it was made of") as caught:
        depict.load(tmp_path / "m.onnx")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="absent.onnx' is not a run folder"):
        depict.load(tmp_path / "absent.onnx")
