"""The shipped configurations: each is a row of the paper, and a user's file may use one as its base."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from depict import UserError
from depict.config.paper import BACKBONES, MASKFORMER, paper_rows
from depict.config.presets import FOLDER, load_config, load_settings, merge, preset_names
from depict.config.schema import Config
from depict.data import dataset_class
from depict.io.yaml import from_dict, read_yaml, to_dict, write_yaml


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def message_of(name_or_path):
    with pytest.raises(UserError) as caught:
        load_config(name_or_path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_configuration_is_a_row_of_the_paper_and_every_row_has_one():
    assert sorted(row.config for row in paper_rows()) == preset_names()


def test_a_row_shows_the_model_of_its_configuration():
    row = next(row for row in paper_rows() if row.config == "pascal_context/depict_sa_vit_l")
    assert (row.backbone, row.dim, row.image_size, row.classes, row.grid) == ("ViT-L", 1024, 480, 60, (30, 30))
    assert (row.decoder, row.parameters, row.flops, row.miou) == ("depict_sa", "1.6", "5.6", "57.9/58.6")
    assert row.options == {"layers": 6, "heads": 4, "head_dim": 60, "dropout": 0.0}


LABELS = {
    "Segmenter": "segmenter",
    "DEPICT-SA": "depict_sa",
    "DEPICT-CA": "depict_ca",
    "CBT": "cbt",
    "MaskFormer": "maskformer",
}


@pytest.mark.parametrize("row", [pytest.param(row, id=row.config) for row in paper_rows()])
def test_the_label_of_a_row_describes_its_configuration(row):
    label = row.label.split(", ")[-1]
    if row.table.startswith("Ablation, right"):
        assert label == f"{row.options['heads']} x {row.options['head_dim']}"
        assert row.options["layers"] == 3
    elif label in LABELS:
        assert row.decoder == LABELS[label]
    elif " = " in label:
        name, value = label.split(" = ")
        assert row.options[name] == float(value)
        assert row.options["heads"] * row.options["head_dim"] == 150
    elif not label.startswith("MHSA + MLP"):
        attention, _, feedforward = label.removesuffix(" only").lower().partition(" + ")
        if label == "ISTA only":
            attention, feedforward = "none", "ista"
        assert (row.options["attention"], row.options["feedforward"]) == (attention, feedforward or "none")


@pytest.mark.parametrize("name", [name for name in preset_names() if name != MASKFORMER])
def test_a_configuration_trains_as_published(name):
    config = load_config(name)
    recipe = dataset_class(config.data.name).recipe
    assert name.startswith(f"{config.data.name}/")
    train, larger = config.train, config.image_size == 640
    assert (train.epochs, train.batch, train.lr) == (recipe.epochs, recipe.batch, recipe.lr)
    assert (train.optimizer, train.weight_decay, train.precision) == ("sgd", 0, "fp32")
    assert (train.warmup, train.layer_decay, train.clip_grad, train.grad_accum, train.ema) == (0, 1, None, 1, None)
    assert (train.loss, train.class_weights) == ("ce", "none")
    assert (config.encoder.pretrained, config.encoder.drop_path, config.encoder.freeze) == (True, 0.1, False)
    assert config.data.max_aspect == recipe.max_aspect
    assert (config.data.short_edge, config.image_size) == ((640, 640) if larger else (recipe.short_edge, recipe.crop))
    dropped = config.decoder.name == "segmenter" or name.endswith("_dropout")
    if config.decoder.name != "cbt":  # has no dropout
        assert config.decoder.dropout == (0.1 if dropped else 0.0)


def test_the_encoders_weights_are_those_of_the_augreg_family_by_default():
    from timm.models import get_pretrained_cfg

    vits = [encoder for encoder in BACKBONES if encoder.startswith("vit")]
    assert {get_pretrained_cfg(encoder).tag for encoder in vits} == {"augreg_in21k_ft_in1k"}


@pytest.mark.parametrize("name", preset_names())
def test_a_configuration_round_trips_through_yaml(name, tmp_path):
    config = load_config(name)
    write_yaml(tmp_path / "config.yaml", to_dict(config))
    assert load_config(str(tmp_path / "config.yaml")) == config
    assert from_dict(Config, read_yaml(tmp_path / "config.yaml"), "config.yaml") == config


def test_configurations_are_read_without_torch():
    code = (
        "import sys; from depict.config.presets import load_config, preset_names; "
        "list(map(load_config, preset_names())); "
        "sys.exit(str({'torch', 'timm', 'numpy'} & set(sys.modules)).replace('set()', '') or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_yaml_is_part_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["depict"]
    installed = {path for pattern in patterns for path in FOLDER.parent.glob(pattern)}
    files = {path for path in FOLDER.rglob("*") if path.is_file()}
    assert files <= installed
    assert len(files) == len(preset_names()) + len(list(FOLDER.glob("*/base.yaml")))


def test_a_file_overrides_only_the_settings_that_it_names(tmp_path):
    mine = write(tmp_path / "mine.yaml", "base: ade20k/depict_sa_vit_s\ndecoder: {layers: 5}\nseed: 3\n")
    expected = load_config("ade20k/depict_sa_vit_s")
    expected.decoder.layers, expected.seed = 5, 3
    assert load_config(mine) == expected


def test_the_path_of_a_base_is_relative_to_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "deep" / "first.yaml", "base: ../second.yaml\nseed: 1\n")
    write(tmp_path / "second.yaml", "base: deep/third.yaml\nseed: 2\nimage_size: 64\n")
    write(tmp_path / "deep" / "third.yaml", "image_size: 32\ndecoder: {heads: 7}\n")
    assert load_settings("deep/first.yaml") == {"image_size": 64, "decoder": {"heads": 7}, "seed": 1}


def test_a_shipped_name_wins_over_a_file_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "ade20k" / "depict_sa_vit_s", "seed: 9\n")
    assert load_config("ade20k/depict_sa_vit_s").seed == 0


def test_another_decoder_starts_from_its_own_defaults(tmp_path):
    mine = write(tmp_path / "mine.yaml", "base: ade20k/depict_ca_vit_s\ndecoder: {name: segmenter, layers: 1}\n")
    assert load_config(mine).decoder.options() == {"layers": 1}


def test_merging_changes_neither_side():
    settings, over = {"decoder": {"name": "depict_sa", "heads": 3}}, {"decoder": {"heads": 4}, "seed": 1}
    merged = merge(settings, over)
    assert merged == {"decoder": {"name": "depict_sa", "heads": 4}, "seed": 1}
    merged["decoder"]["heads"] = 9
    assert settings == {"decoder": {"name": "depict_sa", "heads": 3}}
    assert over == {"decoder": {"heads": 4}, "seed": 1}


def test_the_config_file_of_a_run_is_a_configuration(tmp_path):
    config = load_config("ade20k/depict_sa_vit_t")
    header = {"format": 1, "stamp": {"seed": 0}}
    write_yaml(tmp_path / "config.yaml", header | to_dict(config) | {"classes": {"sky": [0, 0, 0]}})
    assert load_config(str(tmp_path / "config.yaml")) == config


@pytest.mark.parametrize("bases", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "b"}])
def test_a_circular_base_is_refused(bases, tmp_path):
    for name, base in bases.items():
        write(tmp_path / f"{name}.yaml", f"base: {base}.yaml\n")
    message = message_of(str(tmp_path / "a.yaml"))
    assert message.startswith("circular base configuration: '")
    assert f"{list(bases)[-1]}.yaml' has the base '{list(bases.values())[-1]}.yaml'" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bse: ade20k/base", "unknown setting in '{path}': 'bse'. Did you mean 'base'?"),
        ("decodr: {}", "unknown setting in '{path}': 'decodr'. Did you mean 'decoder'?"),
        ("decoder: {layer: 2}", "unknown setting in '{path}', decoder: 'layer'. Did you mean 'layers'?"),
        ("train: {epoch: 2}", "unknown setting in '{path}', train: 'epoch'. Did you mean 'epochs'?"),
        ("train: {optimizer: adam}", "'{path}', train, optimizer: 'adam' is not"),
        ("base: 3", "'{path}', base: 3 is neither"),
        ("base: ade20k/depict_sa_vit", "'{path}', base: unknown configuration 'ade20k/depict_sa_vit'. Did you mean"),
        ("base: nowhere.yaml", "'{path}', base: there is no file 'nowhere.yaml'"),
        ("base: ..", "'{path}', base: '..' is a folder"),
        ("- 1", "'{path}' must hold a mapping"),
        ("decoder: &d {decoder: *d}", "unknown setting in '{path}', decoder: 'decoder'"),
    ],
)
def test_errors_in_a_file_name_the_file(text, message, tmp_path):
    path = write(tmp_path / "mine.yaml", text)
    assert message_of(path).startswith(message.format(path=path))


def test_errors_in_a_base_name_the_base(tmp_path):
    write(tmp_path / "base.yaml", "decoder: {layer: 2}")
    mine = write(tmp_path / "mine.yaml", "base: base.yaml\ndecoder: {layers: 2}")
    assert message_of(mine).startswith(f"unknown setting in '{tmp_path / 'base.yaml'}', decoder: 'layer'")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "ade20k/depict_sa_vit_xl",
            "unknown configuration 'ade20k/depict_sa_vit_xl'. Did you mean 'ade20k/depict_sa_vit_l'",
        ),
        ("depict_ca_vit_b", "unknown configuration 'depict_ca_vit_b'. Did you mean 'ade20k/depict_ca_vit_b'"),
        ("zzz", "unknown configuration 'zzz'. Give a YAML file or a name that `depict info` lists"),
        ("../configs/ade20k/base", "unknown configuration '../configs/ade20k/base'. "),
        ("missing.yaml", "there is no file 'missing.yaml'. `depict info` lists"),
        (".", "'.' is a folder, not a configuration"),
    ],
)
def test_an_unknown_configuration_is_refused_with_the_nearest_names(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message_of(name).startswith(message)
