"""Names of files that break programs: every command works with them, and none reaches the terminal as it is."""

import json
import os
import shutil

import pytest
from PIL import Image

from depict.cli import main
from support.hostile_files import NAMES, is_clean
from support.layouts import picture, stripes
from support.layouts import save as save_picture
from support.trainings import small_command

STEMS = [name for name in NAMES.values() if not name.startswith(".")]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A data set of such names, in a folder of such a name."""
    root = tmp_path_factory.mktemp("names") / NAMES["not UTF-8"] / NAMES["line break"]
    for seed, name in enumerate(STEMS):
        save_picture(root / "images" / f"{name}.png", picture(40, 48, seed))
        save_picture(root / "masks" / f"{name}.png", stripes([0, 1, 2], 40, 48))
    return root


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    """A model trained on it."""
    out = tmp_path_factory.mktemp("runs") / NAMES["not UTF-8"] / NAMES["escape sequence"]
    words = small_command("ROOT", "OUT")
    words[words.index("ROOT")], words[words.index("OUT")] = str(root), str(out)
    assert main(words) == 0
    return out


def test_a_training_reads_them_and_resumes(root, run, capfdbinary):
    words = small_command("ROOT", "OUT")
    words[words.index("ROOT")], words[words.index("OUT")] = str(root), str(run)
    assert main(words) == 0
    printed = capfdbinary.readouterr()
    assert b"is finished" in printed.err
    assert is_clean(printed.out)
    assert is_clean(printed.err)


def test_check_reports_them(root, tmp_path, capfdbinary):
    shutil.copytree(root / "masks", tmp_path / "bad" / "masks")
    for name in STEMS:
        save_picture(tmp_path / "bad" / "images" / f"{name}.png", picture(41, 48))
    assert main(["check", "--data", "folder", "--root", str(root), "--show", str(tmp_path / "samples.png")]) == 0
    report = tmp_path / f"{NAMES['not UTF-8']}.json"
    assert main(["check", "--data", "folder", "--root", str(tmp_path / "bad"), "--json", str(report)]) == 1
    printed = capfdbinary.readouterr()
    assert is_clean(printed.out)
    assert printed.out.count(b"ready for training\n") == 2  # not the name that says so
    assert sum(len(part["problems"]) for part in json.loads(report.read_bytes())["splits"]) == len(STEMS)


def test_evaluate_reads_and_writes_them(run, tmp_path, capfdbinary):
    assert main(["evaluate", str(run), "--save", str(tmp_path / NAMES["right to left"])]) == 0
    printed = capfdbinary.readouterr()
    assert is_clean(printed.out)
    assert is_clean(printed.err)
    assert len(list((tmp_path / NAMES["right to left"]).rglob("*.png"))) == 2 * 2  # predictions and errors


def test_segment_writes_an_output_for_each(root, run, tmp_path, capfdbinary):
    (root / "images" / "\x1b[31mbroken.png").write_text("not a picture")
    assert main(["segment", str(run), str(root / "images"), "--out", str(tmp_path / "out")]) == 1
    (root / "images" / "\x1b[31mbroken.png").unlink()
    printed = capfdbinary.readouterr()
    assert is_clean(printed.out)
    assert is_clean(printed.err)
    assert rb"\x1b[31mbroken.png" in printed.err
    assert {path.stem for path in (tmp_path / "out/labels").iterdir()} == set(STEMS)


def test_pca_and_attention_draw_them(root, run, tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    for name in STEMS[:3]:
        path = str(root / "images" / f"{name}.png")
        assert main(["pca", path, "--run", str(run), "--directions", "2"]) == 0
        assert json.loads((tmp_path / f"{name}-pca.json").read_bytes())["image"] == path
        assert main(["attention", str(run), path, "--class", "0", "--out", f"{name}.png"]) == 0
        with Image.open(tmp_path / f"{name}.png") as drawn:
            assert drawn.width > 0
    printed = capfdbinary.readouterr()
    assert is_clean(printed.out)
    assert is_clean(printed.err)


def test_an_error_of_the_system_is_printed_clean(tmp_path, capfdbinary):
    name = os.fsencode(NAMES["escape sequence"])
    assert main(["check", "--data", "folder", "--root", str(tmp_path / os.fsdecode(name))]) == 2
    assert is_clean(capfdbinary.readouterr().err)
