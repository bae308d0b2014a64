"""Runs on disk: saved models come back unchanged, and damaged folders are refused in one line."""

from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import depict
from depict import UserError
from depict.decoders import DECODERS
from depict.runs import FORMAT, Metrics, save
from support.tiny_model import tiny_model


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_metrics_that_cannot_be_written_are_named(tmp_path):
    metrics = Metrics(tmp_path, 0)
    metrics.path.unlink()
    metrics.path.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"^cannot write '.*metrics\.jsonl': No space left on device$"):
        metrics.write(iteration=1, loss=0.5)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_saved_model_comes_back_with_the_same_logits(tmp_path, decoder):
    model, images = tiny_model(decoder), torch.randn(1, 3, 32, 48)
    save(model, tmp_path / "run")
    loaded = depict.load(tmp_path / "run")
    assert torch.equal(loaded(images), model(images))
    assert loaded.classes == model.classes
    assert loaded.palette == model.palette
    assert loaded.image_size == model.image_size
    assert loaded.config.decoder == model.config.decoder
    assert not loaded.training


def test_a_run_records_its_format_versions_and_settings(tmp_path):
    save(tiny_model(), tmp_path)
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert written["format"] == FORMAT
    assert written["stamp"]["depict"] == depict.__version__
    assert written["stamp"]["torch"] == torch.__version__.split("+")[0]
    sizes = {"layers": 1, "heads": 3, "head_dim": 100}
    assert written["decoder"] == {"name": "depict_sa", **sizes, "dropout": 0.0, "logit_gain": 1.0}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "model.safetensors"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    save(tiny_model(), folder)
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
        config["classes"]["zebra"] = [1, 2, 3]
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
        ("other classes", "It is for 8 classes, the model has 9"),
        ("newer format", f"has format 99, this depict reads format {FORMAT}"),
        ("misspelt key", "unknown setting in .* 'layer'. Did you mean 'layers'"),
        ("wrong type", "'three' is not of type"),
        ("missing tensor", "it lacks 'decoder.norm.weight'"),
        ("spare tensor", "it has 'decoder.spare', which the model does not have"),
        ("no mapping", "must hold a mapping"),
    ],
)
def test_a_damaged_run_is_refused_in_one_line(run, tmp_path, what, message):
    damage(run, tmp_path, what)
    with pytest.raises(UserError, match=message) as caught:
        depict.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_exported_model_is_not_loaded_as_a_run(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"a graph")
    with pytest.raises(UserError, match="m.onnx' is an exported model, .*: give its run instead") as caught:
        depict.load(tmp_path / "m.onnx")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="absent.onnx' is not a run folder"):
        depict.load(tmp_path / "absent.onnx")
