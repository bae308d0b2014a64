"""`depict analyze` from the command line to the folder, and its errors in one line."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from depict.analysis.low_rank import LowRank
from depict.analysis.runner import ANALYSES
from depict.cli import main
from depict.commands.analyze import open_images
from depict.errors import UserError
from depict.runs import save
from support.tiny_model import tiny_model


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for decoder in ("depict_sa", "linear"):
        save(tiny_model(decoder), folder / decoder)
    return folder


@pytest.mark.slow
def test_the_command_writes_the_files_of_every_analysis_and_the_page(runs, tmp_path, capsys):
    out = tmp_path / "inside"
    assert main(["analyze", str(runs / "depict_sa"), "--images", "2", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert f"written: {out / 'report.html'}" in printed.out
    assert "image/s" in printed.err
    page = (out / "report.html").read_text()
    assert {path.stem for path in (out / "depict_sa").glob("*.json")} == set(ANALYSES)
    for name in ANALYSES:
        found = json.loads((out / "depict_sa" / f"{name}.json").read_text(), parse_constant=pytest.fail)
        assert found["images"] == {"data": "scenes", "split": "val", "seen": 2, "of": 100}
        # DEPICT-SA on a plain ViT has no class subspaces, no queries and no levels.
        assert bool(found["numbers"]) == (name not in ("class_directions", "queries", "levels"))
        assert f'<section id="{name}">' in page
    # The same files again, after another run and with one analysis: random draws depend on neither.
    again = ["--images", "2", "--only", "perturbation", "--out", str(tmp_path / "again")]
    assert main(["analyze", str(runs / "linear"), str(runs / "depict_sa"), *again]) == 0
    files = list((tmp_path / "again" / "depict_sa").iterdir())
    assert len(files) == 4
    for path in files:
        assert path.read_bytes() == (out / "depict_sa" / path.name).read_bytes(), path.name


def test_a_report_is_replaced_only_with_overwrite_and_other_files_are_not_touched(runs, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    command = ["analyze", str(runs / "linear"), "--images", "1", "--only", "low_rank", "--out", str(tmp_path)]
    assert main(command) == 0
    assert main(command) == 2
    assert "already has a report.html" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_analysis_that_fails_is_named_and_the_exit_code_is_1(runs, tmp_path, capsys, monkeypatch):
    def refuse(analysis, sample):
        raise UserError("the image is too small.")

    monkeypatch.setattr(LowRank, "update", refuse)
    options = ["--images", "1", "--only", "low_rank,gradient_terms", "--out", str(tmp_path)]
    assert main(["analyze", str(runs / "depict_sa"), *options]) == 1
    assert "depict: depict_sa: low_rank failed: the image is too small." in capsys.readouterr().err
    assert "This analysis failed: the image is too small." in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "depict_sa" / "gradient_terms.json").read_text())["numbers"]


@pytest.mark.slow
def test_pictures_without_ground_truth_can_be_analyzed(runs, tmp_path):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for index in range(2):
        Image.linear_gradient("L").resize((60, 44)).rotate(90 * index).save(pictures / f"{index}.png")
    out = pictures / "out"
    options = ["--pictures", str(pictures), "--only", "gradient_terms", "--out", str(out)]
    assert main(["analyze", str(runs / "depict_sa"), *options]) == 0
    assert main(["analyze", str(runs / "depict_sa"), *options, "--overwrite"]) == 0
    found = json.loads((out / "depict_sa" / "gradient_terms.json").read_text())
    assert found["images"] == {"data": "pictures", "split": None, "seen": 2, "of": 2}  # not the first report's figures
    assert found["numbers"]


def test_figures_are_not_written_among_the_pictures(runs, tmp_path, capsys):
    def analyze(pictures, out):
        command = ["--only", "orthogonality", "--images", "1", "--pictures", str(pictures), "--out", str(out)]
        return main(["analyze", str(runs / "linear"), *command])

    for folder in ("pictures", "linear/below"):
        (tmp_path / folder).mkdir(parents=True)
        Image.linear_gradient("L").save(tmp_path / folder / "one.png")
    (tmp_path / "link").symlink_to(tmp_path / "pictures", target_is_directory=True)
    for pictures, out in (
        ("pictures", "pictures"),
        ("pictures", "pictures/../link"),
        ("linear", "."),  # figures of the run go to ./linear
        ("linear/below", "."),
    ):
        assert analyze(tmp_path / pictures, tmp_path / out) == 2
        error = capsys.readouterr().err.strip()
        assert "among the pictures" in error
        assert "\n" not in error
    assert not list(tmp_path.rglob("report.html"))
    assert analyze(tmp_path / "pictures", tmp_path) == 0  # next to them


def test_a_report_inside_the_folder_of_pictures_is_skipped_even_through_a_link(tmp_path):
    (tmp_path / "pictures" / "out").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "pictures", target_is_directory=True)
    for file in ("one.png", "out/figure.png"):
        Image.linear_gradient("L").save(tmp_path / "pictures" / file)
    found = open_images(tiny_model(), "run", None, None, tmp_path / "link", tmp_path / "pictures" / "out")
    assert [found.name_of(index) for index in range(len(found))] == ["one"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--images", "0"], "--images must be at least 1, not 0"),
        (["--only", "low_rang"], "Did you mean 'low_rank'?"),
        (["--data", "scene"], "Did you mean 'scenes'?"),
        (["--data", "folder", "--root", "nowhere"], "'nowhere'"),
        (["--pictures", "nowhere"], "--pictures must be a folder, and 'nowhere' is not one"),
        (["--pictures", ".", "--data", "scenes"], "not both"),
        (["--device", "cuda:99"], "the device 'cuda:99' cannot be used here"),
    ],
)
def test_errors_are_one_line_and_nothing_is_written(runs, tmp_path, capsys, arguments, message):
    assert main(["analyze", str(runs / "linear"), "--out", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()


def test_an_error_in_the_last_run_is_reported_before_the_first_is_analyzed(runs, tmp_path, capsys):
    assert main(["analyze", str(runs / "linear"), str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "not a run folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["analyze", "--out", str(tmp_path / "out")]) == 2
    assert "no runs were given" in capsys.readouterr().err
