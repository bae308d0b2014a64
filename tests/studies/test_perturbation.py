"""`depict study perturbation`: several runs in one table; studies are resumed, extended, or refused."""

import csv
import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from depict.cli import main
from depict.data.dataset import random_subset
from depict.data.scenes.dataset import Scenes
from depict.decoders import DECODERS
from depict.errors import UserError
from depict.evaluation import evaluate, sliding_window_for
from depict.model import create_model
from depict.runs import save
from depict.studies import perturbation as study
from support.level_decoder import Sum
from support.tiny_model import tiny_model, tiny_neck_model

FEW = ("--limit", "2", "--seeds", "0", "1", "--sigmas", "1e-2", "--device", "cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Untrained runs of three decoders."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("depict_sa", "segmenter", "linear"):
        save(tiny_model(name), folder / name)
    return folder


@pytest.fixture(scope="module")
def finished(runs, tmp_path_factory):
    """A study of two runs."""
    out = tmp_path_factory.mktemp("study") / "out"
    assert main(["study", "perturbation", str(runs / "depict_sa"), str(runs / "linear"), "--out", str(out), *FEW]) == 0
    return out


@pytest.fixture
def without_figures(monkeypatch):
    """Skip the figure, which takes most of the time of so small a study."""
    monkeypatch.setattr(study, "_write_figure", lambda *_: None)


def measured(monkeypatch):
    """The runs that are measured from now on."""
    names = []

    def watched(model, dataset, seeds, sigmas, title="", own=study.measure):
        names.append(title)
        return own(model, dataset, seeds, sigmas, title)

    monkeypatch.setattr(study, "measure", watched)
    return names


def test_a_decoder_without_steps_is_refused_before_anything_is_written(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(DECODERS, "sum", Sum)
    save(create_model("sum", "test_efficientnet", len(Scenes.classes), image_size=64), tmp_path / "levels")
    for command in (["study", "perturbation"], ["analyze"]):
        out = tmp_path / command[0]
        assert main([*command, str(runs / "linear"), str(tmp_path / "levels"), "--out", str(out)]) == 2
        assert "levels': the decoder 'sum' takes the levels of its encoder" in capsys.readouterr().err
        assert not out.exists()


def test_a_study_writes_tables_figures_and_a_result_for_each_run(finished):
    assert {path.name for path in finished.glob("r*")} == {
        "runs",
        *(f"results.{kind}" for kind in ("json", "md", "csv", "png", "svg")),
    }
    table = (finished / "results.md").read_text()
    assert "2 of 2 runs finished" in table
    assert "P'_h O_M (identity)" in table
    assert "| linear | linear |" in table
    with (finished / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == {"depict_sa", "linear"}
    mix = next(row for row in rows if row["perturbation"] == "P O_K")
    assert mix["seeds"] == "0 1"
    assert {row["reading"] for row in rows if row["perturbation"] == "noise"} == {"variance", "standard deviation"}


def test_the_unperturbed_column_is_the_miou_of_depict_evaluate(finished, runs):
    model = tiny_model()
    scenes = random_subset(Scenes(None, "val"), 2, 0)
    rows = json.loads((finished / "runs" / "depict_sa.json").read_text())["rows"]
    assert rows[0]["mean"] == evaluate(model.predictor(sliding_window_for(model, scenes)), scenes).miou


@pytest.mark.usefixtures("without_figures")
def test_runs_with_a_neck_are_measured_and_the_identity_leaves_their_miou(tmp_path):
    models = {name: tiny_neck_model(name) for name in ("depict_us", "depict_sa", "cbt")}
    for name, model in models.items():
        save(model, tmp_path / name)
    words = [*(str(tmp_path / name) for name in models), "--out", str(tmp_path / "study"), *FEW]
    assert main(["study", "perturbation", *words]) == 0
    scenes = random_subset(Scenes(None, "val"), 2, 0)
    for name, model in models.items():
        rows = json.loads((tmp_path / "study/runs" / f"{name}.json").read_text())["rows"]
        scores = {row["perturbation"]: row["mean"] for row in rows if row["sigma"] is None}
        assert scores["none"] == evaluate(model.predictor(sliding_window_for(model, scenes)), scenes).miou
        assert scores["P'_h O_M"] == pytest.approx(scores["none"], abs=1e-3)
    assert "encoder and neck are never changed" in (tmp_path / "study/results.md").read_text()


def test_runs_are_never_changed(finished, runs):
    assert {path.name for path in (runs / "depict_sa").iterdir()} == {"config.yaml", "model.safetensors"}


@pytest.mark.usefixtures("without_figures")
def test_finished_runs_are_not_repeated_and_more_runs_can_be_added(finished, runs, tmp_path, monkeypatch, capsys):
    out = tmp_path / "study"
    shutil.copytree(finished, out)
    names = measured(monkeypatch)
    before = (out / "runs" / "depict_sa.json").read_bytes()
    assert main(["study", "perturbation", "--out", str(out), "--device", "cpu"]) == 0
    assert names == []
    assert main(["study", "perturbation", str(runs / "segmenter"), str(runs / "linear"), "--out", str(out)]) == 0
    assert names == ["segmenter"]
    assert "3 of 3 runs finished" in capsys.readouterr().out
    assert (out / "runs" / "depict_sa.json").read_bytes() == before


@pytest.mark.usefixtures("without_figures")
def test_a_run_with_other_weights_is_measured_again(runs, tmp_path, monkeypatch):
    shutil.copytree(runs / "linear", tmp_path / "linear")
    opened = study.open_study(tmp_path / "study", [str(tmp_path / "linear")], limit=1, seeds=(0,), sigmas=(1e-2,))
    study.run(opened, tmp_path / "study")
    names = measured(monkeypatch)
    model = tiny_model("linear")
    model.decoder.head.bias.data += 1
    save(model, tmp_path / "linear")
    study.run(opened, tmp_path / "study")
    assert names == ["linear"]


@pytest.mark.usefixtures("without_figures")
def test_an_interrupted_study_measures_the_missing_runs_when_called_again(runs, tmp_path, monkeypatch):
    out = tmp_path / "study"
    measure = study.measure

    def interrupted(model, dataset, seeds, sigmas, title):
        if title == "depict_sa":
            raise KeyboardInterrupt
        return measure(model, dataset, seeds, sigmas, title)

    opened = study.open_study(out, [str(runs / "linear"), str(runs / "depict_sa")], limit=1, seeds=(0,), sigmas=(1e-2,))
    monkeypatch.setattr(study, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        study.run(opened, out)
    assert "1 of 2 runs finished" in (out / "results.md").read_text()
    monkeypatch.setattr(study, "measure", measure)
    names = measured(monkeypatch)
    assert main(["study", "perturbation", "--out", str(out), "--device", "cpu"]) == 0
    assert names == ["depict_sa"]
    assert "2 of 2 runs finished" in (out / "results.md").read_text()


@pytest.mark.slow
def test_a_killed_study_measures_the_missing_runs_when_called_again(runs, tmp_path, monkeypatch):
    out = tmp_path / "study"
    words = ["study", "perturbation", str(runs / "linear"), str(runs / "depict_sa"), "--out", str(out)]
    words += ["--limit", "20", "--seeds", "0", "1", "--sigmas", "1e-2", "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "depict.cli", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 240
        while not (out / "results.md").exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        process.kill()
        process.communicate()
    assert "1 of 2 runs finished" in (out / "results.md").read_text()
    first = (out / "runs" / "linear.json").read_bytes()
    names = measured(monkeypatch)
    monkeypatch.setattr(
        study, "open_images", lambda *_: random_subset(Scenes(None, "val"), 1, 0)
    )  # the rest, but shorter
    assert main(["study", "perturbation", "--out", str(out), "--device", "cpu"]) == 0
    assert names == ["depict_sa"]
    assert "2 of 2 runs finished" in (out / "results.md").read_text()
    assert (out / "runs" / "linear.json").read_bytes() == first


def test_runs_of_the_same_name_are_distinguished_by_their_parents(runs, tmp_path):
    paths = [tmp_path / "a" / "cells" / "x", tmp_path / "b" / "cells" / "x"]
    named = study._named({"x": str(paths[0])}, [str(path) for path in (*paths, paths[1])])
    assert named == {"cells-x": str(paths[1])}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--seeds", "5"], "was made with seeds = 0, 1, not 5: give the same settings"),
        (["--sigmas", "0.5"], "was made with sigmas = 0.01, not 0.5"),
        (["--limit", "3"], "was made with limit = 2, not 3"),
        (["--data", "camvid"], "was made with data = scenes, not camvid"),
        (["nowhere"], "nowhere' has no model.safetensors"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(finished, capsys, more, message):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert main(["study", "perturbation", *more, "--out", str(finished), "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "no runs given"),
        (["RUN", "--seeds", "1", "1"], "--seeds must be different"),
        (["RUN", "--sigmas", "0"], "--sigmas must be numbers above 0, not 0"),
        (["RUN", "--limit", "0"], "--limit must be at least 1, not 0"),
        (["RUN", "--data", "cityscapes", "--root", "."], "cityscapes"),
        (["RUN", "OTHER"], "has 2 classes, 'scenes' has 8"),
        (["missing"], "missing"),
    ],
)
def test_user_errors_are_one_line_and_nothing_is_written(runs, tmp_path, capsys, more, message):
    save(create_model("linear", "vit_tiny_patch16_224", 2, image_size=32), tmp_path / "other")
    named = {"RUN": str(runs / "depict_sa"), "OTHER": str(tmp_path / "other")}
    words = [named.get(word, word) for word in more]
    assert main(["study", "perturbation", *words, "--out", str(tmp_path / "study"), "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "study").exists()


def test_a_folder_with_other_files_is_refused(runs, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        study.open_study(tmp_path, [str(runs / "linear")])


def test_it_has_its_own_help_which_that_of_the_other_studies_mentions(capsys):
    for words in (["study", "--help"], ["study", "perturbation", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "depict study perturbation --help" in printed
    assert "usage: depict study perturbation" in printed
