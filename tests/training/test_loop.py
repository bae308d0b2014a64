"""Whole trainings of seconds, in this process; tests/training/test_processes.py has those that need several."""

import dataclasses
import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import depict
from depict import UserError, cli
from depict.config.resolve import as_pair
from depict.data.dataset import Subset
from depict.data.folder import Folder
from depict.data.scenes.dataset import Scenes
from depict.runs import lock_run, read_metrics
from depict.training import loop
from depict.training.loop import Trainer, train
from depict.training.preview import Preview
from depict.training.stopping import InterruptedTraining
from support.layouts import rectangles
from support.trainings import assert_same_run, losses, saved_state, scores, small_command, small_config


@pytest.fixture(scope="module")
def plain(pictures, tmp_path_factory):
    """The losses of one epoch with default settings."""
    out = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("depict.training.log.LOG_EVERY", 1)
        train(small_config(pictures, epochs=1), out)
    return losses(out)


def test_training_lowers_the_loss_and_leaves_a_complete_run(pictures, tmp_path):
    result = train(small_config(pictures, epochs=12, lr=3e-3), tmp_path / "run")
    logged = losses(tmp_path / "run")
    assert len(logged) == 12 * 3
    assert sum(logged[-6:]) < 0.7 * sum(logged[:6])
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    kept = ["last.safetensors", "metrics.jsonl", "model.safetensors", "preview.png", "state"]
    assert names == [".lock", "config.yaml", "curves.png", "data.json", *kept]
    validations = [line for line in read_metrics(tmp_path / "run") if "miou" in line]
    assert [line["epoch"] for line in validations] == [2, 4, 6, 8, 10, 12]
    assert result.miou == max(scores(tmp_path / "run"))
    best = depict.load(tmp_path / "run")
    assert best.num_classes == 3
    assert best.config.data.short_edge == 40


