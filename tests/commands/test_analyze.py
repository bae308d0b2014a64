"""`depict analyze` from the command to the folder: every question to every decoder, or one line that says why not."""

from __future__ import annotations

import json

import pytest
from PIL import Image

import depict
from depict.analysis import runner
from depict.analysis.runner import Pictures, run_analyses, choose_analyses
from depict.cli import main
from depict.commands.analyze import open_images, short_names
from depict.data import create_dataset
from depict.errors import UserError
from depict.runs import save
from depict.segment.inputs import find_inputs
from support.tiny_model import tiny_model

DECODERS = ("depict_sa", "depict_ca", "segmenter", "linear")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in DECODERS:
        save(tiny_model(name), folder / name)
    return folder


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_question_has_an_answer_for_every_decoder(runs, decoder):
    outcome = run_analyses(
        depict.load(runs / decoder), create_dataset("scenes", split="val"), [0, 50, 99], choose_analyses(None)
    )
    for finding in outcome.findings:
        assert finding.error is None
        assert outcome.result.text
        assert outcome.result.captions.keys() == outcome.result.figures.keys()
        assert bool(outcome.result.figures) >= bool(outcome.result.numbers)
        assert all(figure.get_figwidth() <= 7 for figure in outcome.result.figures.values())


def test_the_command_leaves_the_files_of_every_question_and_the_page(runs, tmp_path, capsys):
    out = tmp_path / "inside"
    assert main(["analyze", str(runs / "depict_sa"), "--images", "2", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert f"written: {out / 'report.html'}" in told.out
    assert "image/s" in told.err
    page = (out / "report.html").read_text()
    assert {path.stem for path in (out / "depict_sa").glob("*.json")} == set(runner.ANALYSES)
    for stem in runner.ANALYSES:
        found = json.loads((out / "depict_sa" / f"{stem}.json").read_text(), parse_constant=pytest.fail)
        assert found["images"] == {"data": "scenes", "split": "val", "seen": 2, "of": 100}
        assert found["numbers"]
        assert f'<section id="{stem}">' in page
    # Again, beside another run and with one question: chance plays the same part.
    again = ["--images", "2", "--only", "perturbation", "--out", str(tmp_path / "again")]
    assert main(["analyze", str(runs / "linear"), str(runs / "depict_sa"), *again]) == 0
    files = list((tmp_path / "again" / "depict_sa").iterdir())
    assert len(files) == 4
    for path in files:
        assert path.read_bytes() == (out / "depict_sa" / path.name).read_bytes(), path.name


def test_a_report_is_replaced_only_if_it_is_said_and_other_files_are_left_alone(runs, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    command = [
        "analyze",
        str(runs / "depict_sa"),
        "--images",
        "1",
        "--only",
        "orthogonality",
        "--out",
        str(tmp_path),
    ]
    assert main(command) == 0
    assert main(command) == 2
    assert "report.html in" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_pictures_without_ground_truth_can_be_looked_at(runs, tmp_path):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for index in range(2):
        Image.linear_gradient("L").resize((60, 44)).rotate(90 * index).save(pictures / f"{index}.png")
    out = pictures / "out"
    assert (
        main(
            [
                "analyze",
                str(runs / "depict_sa"),
                "--pictures",
                str(pictures),
                "--only",
                "coding_rates",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    found = json.loads((out / "depict_sa" / "coding_rates.json").read_text())
    assert found["images"] == {"data": "pictures", "split": None, "seen": 2, "of": 2}
    assert found["numbers"]
    inputs = Pictures(find_inputs([str(pictures)], out)[0])
    assert len(inputs) == 2  # what the command wrote is not among them
    for decoder in DECODERS:
        outcome = run_analyses(depict.load(runs / decoder), inputs, [0, 1], choose_analyses(None))
        assert [finding.error for finding in outcome.findings] == [None] * len(runner.ANALYSES)


def test_figures_are_not_put_among_the_pictures(runs, tmp_path, capsys):
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
        told = capsys.readouterr().err.strip()
        assert "among the pictures" in told
        assert "\n" not in told
    assert not list(tmp_path.rglob("report.html"))
    assert analyze(tmp_path / "pictures", tmp_path) == 0  # beside them


def test_a_report_below_its_pictures_is_not_looked_at_even_through_a_link(tmp_path):
    (tmp_path / "pictures" / "out").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "pictures", target_is_directory=True)
    for place in ("one.png", "out/figure.png"):
        Image.linear_gradient("L").save(tmp_path / "pictures" / place)
    found = open_images(tiny_model(), "run", None, None, tmp_path / "link", tmp_path / "pictures" / "out")
    assert [found.name_of(index) for index in range(len(found))] == ["one"]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/a", "runs/b/"], ["a", "b"]),
        (
            ["one/cells/seed0", "two/cells/seed0", "two/cells/seed1"],
            ["one-cells-seed0", "two-cells-seed0", "two-cells-seed1"],
        ),
        (["hf-hub:user/name@v2", "runs/name"], ["name-v2", "name"]),
        (["runs/A", "runs/x/a"], ["runs-A", "x-a"]),
    ],
)
def test_runs_are_called_by_as_little_as_tells_them_apart(paths, names):
    assert short_names(paths) == names


def test_a_run_is_named_once():
    with pytest.raises(UserError, match="named twice"):
        short_names(["runs/a", "runs/../runs/a"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--images", "0"], "--images must be at least 1, not 0"),
        (["--only", "low_rang"], "Did you mean 'low_rank'?"),
        (["--data", "scene"], "Did you mean 'scenes'?"),
        (["--data", "folder", "--root", "nowhere"], "'nowhere'"),
        (["--pictures", "nowhere"], "--pictures takes a folder, and 'nowhere' is none"),
        (["--pictures", ".", "--data", "scenes"], "not both"),
        (["--device", "cuda:99"], "the device 'cuda:99' cannot be used here"),
    ],
)
def test_mistakes_are_told_in_one_line_and_nothing_is_written(runs, tmp_path, capsys, arguments, said):
    assert main(["analyze", str(runs / "linear"), "--out", str(tmp_path / "out"), *arguments]) == 2
    told = capsys.readouterr().err.strip()
    assert said in told
    assert "\n" not in told
    assert not (tmp_path / "out").exists()


def test_a_mistake_in_the_last_run_is_told_before_the_first_is_looked_at(runs, tmp_path, capsys):
    assert main(["analyze", str(runs / "linear"), str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "not a run folder" in capsys.readouterr().err
    assert main(["analyze", "--out", str(tmp_path / "out")]) == 2
    assert "no runs were given" in capsys.readouterr().err
