"""A MaskFormer in the hub's format becomes a run with the same masks."""

import json

import pytest
import torch

from depict import UserError, load
from depict.cli import main
from depict.decoders.mask_classification import semantic_scores
from depict.interchange.maskformer import import_maskformer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow  # a Swin-T is built, written and read


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A Swin-T with a small transformer decoder, random weights and biases, as transformers writes it."""
    torch.manual_seed(0)
    names = {index: f"thing {index}" for index in range(6)}
    config = transformers.MaskFormerConfig(
        backbone_config={
            "model_type": "swin",
            "embed_dim": 96,
            "depths": [2, 2, 6, 2],
            "num_heads": [3, 6, 12, 24],
            "window_size": 7,
            "image_size": 224,
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
        decoder_config={"model_type": "detr", "decoder_layers": 2, "num_queries": 9},
        id2label=names,
        label2id={name: index for index, name in names.items()},
    )
    model = transformers.MaskFormerForInstanceSegmentation(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("hub") / "maskformer"
    model.save_pretrained(folder)
    size = {"shortest_edge": 512, "longest_edge": 2048}  # that of the published models
    transformers.MaskFormerImageProcessor(size=size).save_pretrained(folder)
    return model, folder


def test_the_imported_run_has_the_original_scores(original, tmp_path, capsys):
    theirs, folder = original
    assert main(["import", str(folder), str(tmp_path / "run")]) == 0
    assert "encoder swin_tiny_patch4_window7_224" in capsys.readouterr().out
    model = load(tmp_path / "run")
    # Attention windows of 7 divide the grids of 448 pixels, not those of 512.
    assert (model.image_size, model.config.data.short_edge) == ((448, 448), 512)
    assert (model.stride, model.classes[5]) == ((4, 4), "thing 5")
    images = torch.randn(1, 3, 448, 448)
    with torch.no_grad():
        outputs = theirs(images)
        expected = semantic_scores(outputs.masks_queries_logits, outputs.class_queries_logits)
        assert (model.masks(images) - expected).abs().max() < 1e-3
        assert expected.std() > 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backbone_config": {"depths": [2, 2, 4, 2]}}, "a backbone that timm does not have"),
        ({"backbone_config": {"model_type": "resnet"}}, "is not a MaskFormer on a Swin"),
        ({"model_type": "mask2former"}, "is not a MaskFormer on a Swin|cannot be read as a MaskFormer"),
        ({"backbone_config": {"hidden_act": "relu"}}, "backbone_config.hidden_act = 'relu': only 'gelu' can be"),
        ({"backbone_config": {"use_absolute_embeddings": True}}, "use_absolute_embeddings|lacks the tensor"),
        ({"decoder_config": {"activation_function": "gelu"}}, "activation_function = 'gelu': only 'relu' can be"),
    ],
)
def test_other_models_are_refused_in_one_line(original, tmp_path, change, message):
    values = json.loads((original[1] / "config.json").read_text())
    for key, value in change.items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "model.safetensors").symlink_to(original[1] / "model.safetensors")
    with pytest.raises(UserError, match=message) as caught:
        import_maskformer(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_mean": [0.5, 0.5, 0.5]}, "has image_mean = \\[0.5, 0.5, 0.5\\]: only"),
        ({"size": {"height": 400, "width": 400}}, "only a 'shortest_edge' can be imported"),
    ],
)
def test_pictures_that_would_be_prepared_differently_are_refused(original, tmp_path, change, message):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(original[1] / name)
    values = json.loads((original[1] / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values | change))
    with pytest.raises(UserError, match=message):
        import_maskformer(tmp_path)


def test_a_tensor_without_a_place_is_named_and_the_exit_code_is_1(original, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("depict.interchange.maskformer.NOT_NEEDED", "nothing")
    assert main(["import", str(original[1]), str(tmp_path / "run")]) == 1
    assert "not imported, since the model has no such tensors: 'model.pixel_level" in capsys.readouterr().err


def test_flags_of_checkpoint_files_are_refused_for_a_folder(original, tmp_path, capsys):
    assert main(["import", str(original[1]), str(tmp_path / "run"), "--heads", "3"]) == 2
    assert "--heads is for a checkpoint file" in capsys.readouterr().err


def test_class_numbers_with_gaps_are_refused_in_one_line(original, tmp_path):
    values = json.loads((original[1] / "config.json").read_text())
    values["id2label"] = {str(int(index) + 1): name for index, name in values["id2label"].items()}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "model.safetensors").symlink_to(original[1] / "model.safetensors")
    with pytest.raises(UserError, match="config.json: 'id2label' must name the classes 0 to 5"):
        import_maskformer(tmp_path)


def test_folders_without_a_model_and_other_data_sets_are_refused(original, tmp_path):
    with pytest.raises(UserError, match="has no config.json"):
        import_maskformer(tmp_path)
    with pytest.raises(UserError, match="the checkpoint has 6 classes, 'ade20k' has others"):
        import_maskformer(original[1], "ade20k")
    (tmp_path / "config.json").write_text((original[1] / "config.json").read_text())
    with pytest.raises(UserError, match="cannot be read as a MaskFormer") as caught:
        import_maskformer(tmp_path)
    assert "\n" not in str(caught.value)
