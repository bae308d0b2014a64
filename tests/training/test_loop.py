"""Training for real: small pictures, whole runs, killed processes, several processes, full disks."""

import dataclasses
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import depict
from depict import UserError
from depict.config.resolve import as_pair
from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, TrainConfig
from depict.data.folder import Folder
from depict.runs import lock_run, read_metrics
from depict.training import loop as training
from support.layouts import rectangles
from support.several_processes import torchrun

CLASSES = 3


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Ten training and four validation pictures of rectangles, 40 x 48, three classes."""
    return rectangles(tmp_path_factory.mktemp("pictures"))


def config(root, freeze=False, decoder="depict_sa", drop_path=0.0, image_size=32, limit=None, seed=0, **train):
    settings = {"epochs": 2, "batch": 4, "lr": 1e-3, "device": "cpu"} | train
    options = {"layers": 1, "heads": 2, "head_dim": 8} if decoder == "depict_sa" else {}
    return Config(
        encoder=EncoderConfig(
            "vit_tiny_patch16_224", False, drop_path=drop_path, freeze=freeze, patch_size=8, dim=64, depth=2
        ),
        decoder=DecoderConfig(decoder, **options),
        data=DataConfig("folder", root, short_edge=40, max_aspect=2, workers=0, limit=limit),
        train=TrainConfig(**settings),
        image_size=image_size,
        seed=seed,
    )


def command(root, out, *more, workers=2):
    """The same training as a command line."""
    words = f"""--out {out} --data folder --root {root} --data.short-edge 40 --data.max-aspect 2
        --data.workers {workers}
        --encoder vit_tiny_patch16_224 --encoder.pretrained False --encoder.drop-path 0.2 --encoder.patch-size 8
        --encoder.dim 64 --encoder.depth 2 --decoder depict_sa --decoder.layers 1 --decoder.heads 2 --decoder.head-dim 8
        --image-size 32 --batch 4 --lr 1e-3 --device cpu"""
    return [sys.executable, "-m", "depict.cli", "train", *words.split(), *more]


# Sums are rounded in another order with another number of threads: bit for bit means with the same number.
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def run(words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=300, env=ENVIRONMENT, **options)


def start(words, **options):
    return subprocess.Popen(words, text=True, env=ENVIRONMENT, **options)


def losses(out):
    return [line["loss"] for line in read_metrics(out) if "loss" in line]


@pytest.fixture(autouse=True)
def log_every_step(monkeypatch):
    monkeypatch.setattr(training, "LOG_EVERY", 1)


def test_training_lowers_the_loss_and_leaves_a_whole_run(pictures, tmp_path):
    result = training.train(config(pictures, epochs=12, lr=3e-3), tmp_path / "run")
    found = losses(tmp_path / "run")
    assert len(found) == 12 * 3
    assert sum(found[-6:]) < 0.7 * sum(found[:6])
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == [".lock", "config.yaml", "last.safetensors", "metrics.jsonl", "model.safetensors", "state"]
    validations = [line for line in read_metrics(tmp_path / "run") if "miou" in line]
    assert [line["epoch"] for line in validations] == [2, 4, 6, 8, 10, 12]
    best = depict.load(tmp_path / "run")
    assert len(best.classes) == CLASSES
    assert result.miou == pytest.approx(validations[-1]["miou"])
    assert best.config.data.short_edge == 40


def test_a_finished_run_says_so_and_another_configuration_is_refused(pictures, tmp_path, capsys):
    training.train(config(pictures, epochs=1), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert training.train(config(pictures, epochs=1), tmp_path) is None
    assert "is finished: best mIoU" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"was trained with train.epochs = 1, not 2: give the same settings"):
        training.train(config(pictures, epochs=2), tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_what_a_killed_training_left_half_written_is_cleared_away(pictures, tmp_path):
    (tmp_path / ".config.yaml.abc.part.yaml").write_text("half")
    training.train(config(pictures, epochs=1), tmp_path)
    (tmp_path / "state" / ".last.pt.abc.part.pt").write_text("half")
    training.train(config(pictures, epochs=1), tmp_path)
    assert not list(tmp_path.rglob(".*.part*"))


def test_a_large_seed_is_as_good_as_a_small_one(pictures, tmp_path):
    training.train(config(pictures, epochs=1, seed=20261115), tmp_path)
    assert all(np.isfinite(losses(tmp_path)))


def test_the_encoder_s_weights_belong_to_the_configuration(pictures, tmp_path):
    training.train(config(pictures, epochs=1), tmp_path)
    other = config(pictures, epochs=1)
    other.encoder.pretrained = "other.safetensors"
    with pytest.raises(UserError, match="was trained with encoder.pretrained = False"):
        training.train(other, tmp_path)


def test_a_folder_with_other_files_is_not_taken(pictures, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="holds other files and no run"):
        training.train(config(pictures), tmp_path)


def test_a_second_training_in_the_same_folder_is_refused(pictures, tmp_path):
    with lock_run(tmp_path):
        result = run(command(pictures, tmp_path))
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1].startswith("depict: another training is at work in")


@pytest.mark.parametrize("pieces", [2, 3])
def test_pieces_of_a_step_give_the_same_losses(pictures, tmp_path, pieces):
    training.train(config(pictures), tmp_path / "whole")
    training.train(config(pictures, grad_accum=pieces), tmp_path / "pieces")
    assert losses(tmp_path / "pieces") == pytest.approx(losses(tmp_path / "whole"), abs=1e-5)


@pytest.mark.parametrize(
    ("published", "size", "stride"),
    [(24, 32, (24, 24)), (24, 16, (16, 16)), (24, (40, 16), (16, 16)), (512, 32, (32, 32)), (None, 32, (16, 16))],
)
def test_validations_step_as_published_or_by_a_smaller_crop(pictures, tmp_path, monkeypatch, published, size, stride):
    monkeypatch.setattr(Folder, "recipe", dataclasses.replace(Folder.recipe, stride=published))
    protocols = []
    real = training.evaluate
    monkeypatch.setattr(training, "evaluate", lambda *values: protocols.append(values[2]) or real(*values))
    training.train(config(pictures, epochs=1, image_size=size), tmp_path)
    assert [(sliding.window, sliding.stride) for sliding in protocols] == [(as_pair(size), stride)]


def test_a_frozen_encoder_keeps_its_weights(pictures, tmp_path):
    training.train(config(pictures, freeze=True, epochs=1), tmp_path / "frozen")
    trained = load_file(tmp_path / "frozen" / "last.safetensors")
    torch.manual_seed(0)
    fresh = depict.SegmentationModel(config(pictures, freeze=True), ["a", "b", "c"]).state_dict()
    assert all(torch.equal(trained[name], fresh[name]) for name in fresh if name.startswith("encoder."))
    assert not torch.equal(trained["decoder.layers.0.operator.P"], fresh["decoder.layers.0.operator.P"])


@pytest.mark.parametrize("crop", [None, 0.5])
def test_cached_features_train_the_decoder(pictures, tmp_path, monkeypatch, crop):
    monkeypatch.setenv("DEPICT_CACHE", str(tmp_path / "cache"))
    settings = {"freeze": True, "cache_features": True, "cache_crop": crop, "epochs": 10, "lr": 1e-2}
    training.train(config(pictures, **settings), tmp_path / "run")
    found = losses(tmp_path / "run")
    assert sum(found[-6:]) < 0.8 * sum(found[:6])
    assert depict.load(tmp_path / "run").num_classes == CLASSES


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "clip": 1.0},
        {"warmup": 3, "weight_decay": 0.05, "layer_decay": 0.8},
        {"loss": "ce+dice"},
        {"loss": "ce+lovasz", "class_weights": "balanced"},
        {"ema": 0.9, "checkpointing": True},
        {"tracker": "tensorboard"},
        {"compile": True},
    ],
    ids=str,
)
def test_every_option_trains(pictures, tmp_path, settings, monkeypatch):
    # Traced and run as it stands: making machine code takes a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    training.train(config(pictures, epochs=1, **settings), tmp_path / "run")
    assert all(np.isfinite(losses(tmp_path / "run")))
    depict.load(tmp_path / "run", last=True)


def test_a_compiled_network_has_the_losses_of_the_plain_one_and_goes_on(pictures, tmp_path, monkeypatch):
    compiled = []
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda network: compiled.append(network) or real(network, backend="eager"))
    training.train(config(pictures), tmp_path / "plain")
    assert not compiled
    with monkeypatch.context() as patch, pytest.raises(training.InterruptedTraining):
        patch.setattr(training._Trainer, "_agreed_to_stop", lambda trainer: trainer.iteration == 4)
        training.train(config(pictures, compile=True), tmp_path / "compiled")
    training.train(config(pictures, compile=True), tmp_path / "compiled")
    assert len(compiled) == 2
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)
    depict.load(tmp_path / "compiled")


def test_the_average_is_what_is_kept(pictures, tmp_path):
    training.train(config(pictures, ema=0.5), tmp_path / "run")
    kept = load_file(tmp_path / "run" / "last.safetensors")
    state = torch.load(tmp_path / "run" / "state" / "last.pt", weights_only=True)
    assert all(torch.equal(kept[name], value) for name, value in state["average"].items())
    assert any(not torch.equal(kept[name], value) for name, value in state["network"].items())


def test_patience_ends_a_training_that_gets_no_better(pictures, tmp_path):
    training.train(config(pictures, epochs=30, lr=1e-9, validate_every=1, patience=2), tmp_path)
    assert len([line for line in read_metrics(tmp_path) if "miou" in line]) == 3
    assert training.train(config(pictures, epochs=30, lr=1e-9, validate_every=1, patience=2), tmp_path) is None


def everything_kept(out):
    """All tensors of a run's state."""
    state = torch.load(out / "state" / "last.pt", weights_only=True)
    memories = [memory.values() for memory in state["optimizer"]["state"].values()]
    return [*state["network"].values(), *(value for memory in memories for value in memory if torch.is_tensor(value))]


