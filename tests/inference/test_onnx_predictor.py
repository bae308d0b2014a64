"""ONNX files as predictors: PyTorch's labels, and one line for every file that cannot be used."""

import json

import numpy as np
import pytest
import torch

from depict.data.scenes.dataset import render
from depict.errors import UserError

onnx = pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")

from depict.inference.onnx_predictor import OnnxPredictor  # noqa: E402
from support.onnx_model import ConvModel, write_graph  # noqa: E402


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    """A file for windows of 32 x 32."""
    path = tmp_path_factory.mktemp("onnx") / "fixed.onnx"
    write_graph(ConvModel(), path)
    return path


def picture(height, width):
    return render(1, 2, (height, width))[0]


def with_metadata(source, path, **values):
    """A copy of a file with other metadata; None removes a key."""
    model = onnx.load(source)
    stored = {entry.key: entry.value for entry in model.metadata_props} | values
    onnx.helper.set_model_props(model, {key: value for key, value in stored.items() if value is not None})
    onnx.save(model, path)
    return path


def test_the_metadata_describe_the_model(fixed):
    model, predictor = ConvModel(), OnnxPredictor(fixed)
    assert (predictor.classes, predictor.palette) == (model.classes, model.palette)
    assert predictor.sliding == model.sliding_window()
    spec = predictor.spec
    assert (spec.mean, spec.std, spec.multiple) == (model.mean, model.std, model.multiple)
    stored = {entry.key: entry.value for entry in onnx.load(fixed).metadata_props}
    assert json.loads(stored["classes"])[0] == "sky"


def test_probabilities_sum_to_one_and_agree_with_the_labels(fixed):
    predictor = OnnxPredictor(fixed, multiscale=True)
    bands = [band.copy() for _, _, band in predictor.probabilities(picture(50, 41))]
    probabilities = np.concatenate(bands, 1)
    np.testing.assert_allclose(probabilities.sum(0), 1, atol=1e-5)
    np.testing.assert_array_equal(probabilities.argmax(0), predictor.labels(picture(50, 41)))


def test_a_fixed_batch_is_filled_up(tmp_path, fixed):
    write_graph(ConvModel(), tmp_path / "three.onnx", batch=3)
    three, any_batch = OnnxPredictor(tmp_path / "three.onnx"), OnnxPredictor(fixed)
    image = picture(90, 60)
    np.testing.assert_array_equal(three.labels(image), any_batch.labels(image))


def test_only_a_file_for_any_size_takes_full_images(tmp_path, fixed):
    with pytest.raises(UserError, match=r"windows of 32 x 32.*--dynamic"):
        OnnxPredictor(fixed, full_image=True)
    model = ConvModel()
    write_graph(model, tmp_path / "dynamic.onnx", dynamic=True)
    predictor = OnnxPredictor(tmp_path / "dynamic.onnx", full_image=True)
    assert predictor.labels(picture(70, 45)).shape == (70, 45)  # resized to 62 x 40: no multiple of the patch
    images = torch.randn(1, 3, 62, 40)
    with torch.no_grad():
        np.testing.assert_allclose(predictor.network(images.numpy()), model.masks(images).numpy(), atol=1e-5)


def test_files_that_cannot_be_used_are_refused_in_one_line(tmp_path, fixed):
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "cut.onnx").write_bytes(fixed.read_bytes()[:5000])
    cases = {
        tmp_path / "absent.onnx": "there is no file",
        tmp_path / "text.onnx": "is not a readable ONNX model",
        tmp_path / "empty.onnx": "is not a readable ONNX model",
        tmp_path / "cut.onnx": "is not a readable ONNX model",
        with_metadata(fixed, tmp_path / "foreign.onnx", depict=None): "was not written by `depict export`",
        with_metadata(fixed, tmp_path / "older.onnx", depict="1"): "has format 1, .* reads 2: export it again",
        with_metadata(fixed, tmp_path / "renamed.onnx", depict="1", short_edge=None): "has format 1",
        with_metadata(fixed, tmp_path / "lacking.onnx", mean=None): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "text_window.onnx", window='"big"'): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "huge_window.onnx", window="[1000000, 32]"): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "nan.onnx", std="[NaN, 1, 1]"): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "colors.onnx", palette="[[1, 2, 3]]"): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "infinite.onnx", window="[1e999, 32]"): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "infinite_edge.onnx", short_edge="1e999"): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "infinite_color.onnx", palette="[[1e999, 0, 0]]"): "a color must be",
        with_metadata(fixed, tmp_path / "long.onnx", classes=json.dumps(["n" * 100_000])): "has 100000 characters",
        with_metadata(fixed, tmp_path / "escape.onnx", classes='["\\u001b[2J"]'): "holds control characters",
        with_metadata(fixed, tmp_path / "deep.onnx", classes="[" * 100_000): "metadata .* are damaged",
    }
    for path, message in cases.items():
        with pytest.raises(UserError, match=message) as raised:
            OnnxPredictor(path)
        assert "\n" not in str(raised.value)


def test_a_graph_that_contradicts_its_metadata_is_reported(tmp_path, fixed):
    few = with_metadata(fixed, tmp_path / "few.onnx", classes='["a"]', palette="[[1, 2, 3]]")
    with pytest.raises(UserError, match=r"returns \(\d, 8, 2, 2\) instead of \(batch, 1, h, w\)"):
        OnnxPredictor(few).labels(picture(32, 32))
    wide = with_metadata(fixed, tmp_path / "wide.onnx", window="[64, 64]")
    with pytest.raises(UserError, match="fails on images of shape"):
        OnnxPredictor(wide).labels(picture(32, 32))


def test_an_unknown_device_is_named(fixed):
    with pytest.raises(UserError, match="the device 'tpu' cannot be used"):
        OnnxPredictor(fixed, device="tpu")
