"""The table of what numeric settings may be."""

import dataclasses
import math
import typing

import pytest

from depict import UserError
from depict.config.ranges import RANGES, Range, check_ranges
from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, NeckConfig, TrainConfig
from depict.io.yaml import from_dict


def numeric_settings():
    """The names of all settings that may be numbers."""
    sections = {"encoder": EncoderConfig, "decoder": DecoderConfig, "data": DataConfig, "train": TrainConfig}
    sections["neck"] = NeckConfig
    for section, kind in {"": Config, **sections}.items():
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            words = str(hints[field.name])
            if field.name not in sections and ("int" in words or "float" in words):
                yield f"{section}.{field.name}".removeprefix(".")


def config_with(name, value):
    config = Config()
    *section, key = name.split(".")
    setattr(getattr(config, section[0]) if section else config, key, value)
    return config


def test_every_numeric_setting_has_a_range():
    assert set(numeric_settings()) == set(RANGES)


def test_the_defaults_are_in_range():
    check_ranges(Config())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", RANGES)
def test_no_setting_may_be_nan_or_infinite(name, value):
    with pytest.raises(UserError, match=r"^--[\w.-]+ must be .*, not -?(nan|inf)\.$"):
        check_ranges(config_with(name, value))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("train.epochs", 0, "--epochs must be at least 1, not 0."),
        ("train.lr", -1.0, "--lr must be above 0, not -1.0."),
        ("train.lr", 0.0, "--lr must be above 0, not 0.0."),
        ("train.clip_grad", -1.0, "--clip-grad must be above 0, not -1.0."),
        ("train.warmup", -5, "--warmup must be at least 0, not -5."),
        ("train.ema", 2.0, "--ema must be above 0 and at most 1, not 2.0."),
        ("train.cache_crop", 1.5, "--cache-crop must be above 0 and at most 1, not 1.5."),
        ("data.workers", -1, "--data.workers must be at least 0, not -1."),
        ("data.holdout", 1.0, "--data.holdout must be above 0 and below 1, not 1.0."),
        ("data.scale_range", (0.0, 2.0), "--data.scale-range must be above 0, not (0.0, 2.0)."),
        ("encoder.drop_path", 1.0, "--encoder.drop-path must be at least 0 and below 1, not 1.0."),
        ("decoder.layers", 0, "--decoder.layers must be at least 1, not 0."),
        ("decoder.logit_gain", math.nan, "--decoder.logit-gain must be a finite number, not nan."),
        ("image_size", 0, "--image-size must be at least 1, not 0."),
        ("image_size", (32, -1), "--image-size must be at least 1, not (32, -1)."),
        ("seed", -1, "--seed must be at least 0 and at most 18446744073709551615, not -1."),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_flag(name, value, message):
    with pytest.raises(UserError) as caught:
        check_ranges(config_with(name, value))
    assert str(caught.value) == message


def test_yaml_passes_the_same_table():
    with pytest.raises(UserError, match="--lr must be above 0, not nan"):
        check_ranges(from_dict(Config, {"train": {"lr": math.nan}}, "here"))


def test_whole_numbers_of_any_size_are_compared():
    assert 10**400 in Range(1)
    assert 10**400 not in Range(0, 2**64 - 1)
