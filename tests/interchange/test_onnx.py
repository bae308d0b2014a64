"""Models exported to ONNX: PyTorch's numbers at any batch and size, and no file where they differ."""

import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")

from depict.data.scenes.dataset import Scenes, render
from depict.errors import UserError
from depict.inference.onnx_predictor import OnnxPredictor
from depict.interchange import onnx as exporting
from depict.model import create_model
from depict.runs import save
from depict.segment.predictor import open_predictor
from support.onnx_model import ConvModel, write_graph
from support.tiny_model import tiny_model, tiny_neck_model


@pytest.fixture
def by_hand(monkeypatch):
    """Write a graph made by hand in place of torch.onnx's, which takes seconds."""
    monkeypatch.setattr(exporting, "_write", write_graph)


def picture(height, width):
    return render(1, 2, (height, width))[0]


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize(
    ("options", "batches", "sizes"),
    [
        ({}, {1, 3}, {(32, 32)}),
        ({"batch": 2}, {2}, {(32, 32)}),
        # (16, 64) has as many patches as the model's own grid, in another shape.
        ({"dynamic": True}, {1, 3}, {(32, 32), (64, 32), (24, 49), (16, 32), (16, 64)}),
    ],
)
def test_the_file_is_compared_at_several_batches_and_sizes(tmp_path, options, batches, sizes):
    differences = exporting.export(ConvModel(), tmp_path / "model.onnx", **options)
    assert {shape[0] for shape in differences} == batches
    assert {shape[2:] for shape in differences} == sizes
    assert 0 <= max(differences.values()) < 1e-3
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_file_that_differs_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "_write", lambda _model, *arguments: write_graph(ConvModel(), *arguments))
    model = ConvModel()
    for bias, message in ((0.002, r"differs from PyTorch by 0.002.*more than 0.001"), (float("nan"), "is not written")):
        with torch.no_grad():
            model.conv.bias += bias
        with pytest.raises(UserError, match=message):
            exporting.export(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("by_hand")
def test_the_score_of_a_file_is_that_of_its_labels(tmp_path):
    exporting.export(ConvModel(), tmp_path / "model.onnx")
    scenes = Scenes(None, "val")
    overlap, union = np.zeros(8), np.zeros(8)
    for index in range(2):
        image, truth = (values.numpy() for values in scenes.read(index))
        labels = OnnxPredictor(tmp_path / "model.onnx").labels(image.transpose(1, 2, 0))
        for label in range(8):
            expected, predicted = truth == label, (labels == label) & (truth != 255)
            overlap[label] += (expected & predicted).sum()
            union[label] += (expected | predicted).sum()
    expected = np.mean(overlap[union > 0] / union[union > 0])
    assert exporting.mean_iou(tmp_path / "model.onnx", scenes, 2) == pytest.approx(expected)


VARIANTS = {
    "depict_sa": {"dynamic": False},
    "depict_ca": {"dynamic": True},
    "depict_us": {"dynamic": True},
    "cbt": {"dynamic": True},
    "segmenter": {"dynamic": False, "batch": 2},
}


@pytest.fixture(scope="module", params=VARIANTS)
def exported(request, tmp_path_factory):
    """A model and its file, written by torch.onnx."""
    path = tmp_path_factory.mktemp("onnx") / f"{request.param}.onnx"
    model = tiny_model(request.param)
    differences = exporting.export(model, path, **VARIANTS[request.param])
    assert 0 <= max(differences.values()) < 1e-3
    return model, path


@pytest.mark.slow
def test_labels_are_those_of_pytorch(exported):
    model, path = exported
    predictor = OnnxPredictor(path)
    for size in ((40, 71), (90, 60), (20, 25)):
        expected = model.predict(picture(*size)).labels
        assert (predictor.labels(picture(*size)) == expected).mean() > 0.99
        assert len(np.unique(expected)) > 1


@pytest.mark.slow
def test_a_model_with_a_neck_is_exported_with_masks_at_its_stride(tmp_path):
    torch.manual_seed(0)
    options = {"stride": 4, "neck_dim": 16, "layers": 1, "heads": 2, "head_dim": 8, "operator": "exact"}
    model = create_model("depict_sa", "test_efficientnet", num_classes=3, image_size=64, **options).eval()
    differences = exporting.export(model, tmp_path / "model.onnx", batch=1)
    assert 0 <= max(differences.values()) < 1e-3
    masks = OnnxPredictor(tmp_path / "model.onnx").network(np.zeros((1, 3, 64, 64), np.float32))
    assert masks.shape == (1, 3, 16, 16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decoder", "operator", "encoder", "stride"),
    [
        ("linear", "", "test_efficientnet", 8),
        ("depict_us", "", "test_convnext", 4),
        ("depict_sa", "exact", "test_efficientnet", 4),
        ("depict_sa", "softmax", "test_vit", 8),
        ("depict_ca", "exact", "test_efficientnet", 8),
        ("cbt", "", "test_efficientnet", 4),
    ],
)
def test_a_model_with_a_neck_takes_any_size(tmp_path, decoder, operator, encoder, stride):
    model = tiny_neck_model(decoder, encoder, stride, operator)
    differences = exporting.export(model, tmp_path / "model.onnx", dynamic=True)
    assert len({shape[2:] for shape in differences}) >= 4
    assert 0 <= max(differences.values()) < 1e-3
    for full_image in (False, True):
        predictor = OnnxPredictor(tmp_path / "model.onnx", full_image=full_image)
        for size in ((70, 45), (33, 130), (20, 25)):
            expected = model.predict(picture(*size), full_image=full_image).labels
            assert (predictor.labels(picture(*size)) == expected).mean() > 0.99
            assert len(np.unique(expected)) > 1


@pytest.mark.slow
def test_the_file_holds_no_path_of_the_machine_that_wrote_it(exported):
    assert b".py" not in exported[1].read_bytes()


@pytest.mark.slow
def test_with_8_bits_the_file_is_smaller_and_its_masks_are_similar(tmp_path, exported):
    model, path = exported
    exporting.quantize(path, tmp_path / "int8.onnx")
    assert (tmp_path / "int8.onnx").stat().st_size < 0.9 * path.stat().st_size
    full, small = OnnxPredictor(path), OnnxPredictor(tmp_path / "int8.onnx")
    assert small.classes == model.classes
    images = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    difference = np.abs(full.network(images) - small.network(images)).max()
    assert 0 < difference < 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decoder", "encoder"),
    [
        ("depict_sa", "vit_tiny_patch16_384"),
        ("depict_mask", "vit_tiny_patch16_384"),
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
    labels = OnnxPredictor(tmp_path / "model.onnx", full_image=True).labels(image)
    save(model, tmp_path / "run")
    expected = open_predictor(tmp_path / "run", full_image=True, device="cpu").labels(image)
    assert (labels == expected).mean() > 0.99
    assert len(np.unique(expected)) > 1
