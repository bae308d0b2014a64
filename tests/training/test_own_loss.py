"""Trainings of a decoder that owns its loss: depict_mask with the matching loss."""

import pytest
import torch
from safetensors.torch import load_file

import depict
from depict import UserError
from depict.config.schema import DecoderConfig
from depict.data.dataset import IGNORE
from depict.data.loading import Batch
from depict.training.init import init_from
from depict.training.loop import Trainer, train
from depict.training.losses import plain_loss
from depict.training.stopping import InterruptedTraining
from support.trainings import assert_same_run, losses, small_config

SMALL = {"layers": 1, "heads": 2, "head_dim": 8, "cross_layers": 1, "cross_heads": 2, "cross_head_dim": 8, "queries": 6}


def config(root, decoder=None, **settings):
    """As `small_config`, with six queries; `decoder` are more of its options."""
    small = small_config(root, **settings)
    small.decoder = DecoderConfig("depict_mask", **SMALL | (decoder or {}))
    return small


@pytest.mark.parametrize(
    "options",
    [{}, {"operator": "exact", "masked_attention": True}, {"deep_supervision": False, "segments": "components"}],
    ids=["plain", "exact and masked", "components"],
)
def test_every_parameter_is_trained_and_comes_back_from_the_folder(pictures, tmp_path, options):
    train(config(pictures, options, epochs=1), tmp_path)
    model = depict.load(tmp_path, last=True)
    torch.manual_seed(0)
    before = depict.SegmentationModel(config(pictures, options), model.classes).state_dict()
    unchanged = [
        name for name, value in model.decoder.state_dict().items() if torch.equal(value, before[f"decoder.{name}"])
    ]
    assert unchanged == []
    assert model.config.decoder.segments == options.get("segments", "classes")


@pytest.mark.parametrize("pieces", [2, 3])
def test_pieces_of_a_step_give_the_same_losses(pictures, tmp_path, pieces):
    train(config(pictures, epochs=1), tmp_path / "whole")
    train(config(pictures, epochs=1, grad_accum=pieces), tmp_path / "pieces")
    assert losses(tmp_path / "pieces") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


def test_a_stopped_training_resumes_and_ends_with_the_same_weights(pictures, tmp_path, monkeypatch):
    train(config(pictures, ema=0.9), tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(InterruptedTraining):
        patch.setattr(Trainer, "_stop_requested", lambda trainer: trainer.progress.iteration == 4)
        train(config(pictures, ema=0.9), tmp_path / "stopped")
    train(config(pictures, ema=0.9), tmp_path / "stopped")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_the_plain_loss_of_a_model_is_that_of_its_decoder(pictures):
    model = depict.SegmentationModel(config(pictures), ["a", "b", "c"]).train()
    labels = torch.randint(3, (2, 32, 32), dtype=torch.uint8)
    outputs = model(torch.randn(2, 3, 32, 32))
    assert torch.equal(plain_loss(model, outputs, labels), model.decoder.loss(outputs, labels, (8, 8)))


def test_an_image_without_labels_is_no_error_and_gives_no_gradient(pictures, tmp_path, monkeypatch):
    seen = []
    backward = Trainer._backward

    def without_labels(trainer, batch):
        empty = Batch(batch.images, torch.full_like(batch.labels, IGNORE), batch.indices)
        seen.append(backward(trainer, empty))
        assert all((p.grad == 0).all() for p in trainer.network.parameters() if p.grad is not None)
        return backward(trainer, batch)

    monkeypatch.setattr(Trainer, "_backward", without_labels)
    train(config(pictures, epochs=1), tmp_path)
    assert seen == [0.0] * 3


@pytest.mark.parametrize("crop", [None, 0.5])
def test_it_trains_from_cached_features(pictures, tmp_path, monkeypatch, crop):
    monkeypatch.setenv("DEPICT_CACHE", str(tmp_path / "cache"))
    settings = config(pictures, freeze=True, cache_features=True, cache_crop=crop, epochs=1)
    train(settings, tmp_path / "run")
    assert list((tmp_path / "cache/features").glob("*/tokens.npy"))
    trained = load_file(tmp_path / "run" / "last.safetensors")
    classes = depict.load(tmp_path / "run").classes
    torch.manual_seed(0)
    before = depict.SegmentationModel(settings, classes).state_dict()
    assert all(tensor.isfinite().all() for tensor in trained.values())
    changed = {name for name, tensor in trained.items() if not torch.equal(tensor, before[name])}
    assert changed >= {name for name in trained if name.startswith("decoder.")}
    assert [name for name in changed if name.startswith("encoder.")] == []


@pytest.mark.parametrize("setting", [{"loss": "ce+dice"}, {"class_weights": "balanced"}, {"loss_every": 2}])
def test_pixel_losses_are_refused(pictures, tmp_path, setting):
    with pytest.raises(UserError, match="'depict_mask' has a loss of its own: omit --loss, --loss-every and"):
        train(config(pictures, **setting), tmp_path)


def test_a_start_from_another_run_keeps_the_row_of_no_object(pictures, tmp_path):
    train(config(pictures, epochs=1), tmp_path)
    source = depict.load(tmp_path)
    torch.manual_seed(5)
    model = depict.SegmentationModel(source.config, [source.classes[2], "new"])
    init_from(model, str(tmp_path))
    given, own = source.decoder.classify.weight, model.decoder.classify.weight
    assert torch.equal(own[0], given[2])
    assert torch.equal(own[2], given[3])  # "no object"
    assert torch.equal(model.decoder.queries, source.decoder.queries)
    assert not any(torch.equal(own[1], row) for row in given)