def test_a_loss_that_is_no_number_stops_with_the_step_and_the_files(pictures, tmp_path):
    with pytest.raises(UserError, match=r"the loss became (nan|inf) at step 2, with the images train\d") as caught:
        training.train(config(pictures, epochs=30, lr=1e30, optimizer="sgd", save_every=1), tmp_path)
    assert "\n" not in str(caught.value)
    assert "keeps the state after step 1." in str(caught.value)
    assert all(value.isfinite().all() for value in everything_kept(tmp_path))


@pytest.mark.parametrize(
    ("cause", "settings"),
    [
        ("rate", {"optimizer": "sgd"}),
        ("rate", {"optimizer": "sgd", "ema": 0.9}),
        ("gradient", {"optimizer": "sgd"}),
        ("gradient", {"optimizer": "adamw", "clip": 1.0}),
    ],
    ids=str,
)
def test_an_update_that_is_no_number_is_not_kept(pictures, tmp_path, monkeypatch, cause, settings):
    """The loss of the third step is finite, its update is not."""
    batches = []
    step, cross_entropy = training._Trainer._step, training.losses.cross_entropy
    monkeypatch.setattr(
        training._Trainer, "_step", lambda t, batch, rate: batches.append(batch) or step(t, batch, rate)
    )

    def steep(masks, *more):
        summed, pixels = cross_entropy(masks, *more)
        return summed + (0 * masks.sum()).sqrt() if len(batches) == 3 else summed, pixels

    if cause == "rate":
        monkeypatch.setattr(training, "learning_rate", lambda iteration, *_: 3.4e38 if iteration == 2 else 1e-3)
    else:
        monkeypatch.setattr(training.losses, "cross_entropy", steep)
    with pytest.raises(UserError, match="the weights became inf or nan at step 3") as caught:
        training.train(config(pictures, save_every=1, **settings), tmp_path)
    names = [f"train{index}" for index in batches[2].indices.tolist()]
    assert f"with the images {', '.join(names)}; '{tmp_path}' keeps the state after step 2." in str(caught.value)
    assert torch.load(tmp_path / "state" / "last.pt", weights_only=True)["iteration"] == 2
    assert all(value.isfinite().all() for value in everything_kept(tmp_path))
    assert not (tmp_path / "model.safetensors").exists()


