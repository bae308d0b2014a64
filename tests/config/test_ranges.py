"""The table of what numeric settings may be."""

import math

import pytest

import depict
from depict import UserError
from depict.cli import main
from depict.config.presets import load_config
from depict.config.ranges import RANGES, Range, check_ranges, flag, whole
from depict.config.schema import Config
from depict.decoders import decoder_options
from support.bad_settings import as_config, as_flags, as_yaml, bad_numbers, numeric_settings


def test_every_numeric_setting_has_a_range_with_two_ends():
    assert set(numeric_settings()) == set(RANGES)
    assert all(math.isfinite(allowed.low) and math.isfinite(allowed.high) for allowed in RANGES.values())


def test_the_defaults_are_in_range():
    check_ranges(Config())


@pytest.mark.parametrize("name", list(numeric_settings()))
def test_a_bad_number_is_refused_in_one_line_in_python(name):
    for number in [*bad_numbers(name), True, "1"]:
        with pytest.raises(UserError) as caught:
            check_ranges(as_config(name, number))
        assert str(caught.value).startswith(f"{flag(name)} must be ")
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", list(numeric_settings()))
def test_a_bad_number_is_refused_in_one_line_in_a_file(tmp_path, name):
    path = tmp_path / "settings.yaml"
    for number in bad_numbers(name):
        path.write_text(as_yaml(name, number))
        with pytest.raises(UserError) as caught:
            load_config(str(path))
        # A number out of range, or a fraction where a whole number belongs.
        starts = (f"'{path}', {name} must be ", f"'{path}', {name.replace('.', ', ')}: ")
        assert str(caught.value).startswith(starts)
        assert len(str(caught.value)) < len(str(path)) + 200


@pytest.mark.slow
@pytest.mark.parametrize("name", list(numeric_settings()))
def test_a_bad_number_is_refused_in_one_line_on_the_command_line(tmp_path, capsys, name):
    for number in bad_numbers(name):
        words = ["train", "--out", str(tmp_path / "run"), "--data", "scenes", *as_flags(name, number)]
        try:
            assert main(words) == 2
        except SystemExit as stop:  # tyro's own box: the flag is not of the right type
            assert stop.code == 2
        printed = capsys.readouterr()
        assert flag(name) in printed.err + printed.out
        assert "Traceback" not in printed.err
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e300, 2**63, 10**400])
@pytest.mark.parametrize("option", [*decoder_options("depict_ca"), "image_size", "drop_path", "num_classes"])
def test_a_bad_number_is_refused_in_one_line_by_create_model(option, value):
    options = {"encoder": "vit_tiny_patch16_224", "num_classes": 3, "image_size": 32} | {option: value}
    with pytest.raises(UserError, match=option.replace("_", ".")):
        depict.create_model("depict_ca", **options)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("train.epochs", 0, "--epochs must be at least 1, not 0."),
        ("train.lr", -1.0, "--lr must be above 0, not -1.0."),
        ("train.lr", 0.0, "--lr must be above 0, not 0.0."),
        ("train.lr", math.nan, "--lr must be a number, not nan."),
        ("train.clip_grad", -1.0, "--clip-grad must be above 0, not -1.0."),
        ("train.warmup", -5, "--warmup must be at least 0, not -5."),
        ("train.ema", 2.0, "--ema must be at most 1, not 2.0."),
        ("train.cache_crop", 1.5, "--cache-crop must be at most 1, not 1.5."),
        ("data.workers", -1, "--data.workers must be at least 0, not -1."),
        ("data.workers", 2**63, "--data.workers must be at most 1024, not 9223372036854775808."),
        ("data.holdout", 1.0, "--data.holdout must be below 1, not 1.0."),
        ("data.scale_range", (0.0, 2.0), "--data.scale-range must be at least 0.01, not (0.0, 2.0)."),
        ("encoder.drop_path", 1.0, "--encoder.drop-path must be below 1, not 1.0."),
        ("encoder.depth", 10_000_000, "--encoder.depth must be at most 256, not 10000000."),
        ("decoder.layers", 0, "--decoder.layers must be at least 1, not 0."),
        ("image_size", 0, "--image-size must be at least 1, not 0."),
        ("image_size", (32, -1), "--image-size must be at least 1, not (32, -1)."),
        ("seed", -1, "--seed must be at least 0, not -1."),
        ("seed", 0.5, "--seed must be a whole number, not 0.5."),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_flag(name, value, message):
    with pytest.raises(UserError) as caught:
        check_ranges(as_config(name, value))
    assert str(caught.value) == message


def test_whole_numbers_of_any_size_are_compared():
    assert Range(1, math.inf).problem(10**400) is None
    assert whole(0, 2**64).problem(10**400) == "at most 18446744073709551616"
