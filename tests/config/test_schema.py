"""Settings as YAML and back."""

from pathlib import Path

import pytest

from depict import UserError
from depict.config.schema import Config, DecoderConfig
from depict.io.yaml import from_dict, read_yaml, to_dict, write_yaml


def test_a_configuration_survives_a_round_trip_through_yaml(tmp_path):
    config = Config(decoder=DecoderConfig("depict_ca", layers=4), image_size=(352, 480), seed=7)
    config.data.root = Path("somewhere/else")
    write_yaml(tmp_path / "config.yaml", to_dict(config))
    assert from_dict(Config, read_yaml(tmp_path / "config.yaml"), "config.yaml") == config


def test_a_rate_may_be_written_without_a_point(tmp_path):
    (tmp_path / "a.yaml").write_text("train: {lr: 1e-3}")
    assert from_dict(Config, read_yaml(tmp_path / "a.yaml"), "a.yaml").train.lr == 1e-3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"decodr": {}}, "unknown setting in here: 'decodr'. Did you mean 'decoder'?"),
        ({"decoder": {"layrs": 3}}, "unknown setting in here, decoder: 'layrs'. Did you mean 'layers'?"),
        ({"seed": "one"}, "here, seed: 'one' is not of type int"),
        ({"seed": True}, "here, seed: True is not of type int"),
        ({"image_size": [1, 2, 3]}, r"here, image_size: \[1, 2, 3\] is not of type"),
        ({"decoder": 3}, "here, decoder: 3 is not of type DecoderConfig"),
    ],
)
def test_wrong_settings_are_named(values, message):
    with pytest.raises(UserError, match=message):
        from_dict(Config, values, "here")


def test_a_file_that_is_not_yaml_is_named(tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [1,\nb: }")
    with pytest.raises(UserError, match="bad.yaml' is not valid YAML") as caught:
        read_yaml(tmp_path / "bad.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: " + "[" * 1000, "a: 2001-99-99", "a: !!timestamp x", "a: !!bool x", "a: !!int x"])
def test_yaml_that_cannot_be_parsed_is_named(tmp_path, text):
    (tmp_path / "odd.yaml").write_text(text)
    with pytest.raises(UserError, match="odd.yaml' is (not valid YAML|nested too deeply)") as caught:
        read_yaml(tmp_path / "odd.yaml")
    assert "\n" not in str(caught.value)
