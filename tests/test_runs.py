"""A run on disk: written, read back, locked, compared."""

import os
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import depict
from depict import UserError
from depict.config.resolve import resolve
from depict.config.schema import Config, DataConfig, DecoderConfig
from depict.runs import (
    FORMAT,
    Metrics,
    check_same,
    load_tensors,
    lock_run,
    read_metrics,
    refuse_difference,
    save,
    save_config,
    save_tensors,
)
from support.tiny_model import tiny_model


def test_an_older_run_is_refused_with_what_to_do(tmp_path):
    save(tiny_model(), tmp_path)
    values = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert values["format"] == FORMAT == 3
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values | {"format": 2}))
    with pytest.raises(UserError) as caught:
        depict.load(tmp_path)
    assert str(caught.value) == (
        f"'{tmp_path / 'config.yaml'}' has format 2, this depict reads format 3: train again, or use the depict that "
        "wrote it."
    )


def test_a_saved_model_is_loaded_with_its_classes_and_weights(tmp_path):
    model = tiny_model()
    save(model, tmp_path)
    loaded = depict.load(tmp_path)
    assert (loaded.classes, loaded.palette) == (model.classes, model.palette)
    state = load_file(tmp_path / "model.safetensors")
    assert all(value.equal(state[name]) for name, value in loaded.state_dict().items())


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_for_a_folder_is_refused(tmp_path, path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another --out") as caught, lock_run(tmp_path / path):
        pass
    assert str(tmp_path / path) in str(caught.value)


def test_a_locked_folder_is_refused_and_free_afterwards(tmp_path):
    with lock_run(tmp_path), pytest.raises(UserError, match="another training is running in"), lock_run(tmp_path):
        pass
    with lock_run(tmp_path):
        pass


def test_settings_that_do_not_change_the_result_may_change_on_resume(tmp_path):
    model = tiny_model()
    model.config = resolve(Config(decoder=DecoderConfig("linear"), data=DataConfig("scenes"), image_size=32)).config
    save_config(model, tmp_path)
    again = resolve(Config(decoder=DecoderConfig("linear"), data=DataConfig("scenes", workers=7), image_size=32)).config
    again.train.device, again.train.save_every = "cuda", 10
    check_same(tmp_path, again)
    again.train.lr = 0.5
    with pytest.raises(UserError, match=r"was trained with train.lr = 0.0002, not 0.5: give the same settings"):
        check_same(tmp_path, again)


def test_many_differences_are_counted(tmp_path):
    first, second = Config(), Config(seed=1, image_size=64)
    second.train.lr, second.train.batch, second.train.epochs, second.train.warmup = 1.0, 1, 1, 1
    with pytest.raises(UserError, match="and 2 more: give the same settings to resume, or another --out"):
        refuse_difference(tmp_path, first, second)


def flipped(content, bit):
    """Bytes in which one bit has changed."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_flipped_bit_of_a_weight_file_is_noticed(tmp_path):
    path = tmp_path / "model.safetensors"
    save_tensors({"a": torch.tensor([1.5, -2.0]), "b": torch.tensor(3)}, path)
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 17):
        path.write_bytes(flipped(content, bit))
        with pytest.raises(UserError, match="model.safetensors' (is damaged|has no checksum)"):
            load_tensors(path)
    path.write_bytes(content)
    assert {name: value.tolist() for name, value in load_tensors(path).items()} == {"a": [1.5, -2.0], "b": 3}


def test_weights_without_a_checksum_are_refused(tmp_path):
    save(tiny_model(), tmp_path)
    save_file(tiny_model().state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"has no checksum: it is damaged, or depict did not write it \(see"):
        depict.load(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        b"not JSON",
        b"[1, 2]",
        b"7",
        b'{"loss": 0.5}',
        b'{"iteration": "2"}',
        b'{"iteration": null}',
        b'{"iteration": true}',
        b'{"iteration": 2, "miou": "high"}',
        b'{"iteration": 2, "miou": {}}',
        b'{"iteration": 2, "loss": "\xff"}',
        b'{"iteration": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b"\0\0",
    ],
    ids=lambda line: repr(line[:20]),
)
def test_a_line_of_metrics_that_no_training_wrote_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 1}\n' + line + b'\n{"iteration": 3}\n')
    with pytest.raises(UserError) as caught:
        Metrics(tmp_path, 2)
    assert str(caught.value) == f"line 2 of '{path}' was not written by a training: remove it to continue."
    path.write_bytes(b'{"iteration": 1}\n\n' + line)  # as the last line it may be one that a crash has cut
    assert read_metrics(tmp_path) == [{"iteration": 1}]


def test_metrics_after_the_state_are_dropped_and_a_cut_line_is_skipped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n{"iteration": 2}\n{"iteration": 3}\n{"itera')
    assert [line["iteration"] for line in read_metrics(tmp_path)] == [1, 2, 3]
    Metrics(tmp_path, 2).write(iteration=3, loss=0.5)
    assert read_metrics(tmp_path) == [{"iteration": 1}, {"iteration": 2}, {"iteration": 3, "loss": 0.5}]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_metrics_that_cannot_be_written_are_named(tmp_path):
    metrics = Metrics(tmp_path, 0)
    metrics.path.unlink()
    metrics.path.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"^cannot write '.*metrics\.jsonl': No space left on device$"):
        metrics.write(iteration=1, loss=0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": {"sky": [0, 0, 256]}}, "a color must be red, green and blue, each from 0 to 255, not"),
        ({"classes": {"sky": [0, 0, -1]}}, "a color must be"),
        ({"classes": {"sky": [0, 0, float("nan")]}}, "a color must be"),
        ({"classes": {"sky": [0, 0]}}, "a color must be"),
        ({"classes": {"sky": [0, 0, "x"]}}, "a color must be"),
        ({"classes": {"sky": "blue"}}, "does not list its classes as `name: "),
        ({"classes": ["sky"]}, "does not list its classes as `name: "),
        ({"classes": {}}, "there must be 1 to 32768 classes, not 0"),
        ({"classes": {1: [0, 0, 0], "1": [0, 0, 1]}}, "two classes have the same name"),
        ({"classes": {"n" * 100_000: [0, 0, 0]}}, "the class name 'nnnnnnnnnnnnnnnnnnnn...' has 100000 characters"),
        ({"classes": {"sky\nroad": [0, 0, 0]}}, r"the class name 'sky.nroad' holds control characters"),
        ({"train": {"lr": float("nan")}}, r", train.lr must be a number, not nan\.$"),
        ({"decoder": {"name": "linear"}, "image_size": [32, 10**9]}, ", image_size must be at most 16384"),
        ({"encoder": {"depth": 10_000_000}}, ", encoder.depth must be at most 256, not 10000000"),
    ],
)
def test_a_damaged_or_hostile_configuration_is_refused_in_one_line(tmp_path, changes, message):
    save(tiny_model(), tmp_path)
    values = yaml.safe_load((tmp_path / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values | changes))
    with pytest.raises(UserError, match=message) as caught:
        depict.load(tmp_path)
    assert str(caught.value).startswith(f"'{tmp_path / 'config.yaml'}'")
    assert len(str(caught.value)) < len(str(tmp_path)) + 250


def test_a_model_far_larger_than_its_weights_is_refused_before_it_is_built(tmp_path):
    save(tiny_model(), tmp_path)
    values = yaml.safe_load((tmp_path / "config.yaml").read_text())
    for section, changes in {
        "encoder": {"name": "vit_giant_patch14_224", "dim": 8192, "depth": 100, "patch_size": None},
        "decoder": {"name": "depict_sa", "layers": 100, "heads": 1000, "head_dim": 16000},
    }.items():
        hostile = values | {section: {key: value for key, value in changes.items() if value is not None}}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(hostile))
        with pytest.raises(UserError, match=f"the {section} '.*' has [0-9,]+ parameters, (far more|which do not fit)"):
            depict.load(tmp_path)


def test_a_run_in_a_folder_that_is_not_utf8_is_loaded(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    save(tiny_model(), folder)
    assert depict.load(folder).classes == tiny_model().classes
