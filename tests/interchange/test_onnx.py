"""Models as ONNX files: the same numbers, whatever the batch and size, and no file where they are not the same."""

import json
import shutil

import numpy as np
import pytest
import torch

from depict.data.scenes.dataset import render
from depict.errors import UserError
from depict.inference.onnx_predictor import OnnxPredictor
from depict.interchange import onnx as exporting
from depict.runs import save
from depict.segment.predictor import open_predictor
from support.tiny_model import tiny_model

onnx = pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")

VARIANTS = {
    "depict_sa": {"dynamic": False},
    "depict_ca": {"dynamic": True},
    "segmenter": {"dynamic": False, "batch": 2},
}


@pytest.fixture(scope="module", params=VARIANTS)
def exported(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / f"{request.param}.onnx"
    model = tiny_model(request.param)
    return model, path, exporting.export(model, path, **VARIANTS[request.param])


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "linear.onnx"
    exporting.export(tiny_model("linear"), path)
    return path


def picture(height, width):
    return render(1, 2, (height, width))[0]


def with_metadata(source, path, **values):
    """A copy with other metadata; None takes a key away."""
    model = onnx.load(source)
    kept = {one.key: one.value for one in model.metadata_props} | values
    onnx.helper.set_model_props(model, {key: value for key, value in kept.items() if value is not None})
    onnx.save(model, path)
    return path


def test_it_is_compared_at_batch_1_and_at_sizes_that_were_not_traced(exported):
    model, _, differences = exported
    kind = VARIANTS[model.config.decoder.name]
    assert {shape[0] for shape in differences} == ({kind["batch"]} if "batch" in kind else {1, 3})
    sizes = {shape[2:] for shape in differences}
    # Grid 2 x 2 traced as 3 x 5; (16, 64) has as many patches as the model's own grid, in another shape.
    assert sizes == ({(32, 32), (64, 32), (24, 49), (16, 32), (16, 64)} if kind["dynamic"] else {(32, 32)})
    assert 0 <= max(differences.values()) < 1e-3


@pytest.mark.parametrize(
    ("decoder", "encoder"),
    [
        ("depict_sa", "vit_tiny_patch16_384"),
        ("segmenter", "vit_tiny_patch16_384"),
        ("linear", "vit_small_patch14_dinov2"),
        ("linear", "vit_small_patch16_dinov3"),
    ],
)
def test_any_size_works_with_every_decoder_and_family(tmp_path, decoder, encoder):
    model = tiny_model(decoder, encoder)
    differences = exporting.export(model, tmp_path / "model.onnx", dynamic=True)
    assert len({shape[2:] for shape in differences}) >= 4
    assert 0 <= max(differences.values()) < 1e-3
    image = picture(70, 45)
    found = OnnxPredictor(tmp_path / "model.onnx", full_image=True).labels(image)
    save(model, tmp_path / "run")
    expected = open_predictor(tmp_path / "run", full_image=True, device="cpu").labels(image)
    assert (found == expected).mean() > 0.99
    assert len(np.unique(expected)) > 1


def test_masks_and_labels_are_those_of_pytorch(exported):
    model, path, _ = exported
    predictor = OnnxPredictor(path)
    for size in ((40, 71), (90, 60), (20, 25)):
        expected = model.segment(picture(*size)).numpy()
        assert (predictor.labels(picture(*size)) == expected).mean() > 0.99
        assert len(np.unique(expected)) > 1


def test_probabilities_add_up_to_one(exported):
    _, path, _ = exported
    bands = [band.copy() for _, _, band in OnnxPredictor(path, multiscale=True).probabilities(picture(50, 41))]
    assert np.allclose(np.concatenate(bands, 1).sum(0), 1, atol=1e-5)


def test_the_metadata_say_what_the_model_is(exported):
    model, path, _ = exported
    predictor = OnnxPredictor(path)
    assert (predictor.classes, predictor.palette) == (model.classes, model.palette)
    assert predictor.sliding == model.sliding_window()
    spec = predictor.spec
    assert (spec.mean, spec.std, spec.patch_size) == (model.mean, model.std, model.patch_size)
    stored = {one.key: one.value for one in onnx.load(path).metadata_props}
    assert json.loads(stored["classes"])[0] == "sky"


def test_the_file_tells_nothing_of_the_machine_that_wrote_it(exported):
    _, path, _ = exported
    assert b".py" not in path.read_bytes()


def test_only_a_file_of_any_size_sees_pictures_whole(exported):
    model, path, _ = exported
    image = picture(70, 45)
    if not VARIANTS[model.config.decoder.name]["dynamic"]:
        with pytest.raises(UserError, match="windows of 32 x 32.*--dynamic"):
            OnnxPredictor(path, full_image=True)
        return
    # 70 x 45 is resized to 62 x 40: no multiple of the patch
    assert OnnxPredictor(path, full_image=True).labels(image).shape == (70, 45)


def test_a_file_that_differs_is_not_written(tmp_path, fixed, monkeypatch):
    monkeypatch.setattr(exporting, "_write", lambda model, path, *_: shutil.copy(fixed, path))
    other = tiny_model("linear")
    with torch.no_grad():
        other.decoder.head.bias += 0.002
    with pytest.raises(UserError, match=r"differs from PyTorch by 0.002.*more than 0.001"):
        exporting.export(other, tmp_path / "model.onnx")
    with torch.no_grad():
        other.decoder.head.bias.fill_(float("nan"))
    with pytest.raises(UserError, match="is not written"):
        exporting.export(other, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_in_8_bits_it_is_smaller_and_still_itself(tmp_path, exported):
    model, path, _ = exported
    exporting.quantize(path, tmp_path / "int8.onnx")
    assert (tmp_path / "int8.onnx").stat().st_size < 0.9 * path.stat().st_size
    plain, small = OnnxPredictor(path), OnnxPredictor(tmp_path / "int8.onnx")
    assert small.classes == model.classes
    images = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    difference = np.abs(plain.network(images) - small.network(images)).max()
    assert 0 < difference < 1.0


def test_files_of_others_are_told_in_one_line(tmp_path, fixed):
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "cut.onnx").write_bytes(fixed.read_bytes()[:5000])
    cases = {
        tmp_path / "absent.onnx": "there is no file",
        tmp_path / "text.onnx": "is not a readable ONNX model",
        tmp_path / "empty.onnx": "is not a readable ONNX model",
        tmp_path / "cut.onnx": "is not a readable ONNX model",
        with_metadata(fixed, tmp_path / "foreign.onnx", depict=None): "was not written by `depict export`",
        with_metadata(fixed, tmp_path / "older.onnx", depict="1"): "has format 1, this version of depict reads 2: export it again",
        with_metadata(fixed, tmp_path / "renamed.onnx", depict="1", short_edge=None): "has format 1",
        with_metadata(fixed, tmp_path / "lacking.onnx", mean=None): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "text_window.onnx", window='"big"'): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "huge_window.onnx", window="[1000000, 32]"): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "nan.onnx", std="[NaN, 1, 1]"): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "colors.onnx", palette="[[1, 2, 3]]"): "metadata .* are damaged",
        with_metadata(fixed, tmp_path / "deep.onnx", classes="[" * 100_000): "metadata .* are damaged",
    }
    for path, message in cases.items():
        with pytest.raises(UserError, match=message) as raised:
            OnnxPredictor(path)
        assert "\n" not in str(raised.value)
    few = with_metadata(fixed, tmp_path / "few.onnx", classes='["a"]', palette="[[1, 2, 3]]")
    with pytest.raises(UserError, match=r"returns \(4, 8, 2, 2\) instead of \(batch, 1, h, w\)"):
        OnnxPredictor(few).labels(picture(32, 32))
    wide = with_metadata(fixed, tmp_path / "wide.onnx", window="[64, 64]")
    with pytest.raises(UserError, match="fails on images of shape"):
        OnnxPredictor(wide).labels(picture(32, 32))


def test_a_device_that_is_not_there_is_named(fixed):
    with pytest.raises(UserError, match="the device 'tpu' cannot be used"):
        OnnxPredictor(fixed, device="tpu")