def test_a_finished_run_says_so_and_other_settings_are_refused(pictures, tmp_path, capsys):
    train(small_config(pictures, epochs=1), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert train(small_config(pictures, epochs=1), tmp_path) is None
    assert "is finished: best mIoU" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"was trained with train.batch = 4, not 5: give the same settings to resume"):
        train(small_config(pictures, epochs=2, batch=5), tmp_path)
    other = small_config(pictures, epochs=1)
    other.encoder.pretrained = "other.safetensors"
    with pytest.raises(UserError, match="was trained with encoder.pretrained = False"):
        train(other, tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_half_written_files_of_a_killed_training_are_removed(pictures, tmp_path):
    (tmp_path / ".config.yaml.abc.part.yaml").write_text("half")
    train(small_config(pictures, epochs=1), tmp_path)
    (tmp_path / "state" / ".last.pt.abc.part.pt").write_text("half")
    train(small_config(pictures, epochs=1), tmp_path)
    assert not list(tmp_path.rglob(".*.part*"))


def test_a_seed_decides_the_training_and_may_be_large(pictures, tmp_path, plain):
    for name in ("one", "two"):
        train(small_config(pictures, epochs=1, seed=20261115), tmp_path / name)
    assert_same_run(tmp_path / "one", tmp_path / "two")
    assert losses(tmp_path / "one") != plain


def test_a_run_s_own_configuration_gives_the_same_training(pictures, tmp_path):
    train(small_config(pictures, epochs=1), tmp_path / "first")
    words = ["train", "--out", str(tmp_path / "second"), "--config", str(tmp_path / "first" / "config.yaml")]
    assert cli.main(words) == 0
    assert_same_run(tmp_path / "first", tmp_path / "second")


@pytest.mark.parametrize("pieces", [2, 3])
def test_pieces_of_a_step_give_the_same_losses(pictures, tmp_path, plain, pieces):
    train(small_config(pictures, epochs=1, grad_accum=pieces), tmp_path)
    assert losses(tmp_path) == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize(
    ("published", "size", "stride"),
    [(24, 32, (24, 24)), (24, (40, 32), (24, 24)), (24, 16, (8, 8)), (24, (40, 16), (20, 8)), (None, 32, (16, 16))],
)
def test_validation_uses_the_published_stride_if_the_window_is_as_large_as_the_published_crop(
    pictures, tmp_path, monkeypatch, published, size, stride
):
    monkeypatch.setattr(Folder, "recipe", dataclasses.replace(Folder.recipe, stride=published, crop=32))
    windows, evaluate = [], loop.evaluate
    monkeypatch.setattr(
        loop, "evaluate", lambda p, *more, **named: windows.append(p.sliding) or evaluate(p, *more, **named)
    )
    train(small_config(pictures, epochs=1, limit=4, image_size=size), tmp_path)
    assert [(sliding.window, sliding.stride) for sliding in windows] == [(as_pair(size), stride)]


def test_a_frozen_encoder_keeps_its_weights(pictures, tmp_path):
    config = small_config(pictures, freeze=True, epochs=1)
    train(config, tmp_path)
    trained = load_file(tmp_path / "last.safetensors")
    torch.manual_seed(0)
    fresh = depict.SegmentationModel(config, ["a", "b", "c"]).state_dict()
    assert all(torch.equal(trained[name], fresh[name]) for name in fresh if name.startswith("encoder."))
    assert not torch.equal(trained["decoder.layers.0.operator.P"], fresh["decoder.layers.0.operator.P"])


@pytest.mark.parametrize("crop", [None, 0.5])
def test_cached_features_train_the_decoder(pictures, tmp_path, monkeypatch, capsys, crop):
    monkeypatch.setenv("DEPICT_CACHE", str(tmp_path / "cache"))
    settings = {"freeze": True, "cache_features": True, "cache_crop": crop, "epochs": 10, "lr": 1e-2}
    train(small_config(pictures, **settings), tmp_path / "run")
    logged = losses(tmp_path / "run")
    assert sum(logged[-6:]) < 0.8 * sum(logged[:6])
    assert depict.load(tmp_path / "run").num_classes == 3
    printed = capsys.readouterr().err
    assert "flip: true" in printed
    assert not any(unused in printed for unused in ("color_jitter", "scale_range"))


def test_sgd_and_clipping_change_the_update_and_not_the_first_loss(pictures, tmp_path, plain):
    train(small_config(pictures, epochs=1, optimizer="sgd", clip_grad=1.0), tmp_path)
    first, *later = losses(tmp_path)
    assert first == plain[0]
    assert all(abs(a - b) > 1e-4 for a, b in zip(later, plain[1:], strict=True))
    memory = saved_state(tmp_path)["optimizer"]["state"].values()
    assert all("momentum_buffer" in values for values in memory)


def test_warm_up_raises_the_rate_and_decay_changes_the_weights(pictures, tmp_path, plain):
    train(small_config(pictures, epochs=1, warmup=3, weight_decay=0.5, layer_decay=0.8), tmp_path)
    rates = [line["lr"] for line in read_metrics(tmp_path) if "lr" in line]
    assert rates[0] == pytest.approx(1e-3 / 3)
    assert losses(tmp_path)[0] == plain[0]
    assert losses(tmp_path)[2] != plain[2]


@pytest.mark.parametrize("loss", ["ce+dice", "ce+lovasz"])
def test_an_extra_loss_adds_up_to_one_to_the_cross_entropy(pictures, tmp_path, plain, loss):
    train(small_config(pictures, epochs=1, loss=loss), tmp_path)
    assert plain[0] + 0.1 < losses(tmp_path)[0] < plain[0] + 1


def test_balanced_classes_change_the_loss(pictures, tmp_path, plain):
    train(small_config(pictures, epochs=1, class_weights="balanced"), tmp_path)
    assert abs(losses(tmp_path)[0] - plain[0]) > 1e-3


def test_an_average_and_checkpointing_leave_the_losses_alone(pictures, tmp_path, plain):
    train(small_config(pictures, epochs=1, ema=0.9, checkpointing=True), tmp_path)
    assert losses(tmp_path) == pytest.approx(plain, abs=1e-5)


def test_a_tracker_gets_a_file_of_its_own(pictures, tmp_path, plain):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(small_config(pictures, epochs=1, tracker="tensorboard"), tmp_path)
    assert losses(tmp_path) == plain
    events = event_accumulator.EventAccumulator(str(next((tmp_path / "depict").rglob("events.out.tfevents*"))))
    events.Reload()
    assert [event.step for event in events.Scalars("miou")] == [3]
    (preview,) = events.Images("preview")
    assert preview.step == 3
    with Image.open(io.BytesIO(preview.encoded_image_string)) as logged, Image.open(tmp_path / "preview.png") as kept:
        np.testing.assert_array_equal(np.asarray(logged), np.asarray(kept))


def test_curves_and_preview_are_those_of_all_steps_also_after_a_resume(pictures, tmp_path, monkeypatch, capsys):
    config = small_config(pictures, epochs=3, validate_every=1)
    train(config, tmp_path / "whole" / "run")
    assert f"redrawn at each validation: {tmp_path / 'whole' / 'run' / 'curves.png'}" in capsys.readouterr().err
    resumed = tmp_path / "resumed" / "run"
    with monkeypatch.context() as patch, pytest.raises(InterruptedTraining):
        patch.setattr(Trainer, "_stop_requested", lambda trainer: trainer.progress.iteration == 4)
        train(config, resumed)
    halfway = (resumed / "curves.png").read_bytes()
    train(config, resumed)
    for name in ("curves.png", "preview.png"):
        assert (resumed / name).read_bytes() == (tmp_path / "whole" / "run" / name).read_bytes()
    assert (resumed / "curves.png").read_bytes() != halfway


def test_the_preview_shows_the_same_images_at_each_validation():
    shown = [sorted(Preview(Subset(Scenes(None, "val"), range(count))).indices) for count in (1, 3, 4, 100)]
    assert shown == [[0], [0, 1, 2], [0, 1, 2, 3], [0, 25, 50, 75]]


@pytest.mark.slow
def test_a_compiled_network_has_the_losses_of_the_plain_one_and_resumes(pictures, tmp_path, monkeypatch):
    compiled, compile = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda network: compiled.append(network) or compile(network, backend="eager"))
    train(small_config(pictures), tmp_path / "plain")
    assert not compiled
    with monkeypatch.context() as patch, pytest.raises(InterruptedTraining):
        patch.setattr(Trainer, "_stop_requested", lambda trainer: trainer.progress.iteration == 4)
        train(small_config(pictures, compile=True), tmp_path / "compiled")
    train(small_config(pictures, compile=True), tmp_path / "compiled")
    assert len(compiled) == 2
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)
    depict.load(tmp_path / "compiled")


