"""Untrusted YAML: refused in one short line, before much memory or time is spent."""

import itertools

import pytest

from depict import UserError
from depict.config.presets import load_config
from depict.interchange.variant import read_variant
from depict.io.yaml import MOST_BYTES, read_yaml

NAMES = "abcdefghijkl"
LAUGHS = "a: &a [lol, lol, lol]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in itertools.pairwise(NAMES)
)
"""Twelve lines that stand for 3 * 9^11 words."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("encoder: {name: '" + "x" * MOST_BYTES + "'}", "has more than 1,048,576 bytes"),
        ("? " + "x" * 100_000 + "\n: 1", "unknown setting in '.*': 'x{100}'"),
        ("seed: " + "9" * 5000, "is not valid YAML: Exceeds the limit"),
        ("seed: '" + "9" * 500_000 + "'", r"seed: '9+\.\.\.9+' is not of type int"),
        ("train: {lr: " + "9" * 400 + "}", "train.lr must be at most 10000, not inf"),
        (LAUGHS + "seed: *l", "unknown setting in '.*': 'a'"),
        (LAUGHS.replace("\n", "\n  ").replace("a: &a", "data:\n  a: &a", 1), "unknown setting in '.*, data: 'a'"),
        ("[" * 10_000, "is nested too deeply"),
        ("&a {x: *a}", "unknown setting in '.*': 'x'"),
        ("seed: &a [*a]", r"seed: \[\.\.\.\] is not of type int|seed: \[\[.*\]\] is not of type int"),
        ("seed: !!python/object/apply:os.system [id]", "is not valid YAML: could not determine a constructor"),
        ("seed: \x00", "is not valid YAML"),
        ("\ud800".encode("utf-16-le", "surrogatepass").decode("latin-1"), "is not valid YAML|must hold a mapping"),
    ],
    ids=range(13),
)
def test_a_hostile_file_is_refused_in_one_short_line(tmp_path, text, message):
    path = tmp_path / "settings.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=message) as caught:
        load_config(str(path))
    assert len(str(caught.value)) < 1000


def test_aliases_that_stand_for_gigabytes_are_shown_shortened(tmp_path):
    path = tmp_path / "settings.yaml"
    nested = "&x0 [lol, lol]"
    for level in range(1, 40):
        nested = f"&x{level} [{nested}, *x{level - 1}]"
    path.write_text(f"seed: {nested}\n")
    with pytest.raises(UserError, match="is not of type int") as caught:
        load_config(str(path))
    assert len(str(caught.value)) < 5000


def test_a_tuple_of_the_official_training_holds_numbers_only(tmp_path):
    path = tmp_path / "variant.yml"
    path.write_text("net_kwargs: {image_size: !!python/tuple [64, 32]}\n")
    assert read_variant(path, path).pair("net_kwargs", "image_size") == (64, 32)
    key = "!!python/tuple [1, 2]"
    for _ in range(3):
        key = f"!!python/tuple [{key}, {key}]"
    path.write_text(f"? {key}\n: 1\n")
    with pytest.raises(UserError, match="a tuple must hold numbers"):
        read_variant(path, path)


def test_a_file_is_read_up_to_the_limit_only(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("a: 1\n" + "#" * (MOST_BYTES - 5))
    assert read_yaml(path) == {"a": 1}
    path.write_text(path.read_text() + "#")
    with pytest.raises(UserError, match="it is not a file of settings"):
        read_yaml(path)
