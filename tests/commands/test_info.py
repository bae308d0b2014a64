"""`depict info`: the paper's tables, and one model."""

import json

import pytest

from depict.cli import main
from depict.commands.info import rounds_to
from depict.config.presets import preset_names


@pytest.fixture
def tables(capsys):
    main(["info"])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "  DEPICT-SA                 ViT-S       512       0.407 M     0.4   +0.007      3.361    3.4  -0.039",
        "  MaskFormer                Swin-L      640      16.380 M      15   +1.380     41.137   47.7  -6.563 *",
        "  Cityscapes, DEPICT-SA     ViT-L       768       0.181 M     0.1   +0.081      2.444    2.4  +0.044 *",
        "  MSSA only                 ViT-S       512       0.175 M    0.18   -0.005      1.164",
        "  1 x 384                   ViT-S       512       0.503 M                       4.283",
    ],
)
def test_a_row_shows_our_figures_the_printed_ones_and_the_difference(tables, line):
    assert line in tables.split("\n")


def test_every_configuration_is_listed(tables):
    assert set(preset_names()) <= set(tables.split())


def test_json_has_exact_integers_and_the_printed_figures(capsys):
    main(["info", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["configurations"] == preset_names()
    row = next(row for row in report["rows"] if row["configuration"] == "ade20k/depict_sa_vit_s")
    assert (row["parameters"], row["multiply_adds"]) == (406575, 3361132320)
    assert (row["parameters_printed_millions"], row["multiply_adds_printed_billions"]) == ("0.4", "3.4")
    assert (row["miou_printed"], row["parameters_round_to_printed"]) == ("46.7/47.7", True)


@pytest.mark.parametrize(
    ("value", "printed", "expected"),
    [(349_000, "0.3", True), (350_000, "0.4", True), (350_000, "0.3", False), (1_165_000, "1", True), (5, "", None)],
)
def test_figures_are_rounded_to_the_printed_digits(value, printed, expected):
    assert rounds_to(value, printed, 6) is expected