def test_the_moving_average_is_what_is_kept(pictures, tmp_path):
    train(small_config(pictures, ema=0.5), tmp_path)
    kept, state = load_file(tmp_path / "last.safetensors"), saved_state(tmp_path)
    assert all(torch.equal(kept[name], value) for name, value in state["average"].items())
    assert any(not torch.equal(kept[name], value) for name, value in state["network"].items())


def test_patience_ends_a_training_that_does_not_improve(pictures, tmp_path, capsys):
    config = small_config(pictures, epochs=30, lr=1e-9, validate_every=1, patience=2)
    train(config, tmp_path)
    assert len(scores(tmp_path)) == 3
    assert "stopped: no better mIoU in 2 validations." in capsys.readouterr().err
    assert train(config, tmp_path) is None


@pytest.fixture
def falling_scores(monkeypatch):
    """Makes every validation worse than the one before it: ever more pixels of the first class are wrong."""
    evaluate, calls = loop.evaluate, []

    def worse(*arguments, **named):
        result = evaluate(*arguments, **named)
        calls.append(result)
        result.confusion[0] = [1, 10 ** len(calls), 0]
        return result

    monkeypatch.setattr(loop, "evaluate", worse)


def test_the_table_is_that_of_the_kept_model_also_after_a_resume(
    pictures, tmp_path, capsys, monkeypatch, falling_scores
):
    config = small_config(pictures, epochs=3, validate_every=1)
    with monkeypatch.context() as patch, pytest.raises(InterruptedTraining):
        patch.setattr(Trainer, "_stop_requested", lambda trainer: trainer.progress.iteration == 4)
        train(config, tmp_path)
    capsys.readouterr()
    result = train(config, tmp_path)
    assert result.miou == max(scores(tmp_path)) == scores(tmp_path)[0]
    assert [row["name"] for row in result.images] == ["val0", "val1", "val2", "val3"]
    last = scores(tmp_path)[-1]
    assert (
        "model.safetensors holds the weights of step 3, which has the best validation (below); "
        f"last.safetensors those of the last step (mIoU {100 * last:.2f} %)." in capsys.readouterr().err
    )


