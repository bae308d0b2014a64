"""The shipped configurations: each is a row of the paper, and a user's file may stand on them."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from depict import UserError
from depict.cli import main
from depict.config.paper import DIMS, ROWS
from depict.config.presets import FOLDER, load_config, load_settings, merge, preset_names
from depict.config.schema import Config
from depict.costs import decoder_costs
from depict.data import dataset_class
from depict.decoders import decoder_options
from depict.io.yaml import from_dict, read_yaml, to_dict, write_yaml

ENCODERS = {
    "ViT-T": "vit_tiny_patch16_384",
    "ViT-S": "vit_small_patch16_384",
    "ViT-B": "vit_base_patch16_384",
    "ViT-L": "vit_large_patch16_384",
}
TABLE_1, TABLE_2, LEFT, RIGHT = dict.fromkeys(row.table for row in ROWS)
ROW_OF = {  # name: table, label, backbone and side of its row
    **{
        f"ade20k/{decoder}_vit_{size.lower()}": (TABLE_1, label, f"ViT-{size}", 640 if size == "L" else 512)
        for decoder, label in (("segmenter", "Segmenter"), ("depict_ca", "DEPICT-CA"), ("depict_sa", "DEPICT-SA"))
        for size in "TSBL"
    },
    "ade20k/depict_sa_vit_l_512": (TABLE_1, "DEPICT-SA", "ViT-L", 512),
    "cityscapes/segmenter_vit_l": (TABLE_2, "Cityscapes, Segmenter", "ViT-L", 768),
    "cityscapes/depict_sa_vit_l": (TABLE_2, "Cityscapes, DEPICT-SA", "ViT-L", 768),
    "pascal_context/segmenter_vit_l": (TABLE_2, "Pascal Context, Segmenter", "ViT-L", 480),
    "pascal_context/depict_sa_vit_l": (TABLE_2, "Pascal Context, DEPICT-SA", "ViT-L", 480),
    "ade20k/ablation_mssa_ista": (LEFT, "MSSA + ISTA", "ViT-S", 512),
    "ade20k/ablation_heads_1": (LEFT, "heads = 1", "ViT-S", 512),
    "ade20k/ablation_heads_5": (LEFT, "heads = 5", "ViT-S", 512),
    "ade20k/ablation_layers_1": (LEFT, "layers = 1", "ViT-S", 512),
    "ade20k/ablation_layers_3": (LEFT, "layers = 3", "ViT-S", 512),
    "ade20k/ablation_dropout": (LEFT, "dropout = 0.1", "ViT-S", 512),
    "ade20k/ablation_mssa": (LEFT, "MSSA only", "ViT-S", 512),
    "ade20k/ablation_ista": (LEFT, "ISTA only", "ViT-S", 512),
    "ade20k/ablation_mssa_mlp": (LEFT, "MSSA + MLP", "ViT-S", 512),
    "ade20k/ablation_mhsa_ista": (LEFT, "MHSA + ISTA", "ViT-S", 512),
    "ade20k/ablation_mhsa_mlp": (LEFT, "MHSA + MLP (Segmenter)", "ViT-S", 512),
    "ade20k/ablation_depict_sa": (LEFT, "DEPICT-SA", "ViT-S", 512),
    **{
        f"ade20k/heads_{heads}x{dim}_vit_{size}": (RIGHT, f"{heads} x {dim}", f"ViT-{size.upper()}", 512)
        for size, sizes in (
            ("s", ((1, 300), (2, 150), (3, 100), (4, 75), (1, 384))),
            ("b", ((3, 50), (3, 100), (3, 150), (3, 200), (3, 250))),
        )
        for heads, dim in sizes
    },
}


def row_of(name):
    return next(row for row in ROWS if (row.table, row.label, row.backbone, row.side) == ROW_OF[name])


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def message_of(name_or_path):
    with pytest.raises(UserError) as caught:
        load_config(name_or_path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_computed_row_has_a_configuration_and_every_configuration_of_the_paper_a_row():
    published = {"ade20k", "cityscapes", "pascal_context"}
    assert {name for name in preset_names() if name.split("/")[0] in published} == set(ROW_OF)
    computed = [(row.table, row.label, row.backbone, row.side) for row in ROWS if row.decoder]
    assert sorted(ROW_OF.values()) == sorted(computed)


@pytest.mark.parametrize("name", ROW_OF)
def test_a_configuration_builds_the_decoder_of_its_row(name):
    config, row = load_config(name), row_of(name)
    assert config.encoder.name == ENCODERS[row.backbone]
    assert (config.decoder.name, config.image_size) == (row.decoder, row.side)
    assert len(dataset_class(config.data.name).classes) == row.classes
    assert decoder_options(row.decoder) | config.decoder.options() == decoder_options(row.decoder) | row.options
    cost = {"dim": DIMS[row.backbone], "num_classes": row.classes, "grid": (row.side // 16, row.side // 16)}
    assert decoder_costs(config.decoder.name, **cost, **config.decoder.options()) == decoder_costs(
        row.decoder, **cost, **row.options
    )


@pytest.mark.parametrize("name", ROW_OF)
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
    assert config.decoder.dropout == (0.1 if dropped else 0.0)


def test_the_encoders_weights_are_those_of_the_augreg_family_by_default():
    from timm.models import get_pretrained_cfg

    assert {get_pretrained_cfg(encoder).tag for encoder in ENCODERS.values()} == {"augreg_in21k_ft_in1k"}


@pytest.mark.parametrize("name", preset_names())
def test_a_configuration_survives_the_way_through_yaml(name, tmp_path):
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
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["depict"]
    installed = {path for pattern in patterns for path in FOLDER.parent.glob(pattern)}
    files = {path for path in FOLDER.rglob("*") if path.is_file()}
    assert files <= installed
    assert len(files) == len(preset_names()) + len(list(FOLDER.glob("*/base.yaml")))


def test_info_lists_every_configuration(capsys):
    main(["info"])
    assert set(preset_names()) <= set(capsys.readouterr().out.split())
    main(["info", "--json"])
    assert json.loads(capsys.readouterr().out)["configurations"] == preset_names()


def test_a_file_changes_what_it_says_of_its_base_and_no_more(tmp_path):
    mine = write(tmp_path / "mine.yaml", "base: ade20k/depict_sa_vit_s\ndecoder: {layers: 5}\nseed: 3\n")
    expected = load_config("ade20k/depict_sa_vit_s")
    expected.decoder.layers, expected.seed = 5, 3
    assert load_config(mine) == expected


def test_bases_follow_one_another_from_the_folder_of_each_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "deep" / "first.yaml", "base: ../second.yaml\nseed: 1\n")
    write(tmp_path / "second.yaml", "base: deep/third.yaml\nseed: 2\nimage_size: 64\n")
    write(tmp_path / "deep" / "third.yaml", "image_size: 32\ndecoder: {heads: 7}\n")
    assert load_settings("deep/first.yaml") == {"image_size": 64, "decoder": {"heads": 7}, "seed": 1}


def test_a_shipped_name_goes_before_a_file_of_that_name(tmp_path, monkeypatch):
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


def test_a_run_is_repeated_from_its_own_config_file(tmp_path):
    config = load_config("ade20k/depict_sa_vit_t")
    header = {"format": 1, "stamp": {"seed": 0}}
    write_yaml(tmp_path / "config.yaml", header | to_dict(config) | {"classes": {"sky": [0, 0, 0]}})
    assert load_config(str(tmp_path / "config.yaml")) == config


@pytest.mark.parametrize("bases", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "b"}])
def test_bases_in_a_circle_are_refused(bases, tmp_path):
    for name, base in bases.items():
        write(tmp_path / f"{name}.yaml", f"base: {base}.yaml\n")
    message = message_of(str(tmp_path / "a.yaml"))
    assert "a configuration needs an end" in message
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
def test_mistakes_in_a_file_are_named_with_the_file(text, message, tmp_path):
    path = write(tmp_path / "mine.yaml", text)
    assert message_of(path).startswith(message.format(path=path))


def test_a_mistake_in_a_base_is_named_with_the_base(tmp_path):
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
def test_an_unknown_configuration_is_named_with_the_nearest(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message_of(name).startswith(message)
