"""Trainings of models with a neck: hierarchical encoders, and plain ViTs on a finer grid."""

import pytest
import torch
from safetensors.torch import load_file

import depict
from depict import UserError
from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, NeckConfig, TrainConfig
from depict.decoders import DECODERS
from depict.training.init import init_from
from depict.training.loop import Trainer, train
from depict.training.stopping import InterruptedTraining
from support.level_decoder import Sum
from support.trainings import assert_same_run, losses


def config(root, encoder="test_efficientnet", stride=4, stem=False, blocks=None, freeze=False, data=None, **train):
    """Two epochs of three steps on the folder `root`; `train` are settings of TrainConfig."""
    return Config(
        encoder=EncoderConfig(encoder, False, freeze=freeze, blocks=blocks),
        decoder=DecoderConfig("depict_sa", layers=1, heads=2, head_dim=8),
        data=DataConfig("folder", root, short_edge=64, max_aspect=2, workers=0, **data or {}),
        train=TrainConfig(**{"epochs": 2, "batch": 4, "lr": 1e-3, "device": "cpu"} | train),
        image_size=64,
        stride=stride,
        neck=NeckConfig(16, stem),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_decay": 0.5, "ema": 0.5},
        {"encoder": "test_vit", "stem": True},
        {"encoder": "test_vit", "blocks": (0, 2)},
    ],
    ids=["hierarchical", "stem", "blocks"],
)
def test_every_part_of_a_model_with_a_neck_is_trained_and_comes_back_from_its_folder(pictures, tmp_path, changes):
    settings = config(pictures, **{"epochs": 1} | changes)
    train(settings, tmp_path)
    torch.manual_seed(0)
    before = dict(depict.SegmentationModel(settings, ["a", "b", "c"]).named_parameters())
    model = depict.load(tmp_path, last=True)
    assert model.stride == (4, 4)
    unchanged = [name for name, value in model.named_parameters() if torch.equal(value, before[name])]
    assert unchanged == []


@pytest.mark.parametrize(
    "settings", [{"ema": 0.9}, {"freeze": True, "cache_features": True}], ids=["batch norms", "cached levels"]
)
def test_a_stopped_training_resumes_with_the_same_weights_and_statistics(pictures, tmp_path, monkeypatch, settings):
    monkeypatch.setenv("DEPICT_CACHE", str(tmp_path / "cache"))
    train(config(pictures, **settings), tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(InterruptedTraining):
        patch.setattr(Trainer, "_stop_requested", lambda trainer: trainer.progress.iteration == 4)
        train(config(pictures, **settings), tmp_path / "stopped")
    train(config(pictures, **settings), tmp_path / "stopped")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
    statistics = [name for name in load_file(tmp_path / "whole" / "last.safetensors") if "running_mean" in name]
    assert statistics


def test_the_default_stride_is_kept_with_the_run(pictures, tmp_path):
    train(config(pictures, stride=None, epochs=1), tmp_path)
    assert "stride: 8" in (tmp_path / "config.yaml").read_text()
    train(config(pictures, stride=None, epochs=1), tmp_path)  # finished, and not another configuration
    with pytest.raises(UserError, match="was trained with stride = 8, not 16"):
        train(config(pictures, stride=16, epochs=1), tmp_path)


@pytest.mark.parametrize("crop", [None, 0.5])
@pytest.mark.parametrize("encoder", ["test_efficientnet", "test_vit"])
def test_neck_and_decoder_train_from_cached_levels(pictures, tmp_path, monkeypatch, encoder, crop):
    monkeypatch.setenv("DEPICT_CACHE", str(tmp_path / "cache"))
    settings = {"freeze": True, "cache_features": True, "cache_crop": crop, "epochs": 1}
    train(config(pictures, encoder, **settings), tmp_path / "run")
    torch.manual_seed(0)
    fresh = depict.SegmentationModel(config(pictures, encoder, freeze=True), ["a", "b", "c"]).state_dict()
    trained = load_file(tmp_path / "run" / "last.safetensors")
    assert all(torch.equal(trained[name], fresh[name]) for name in fresh if name.startswith("encoder."))
    heads = [name for name in fresh if name.startswith(("neck.", "decoder."))]
    assert not any(torch.equal(trained[name], fresh[name]) for name in heads)


def test_cached_levels_give_the_losses_of_a_frozen_encoder(pictures, tmp_path, monkeypatch):
    """Whole pictures of the window's size, without augmentation: only the rounding to float16 differs."""
    monkeypatch.setenv("DEPICT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("depict.training.log.LOG_EVERY", 1)
    data = {"scale_range": (1.0, 1.0), "color_jitter": False, "flip": False}
    for cached in (True, False):
        whole = config(pictures, freeze=True, data=data, cache_features=cached, epochs=1)
        whole.image_size = (64, 80)
        whole.data.max_aspect = 80 / 64
        train(whole, tmp_path / str(cached))
    assert losses(tmp_path / "True") == pytest.approx(losses(tmp_path / "False"), rel=0.02)


def test_a_stem_cannot_train_from_cached_features(pictures, tmp_path):
    with pytest.raises(UserError, match="--neck.stem needs the images"):
        train(config(pictures, "test_vit", stem=True, freeze=True, cache_features=True), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("cached", [False, True])
def test_a_registered_decoder_on_levels_trains_and_comes_back_from_its_folder(pictures, tmp_path, monkeypatch, cached):
    monkeypatch.setenv("DEPICT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(DECODERS, "sum", Sum)
    settings = config(pictures, stride=None, freeze=cached, cache_features=cached)
    settings.decoder, settings.neck = DecoderConfig("sum"), NeckConfig()
    train(settings, tmp_path / "run")
    model = depict.load(tmp_path / "run", last=True)
    assert isinstance(model.decoder, Sum)
    torch.manual_seed(0)
    before = depict.SegmentationModel(settings, ["a", "b", "c"]).decoder.state_dict()
    assert not any(torch.equal(value, before[name]) for name, value in model.decoder.state_dict().items())
    assert model.predict(torch.zeros(3, 50, 70, dtype=torch.uint8)).labels.shape == (50, 70)
    again = depict.SegmentationModel(settings, [model.classes[2], "new"])
    assert "1 of the 2 classes" in init_from(again, str(tmp_path / "run"))
    assert torch.equal(again.decoder.last.bias[0], depict.load(tmp_path / "run").decoder.last.bias[2])


@pytest.mark.slow
def test_a_compiled_network_has_the_losses_of_the_plain_one(pictures, tmp_path, monkeypatch):
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda network: compile(network, backend="eager"))
    for compiled in (True, False):
        train(config(pictures, compile=compiled), tmp_path / str(compiled))
    assert losses(tmp_path / "True") == pytest.approx(losses(tmp_path / "False"), abs=1e-4)