def test_a_best_last_step_is_named_as_such(pictures, tmp_path, capsys):
    assert cli.main(small_command(pictures, tmp_path, "--epochs", "1")) == 0
    printed = capsys.readouterr()
    assert "model.safetensors holds the weights of the last step, which has the best validation:" in printed.err
    assert f"mIoU {100 * scores(tmp_path)[0]:.2f}" in printed.out


@pytest.mark.parametrize(("images", "warned"), [(19, True), (20, False)])
def test_few_validation_images_are_warned_of_once(tmp_path, capsys, images, warned):
    root = rectangles(tmp_path / "data", train=4, val=images, size=(16, 16))
    train(small_config(root, epochs=2, validate_every=1, image_size=16), tmp_path / "run")
    assert capsys.readouterr().err.count(f"the scores come from only {images} images (fewer") == int(warned)


def assert_everything_kept_is_finite(out):
    state = saved_state(out)
    memory = [values.values() for values in state["optimizer"]["state"].values()]
    kept = [*state["network"].values(), *(value for values in memory for value in values if torch.is_tensor(value))]
    assert all(value.isfinite().all() for value in kept)


def test_a_loss_of_nan_stops_with_the_step_and_the_files(pictures, tmp_path, monkeypatch):
    cross_entropy, factors = loop.losses.cross_entropy, iter([1.0, math.nan])

    def second_is_nan(*arguments):
        summed, pixels = cross_entropy(*arguments)
        return summed * next(factors), pixels

    monkeypatch.setattr(loop.losses, "cross_entropy", second_is_nan)
    with pytest.raises(UserError, match=r"the loss became nan at step 2, with the images train\d") as caught:
        train(small_config(pictures, epochs=30, optimizer="sgd", save_every=1), tmp_path)
    assert "\n" not in str(caught.value)
    assert "keeps the state after step 1." in str(caught.value)
    assert_everything_kept_is_finite(tmp_path)


