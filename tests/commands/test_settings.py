"""The settings of a training as flags of `train` and `study`."""

import dataclasses
import re
from typing import Annotated

import pytest
from tyro.conf import arg

from depict.commands.settings import BASIC, base_config, value_of
from depict.config.flags import parse_and_call
from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, TrainConfig

SECTIONS = {"encoder": EncoderConfig, "decoder": DecoderConfig, "data": DataConfig, "train": TrainConfig}


def parse(*arguments: str, base: Config | None = None) -> Config:
    start = base or base_config([*arguments])
    parsed = []

    def main(config: str | None = None, settings: Annotated[Config, arg(name="")] = start) -> None:
        """Parse settings."""
        parsed.append(settings)

    parse_and_call(main, "depict", [*arguments])
    return parsed[0]


def test_without_flags_the_settings_are_those_of_the_base():
    base = Config(decoder=DecoderConfig("depict_ca", layers=4), image_size=(352, 480), seed=7)
    base.train.clip_grad = 0.5
    parsed = parse(base=base)
    assert parsed == base
    assert parsed is not base


def test_flags_override_single_settings_in_every_group():
    flags = (
        "--data folder --root photos --decoder linear --encoder.dim 64 --freeze-encoder --lr 1e-3 --image-size 32 48"
    )
    parsed = parse(*flags.split(), "--data.no-flip", "--data.scale-range", "1", "2", "--grad-accum", "3", "--seed", "2")
    assert (parsed.data.name, str(parsed.data.root), parsed.decoder.name) == ("folder", "photos", "linear")
    assert (parsed.encoder.dim, parsed.encoder.freeze, parsed.train.lr) == (64, True, 1e-3)
    assert (parsed.image_size, parsed.data.flip, parsed.data.scale_range) == ((32, 48), False, (1, 2))
    assert (parsed.train.grad_accum, parsed.seed) == (3, 2)


def test_none_clears_a_setting_of_the_base():
    base = Config(train=TrainConfig(clip_grad=1.0))
    assert parse("--clip-grad", "None", base=base).train.clip_grad is None


@pytest.mark.parametrize("flags", [["--config", "FILE"], ["--config=FILE"]])
def test_another_decoder_than_the_configuration_has_starts_from_its_own_defaults(flags, tmp_path):
    (tmp_path / "mine.yaml").write_text("decoder: {name: depict_sa, layers: 4}\ntrain: {epochs: 7}\n")
    flags = [word.replace("FILE", str(tmp_path / "mine.yaml")) for word in flags]
    assert base_config([*flags, "--decoder", "depict_sa"]).decoder.layers == 4
    other = base_config([*flags, "--decoder", "linear"])
    assert other.decoder == DecoderConfig("linear")
    assert other.train.epochs == 7


def test_the_last_value_of_a_repeated_flag_counts():
    assert value_of("--config", ["--config", "a", "--seed", "1", "--config", "b"]) == "b"
    assert value_of("--config", ["--seed", "1", "--config"]) is None


def test_every_setting_is_one_flag_with_help_and_the_basic_ones_come_first(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    _, first, *groups = re.split(r"^\W*(?=[\w ]*options )", text, flags=re.MULTILINE)
    shown = re.findall(r"^\W (--[\w.-]+)", first, re.MULTILINE)
    assert shown[1:7] == ["--data", "--root", "--decoder", "--encoder", "--encoder.pretrained", "--freeze-encoder"]
    assert len(shown) == 1 + len(BASIC)  # and --config
    titles = [group.partition(" options")[0] for group in groups]
    sections = ["encoder", "decoder", "data", "neck"]
    assert titles == ["optimization", "speed and memory", "validation and saving", *sections]
    for section, kind in SECTIONS.items():
        for field in dataclasses.fields(kind):
            flag = f"--{'' if section == 'train' else section + '.'}{field.name}".replace("_", "-")
            assert len(re.findall(rf"{re.escape(flag)}[ ,]", text)) == 1, flag


def test_the_run_that_a_file_starts_from_gives_the_model_below_the_settings_of_the_file(tmp_path):
    (tmp_path / "plain.yaml").write_text("train: {init: depict-ade20k}\n")
    (tmp_path / "other.yaml").write_text("train: {init: depict-ade20k}\ndecoder: {name: linear}\nimage_size: 64\n")
    expected = base_config(["--init", "depict-ade20k"])
    plain, other = (base_config(["--config", str(tmp_path / f"{name}.yaml")]) for name in ("plain", "other"))
    assert (plain.encoder, plain.neck, plain.decoder) == (expected.encoder, expected.neck, expected.decoder)
    assert (plain.stride, plain.image_size) == (8, (320, 320)) == (expected.stride, expected.image_size)
    assert (other.encoder, other.decoder, other.image_size) == (expected.encoder, DecoderConfig("linear"), 64)
    assert plain.train.init == "depict-ade20k"