def test_gradients_whose_squares_overflow_are_not_kept(pictures, tmp_path, monkeypatch):
    """AdamW divides by the root of their squares: the weights stay finite, and would never move again."""
    real = training.losses.cross_entropy

    def huge(*arguments):
        summed, pixels = real(*arguments)
        return summed * 1e30, pixels

    monkeypatch.setattr(training.losses, "cross_entropy", huge)
    with pytest.raises(UserError, match="the weights became inf or nan at step 1, .* had no state saved yet"):
        training.train(config(pictures, optimizer="adamw", save_every=1), tmp_path)
    assert not (tmp_path / "state").exists()


def test_two_processes_stop_together_at_an_update_that_overflows(pictures, tmp_path):
    words = command(pictures, tmp_path / "two", "--optimizer", "sgd", "--save-every", "1", "--epochs", "1", workers=0)
    words[words.index("--lr") + 1] = "3.4e38"
    result = torchrun(*words[3:], cwd=tmp_path)
    assert result.returncode != 0
    told = [line for line in result.stderr.splitlines() if line.startswith("depict: ")]
    assert "the weights became inf or nan at step 1, with the images" in told[0]
    assert told[0].count("train") >= 4  # of both processes
    assert not (tmp_path / "two" / "state").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: setattr(c.data, "name", None), "which data set"),
        (lambda c: setattr(c.data, "name", "foldr"), "unknown data set 'foldr'. Did you mean 'folder'"),
        (lambda c: setattr(c.data, "limit", 999), "--data.limit must be 1 to 10"),
        (lambda c: setattr(c.train, "epochs", 0), "--epochs must be at least 1, not 0"),
        (lambda c: setattr(c.train, "lr", -1.0), "--lr must be above 0"),
        (lambda c: setattr(c.train, "clip", -1.0), "--clip-grad must be above 0"),
        (lambda c: setattr(c.train, "warmup", -5), "--warmup must be at least 0, not -5"),
        (lambda c: setattr(c.train, "ema", 2.0), "--ema must be above 0 and at most 1"),
        (lambda c: setattr(c.data, "workers", -1), "--data.workers must be at least 0"),
        (lambda c: setattr(c, "seed", -1), "--seed must be at least 0"),
        (lambda c: setattr(c, "image_size", 0), "image_size must be"),
        (lambda c: setattr(c.train, "cache_features", True), "--cache-features needs --freeze-encoder"),
        (lambda c: setattr(c.train, "cache_crop", 0.5), "--cache-crop needs --cache-features"),
        (lambda c: setattr(c.train, "cache_crop", 1.5), "--cache-crop must be above 0 and at most 1"),
        (lambda c: setattr(c.train, "device", "tpu"), "--device must be cpu, cuda or mps, not 'tpu'"),
        (lambda c: setattr(c.train, "precision", "fp16"), "fp16 needs a GPU"),
        (lambda c: setattr(c.decoder, "name", "depict_as"), "unknown decoder 'depict_as'"),
        (lambda c: setattr(c.encoder, "pretrained", "missing.pth"), "has no pretrained weights"),
        (lambda c: setattr(c.data, "factors", (2.0, 0.5)), "--data.scale-range must be two rising numbers"),
    ],
)
def test_settings_that_cannot_be_are_told_in_one_line(pictures, tmp_path, change, message):
    wrong = config(pictures)
    change(wrong)
    with pytest.raises(UserError, match=message) as caught:
        training.train(wrong, tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_damaged_picture_stops_the_training_before_it_starts(pictures, tmp_path):
    import shutil

    shutil.copytree(pictures, tmp_path / "copy")
    (tmp_path / "copy" / "masks" / "train" / "train3.png").write_bytes(b"")
    result = run(command(tmp_path / "copy", tmp_path / "run"))
    assert result.returncode == 2
    assert "train3.png" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


@pytest.fixture(scope="module")
def uninterrupted(pictures, tmp_path_factory):
    """Weights and losses of a run of 40 epochs that nobody disturbed."""
    out = tmp_path_factory.mktemp("uninterrupted")
    result = run(command(pictures, out, "--epochs", "40", "--save-every", "2"))
    assert result.returncode == 0, result.stderr
    return out


def assert_same_weights(first, second):
    for name in ("last.safetensors", "model.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert losses(first) == losses(second)


def wait_until(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.0005)


@pytest.mark.parametrize("moment", ["during a save", "early", "late"])
def test_killed_and_started_again_it_ends_with_the_same_weights(pictures, tmp_path, uninterrupted, moment):
    words = command(pictures, tmp_path, "--epochs", "40", "--save-every", "2")
    chance = random.Random(moment)
    metrics, state = tmp_path / "metrics.jsonl", tmp_path / "state"
    for _ in range(2):
        process = start(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        lines = len(metrics.read_text().splitlines()) if metrics.exists() else 0
        if moment == "during a save":
            wait_until(lambda: state.exists() and any(state.glob(".last.pt*.part*")), process)
        else:
            enough = lines + (1 if moment == "early" else 4)
            wait_until(lambda n=enough: metrics.exists() and len(metrics.read_text().splitlines()) >= n, process)
            time.sleep(chance.random() * 0.1)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL  # it was still at work
    result = run(words)
    assert result.returncode == 0, result.stderr
    assert_same_weights(tmp_path, uninterrupted)


def test_ctrl_c_keeps_everything_and_the_same_command_goes_on(pictures, tmp_path, uninterrupted):
    words = command(pictures, tmp_path, "--epochs", "40", "--save-every", "2")
    process = start(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_until(lambda: (tmp_path / "state" / "last.pt").exists(), process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on" in error.splitlines()[-1]
    assert "Traceback" not in error
    result = run(words)
    assert result.returncode == 0, result.stderr
    assert_same_weights(tmp_path, uninterrupted)


def test_a_full_disk_is_one_line_and_the_last_good_state_stays(pictures, tmp_path, uninterrupted):
    words = command(pictures, tmp_path, "--epochs", "40", "--save-every", "2", workers=0)
    process = start(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    state = tmp_path / "state" / "last.pt"
    wait_until(state.exists, process)
    process.kill()
    process.wait()
    good = state.read_bytes()

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        most = len(good) // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    result = run(words, preexec_fn=limit)
    assert result.returncode == 2
    assert "cannot write" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert state.read_bytes() == good
    result = run(words)
    assert result.returncode == 0, result.stderr
    assert_same_weights(tmp_path, uninterrupted)


@pytest.mark.parametrize("more", [[], ["--grad-accum", "2"], ["--batch", "10", "--grad-accum", "4"]], ids=str)
def test_two_processes_give_the_losses_of_one(pictures, tmp_path, more):
    """Ten images in batches of 3: shares are uneven, and in the last step of an epoch one process has none."""
    words = command(pictures, tmp_path / "two", "--encoder.drop-path", "0", workers=0)[3:]
    several = torchrun(*words, "--epochs", "3", "--batch", "3", *more, cwd=tmp_path)
    assert several.returncode == 0, several.stderr[-3000:]
    alone = command(pictures, tmp_path / "one", "--encoder.drop-path", "0", workers=0)
    batch = ["--batch", "10"] if "--batch" in more else ["--batch", "3"]
    one = run([*alone, "--epochs", "3", *batch])
    assert one.returncode == 0, one.stderr
    two = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    assert {line["processes"] for line in two if "processes" in line} == {2}
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    scores = [[line["miou"] for line in read_metrics(tmp_path / n) if "miou" in line] for n in ("one", "two")]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_accelerate_launch_starts_it_unchanged(pictures, tmp_path):
    """One process: on CPUs Accelerate's own launcher needs MPI for more, torchrun does not."""
    launcher = ["accelerate.commands.launch", "--cpu", "--num-processes", "1", "--num-machines", "1"]
    launcher += ["--mixed-precision", "no", "--dynamo-backend", "no"]
    words = command(pictures, tmp_path / "run", "--epochs", "1", workers=0)[2:]
    result = run([sys.executable, "-m", *launcher, "-m", *words], cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    depict.load(tmp_path / "run")


def test_the_command_starts_from_a_configuration_and_flags_go_over_it(pictures, tmp_path):
    (tmp_path / "mine.yaml").write_text("train: {epochs: 1, batch: 5}\ndecoder: {layers: 1, heads: 2, head_dim: 8}\n")
    words = command(pictures, tmp_path / "run", "--config", str(tmp_path / "mine.yaml"), "--decoder.heads", "3")
    words = [word for word in words if word not in ("--batch",)]
    words.remove("4")
    result = run(words)
    assert result.returncode == 0, result.stderr
    saved = depict.load(tmp_path / "run").config
    assert (saved.train.epochs, saved.train.batch, saved.decoder.heads) == (1, 5, 3)


def test_a_wrong_key_in_a_configuration_is_named(tmp_path):
    (tmp_path / "mine.yaml").write_text("decoder: {layer: 1}\n")
    result = run([sys.executable, "-m", "depict.cli", "train", "--out", "x", "--config", str(tmp_path / "mine.yaml")])
    assert result.returncode == 2
    assert "'layer'. Did you mean 'layers'?" in result.stderr
    assert not Path("x").exists()


def test_numbers_too_small_to_be_normal_count_as_zero_while_a_training_runs(pictures, tmp_path, monkeypatch):
    def product():
        return float(torch.tensor([1e-30]) * torch.tensor([1e-10]))

    seen = []
    step = training._Trainer._step
    monkeypatch.setattr(training._Trainer, "_step", lambda *arguments: seen.append(product()) or step(*arguments))
    training.train(config(pictures, epochs=1), tmp_path / "run")
    assert seen
    assert set(seen) == {0.0}
    assert product() > 0