@pytest.mark.parametrize(
    ("cause", "settings"),
    [
        ("rate", {"optimizer": "sgd"}),
        ("rate", {"optimizer": "sgd", "ema": 0.9}),
        ("gradient", {"optimizer": "sgd"}),
        ("gradient", {"optimizer": "adamw", "clip_grad": 1.0}),
    ],
    ids=str,
)
def test_an_update_to_nan_is_not_kept(pictures, tmp_path, monkeypatch, cause, settings):
    """The loss of the third step is finite, its update is not."""
    batches = []
    step, cross_entropy = Trainer._step, loop.losses.cross_entropy
    monkeypatch.setattr(Trainer, "_step", lambda t, batch, rate: batches.append(batch) or step(t, batch, rate))

    def steep(masks, *more):
        summed, pixels = cross_entropy(masks, *more)
        return summed + (0 * masks.sum()).sqrt() if len(batches) == 3 else summed, pixels

    if cause == "rate":
        monkeypatch.setattr(loop, "learning_rate", lambda iteration, *_: 3.4e38 if iteration == 2 else 1e-3)
    else:
        monkeypatch.setattr(loop.losses, "cross_entropy", steep)
    with pytest.raises(UserError, match="the weights became inf or nan at step 3") as caught:
        train(small_config(pictures, save_every=1, **settings), tmp_path)
    names = [f"train{index}" for index in batches[2].indices.tolist()]
    assert f"with the images {', '.join(names)}; '{tmp_path}' keeps the state after step 2." in str(caught.value)
    assert saved_state(tmp_path)["iteration"] == 2
    assert_everything_kept_is_finite(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_gradients_whose_squares_overflow_are_not_kept(pictures, tmp_path, monkeypatch):
    """AdamW divides by the root of their squares: the weights stay finite, and would never move again."""
    cross_entropy = loop.losses.cross_entropy

    def huge(*arguments):
        summed, pixels = cross_entropy(*arguments)
        return summed * 1e30, pixels

    monkeypatch.setattr(loop.losses, "cross_entropy", huge)
    with pytest.raises(UserError, match="the weights became inf or nan at step 1, .* has no saved state yet"):
        train(small_config(pictures, optimizer="adamw", save_every=1), tmp_path)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: setattr(c.data, "name", None), "no data set: give --data NAME"),
        (lambda c: setattr(c.data, "name", "foldr"), "unknown data set 'foldr'. Did you mean 'folder'"),
        (lambda c: setattr(c.data, "limit", 999), "--data.limit must be at most 10"),
        (lambda c: setattr(c.train, "lr", 0.0), "--lr must be above 0"),
        (lambda c: setattr(c.train, "cache_features", True), "--cache-features needs --freeze-encoder"),
        (lambda c: setattr(c.train, "cache_crop", 0.5), "--cache-crop needs --cache-features"),
        (lambda c: setattr(c.train, "device", "tpu"), "--device must be cpu, cuda or mps, not 'tpu'"),
        (lambda c: setattr(c.train, "precision", "fp16"), "fp16 needs a GPU"),
        (lambda c: setattr(c.decoder, "name", "depict_as"), "unknown decoder 'depict_as'"),
        (lambda c: setattr(c.encoder, "pretrained", "missing.pth"), "has no pretrained weights"),
        (lambda c: setattr(c.data, "scale_range", (2.0, 0.5)), "--data.scale-range must be the smallest and"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(pictures, tmp_path, change, message):
    wrong = small_config(pictures)
    change(wrong)
    with pytest.raises(UserError, match=message) as caught:
        train(wrong, tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_folder_with_other_files_is_not_used(pictures, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="holds other files and no run"):
        train(small_config(pictures), tmp_path)


def fails_in_one_line(words, capsys):
    """Run a command that must fail with exit code 2; returns the line that it ends with."""
    assert cli.main(words) == 2
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    return printed.splitlines()[-1]


def test_a_second_training_in_the_same_folder_is_refused(pictures, tmp_path, capsys):
    with lock_run(tmp_path):
        line = fails_in_one_line(small_command(pictures, tmp_path), capsys)
    assert line.startswith("depict: another training is running in")


def test_a_file_for_out_is_refused(pictures, tmp_path, capsys):
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="run' is a file: choose another --out"):
        train(small_config(pictures), tmp_path / "run")
    assert f"'{tmp_path / 'run'}' is a file" in fails_in_one_line(small_command(pictures, tmp_path / "run"), capsys)


def test_a_damaged_picture_stops_the_training_before_it_starts(tmp_path, capsys):
    root = rectangles(tmp_path / "data")
    (root / "masks" / "train" / "train3.png").write_bytes(b"")
    assert "train3.png" in fails_in_one_line(small_command(root, tmp_path / "run"), capsys)


def test_flags_override_the_settings_of_a_configuration(pictures, tmp_path):
    (tmp_path / "mine.yaml").write_text("train: {epochs: 1, batch: 5}\ndecoder: {layers: 1, heads: 2, head_dim: 8}\n")
    words = f"train --out {tmp_path / 'run'} --config {tmp_path / 'mine.yaml'} --decoder.heads 3 --device cpu"
    words += f" --data folder --root {pictures} --data.workers 0 --data.short-edge 40 --image-size 32"
    words += " --encoder vit_tiny_patch16_224 --encoder.pretrained False --encoder.dim 64 --encoder.depth 1"
    assert cli.main(words.split()) == 0
    saved = depict.load(tmp_path / "run").config
    assert (saved.train.epochs, saved.train.batch, saved.decoder.heads) == (1, 5, 3)


def test_a_wrong_key_in_a_configuration_is_named(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("decoder: {layer: 1}\n")
    out = tmp_path / "run"
    line = fails_in_one_line(["train", "--out", str(out), "--config", str(tmp_path / "mine.yaml")], capsys)
    assert "'layer'. Did you mean 'layers'?" in line
    assert not out.exists()


def test_denormals_count_as_zero_while_a_training_runs(pictures, tmp_path, monkeypatch):
    def product():
        return float(torch.tensor([1e-30]) * torch.tensor([1e-10]))

    seen = []
    step = Trainer._step
    monkeypatch.setattr(Trainer, "_step", lambda *arguments: seen.append(product()) or step(*arguments))
    train(small_config(pictures, epochs=1), tmp_path)
    assert seen
    assert set(seen) == {0.0}
    assert product() > 0
