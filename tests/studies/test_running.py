"""Sweeps of tiny trainings: what they write, how they resume and grow, and what they report."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import depict
from depict.config.ranges import RANGES, Range
from depict.config.schema import DataConfig
from depict.costs import parameters
from depict.data import create_dataset, dataset_class
from depict.errors import UserError
from depict.evaluation import evaluate, sliding_window_for
from depict.runs import lock_run, read_metrics
from depict.studies import results, running
from depict.studies.collect import best_line, collect, training_time
from depict.studies.figures import short_names
from depict.studies.forecast import forecast
from depict.studies.plan import open_study
from depict.studies.results import write_results
from depict.studies.tables import duration
from depict.training.loop import train

ALL = 8


def written(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def started_trainings(monkeypatch):
    """The folders of the trainings that start from now on."""
    folders = []

    def watched(config, out):
        folders.append(out.name)
        return train(config, out)

    monkeypatch.setattr(running, "train", watched)
    return folders


@pytest.fixture
def no_figures(monkeypatch):
    """Leave out the figures, which take longer than the trainings."""
    monkeypatch.setattr(results, "save_figure", lambda *_: None)


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    """A study of two decoders and two seeds that has run: its folder and the study."""
    out = tmp_path_factory.mktemp("study")
    study = open_study(out, "decoders", settings(), (0, 1), ("linear", "depict_sa,lr=3e-3"))
    running.run(study, out, multiscale=True)
    return out, study


def test_every_decoder_is_trained_and_evaluated_with_every_seed(finished):
    out, _ = finished
    names = {"linear_seed0", "linear_seed1", "depict_sa_lr=3e-3_seed0", "depict_sa_lr=3e-3_seed1"}
    assert {path.name for path in (out / "cells").iterdir()} == names
    model = depict.load(out / "cells" / "depict_sa_lr=3e-3_seed1")
    assert (model.config.seed, model.config.train.lr, model.config.decoder.head_dim) == (1, 3e-3, 8)
    linear = depict.load(out / "cells" / "linear_seed0").config
    assert (linear.train.lr, linear.decoder.head_dim) == (1e-3, None)


def test_a_line_has_the_mean_and_the_standard_deviation_of_its_seeds(finished):
    out, _ = finished
    kept = json.loads((out / "results.json").read_text())
    line = kept["lines"][1]
    folders = [out / "cells" / f"depict_sa_lr=3e-3_seed{seed}" for seed in (0, 1)]
    scores = [json.loads((folder / "evaluation.json").read_text())["miou"] for folder in folders]
    assert (line["label"], line["seeds"], line["miou"]) == ("depict_sa,lr=3e-3", [0, 1], scores)
    assert line["mean"] == pytest.approx(np.mean(scores))
    assert line["spread"] == pytest.approx(np.std(scores, ddof=1))
    assert line["best"] == folders[int(np.argmax(scores))].name
    assert line["parameters"] == parameters(depict.load(folders[0]).decoder)
    speeds = [next(row["images_per_second"] for row in read_metrics(f) if "loss" in row) for f in folders]
    assert line["seconds"] == pytest.approx(np.mean([ALL / speed for speed in speeds]))
    assert kept["missing"] == []


def test_the_time_of_a_training_counts_the_smaller_last_step_of_an_epoch(finished, tmp_path):
    shutil.copy(finished[0] / "cells" / "linear_seed0" / "config.yaml", tmp_path)  # batches of 4
    rows = [{"iteration": 10, "images_per_second": 17}, {"iteration": 10, "miou": 0.5}]
    rows += [{"iteration": 12, "images_per_second": 6}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # 10 images are steps of 4, 4 and 2: three epochs and a step are 34 images, four epochs 40
    assert training_time(tmp_path, 10) == (34 / 17 + 6 / 6, 12, 40)


def test_only_the_best_cell_is_evaluated_at_several_scales(finished):
    out, study = finished
    best = best_line(collect(study, out))
    assert [path.parent.name for path in out.glob("cells/*/evaluation_multiscale.json")] == [best["best"]]
    sliding = json.loads((out / "cells" / best["best"] / "evaluation_multiscale.json").read_text())["protocol"]
    assert len(sliding["scales"]) == 6
    assert best["multiscale"] is not None


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("epochs", "rate", "stride"),
    [(1, 1e-3, None), (6, 0.3, None), (1, 1e-3, 8)],
    ids=["last step is best", "earlier step is best", "validated with another stride"],
)
def test_the_evaluation_of_a_cell_is_that_of_its_kept_model(settings, tmp_path, monkeypatch, epochs, rate, stride):
    folder_class = dataset_class("folder")
    monkeypatch.setattr(folder_class, "recipe", dataclasses.replace(folder_class.recipe, stride=stride, crop=16))
    config = settings(epochs=epochs, lr=rate)
    running.run(open_study(tmp_path, "decoders", config, decoders=("depict_sa",)), tmp_path)
    folder = tmp_path / "cells" / "depict_sa_seed0"
    model, validation = depict.load(folder), create_dataset("folder", config.data.root, "val")
    again = evaluate(model.predictor(sliding_window_for(model, validation)), validation).to_dict()
    written = json.loads((folder / "evaluation.json").read_text())
    assert {key: written[key] for key in again} == again
    if stride is None:
        scores = [line["miou"] for line in read_metrics(folder) if "miou" in line]
        assert written["miou"] == pytest.approx(max(scores), abs=1e-6)


@pytest.mark.usefixtures("no_figures")
def test_a_second_call_trains_nothing_and_a_grown_study_only_what_is_new(finished, settings, tmp_path, monkeypatch):
    out = tmp_path / "copy"
    shutil.copytree(finished[0], out)
    folders = started_trainings(monkeypatch)
    running.run(open_study(out, "decoders", settings()), out)
    assert folders == []
    running.run(open_study(out, "decoders", settings(), seeds=(2,)), out)
    assert folders == ["linear_seed2", "depict_sa_lr=3e-3_seed2"]
    assert [line["seeds"] for line in json.loads((out / "results.json").read_text())["lines"]] == [[0, 1, 2]] * 2


def test_results_are_redrawn_without_weights_or_images(finished, tmp_path):
    out, study = finished
    small = tmp_path / "small"
    for name in ("config.yaml", "metrics.jsonl", "evaluation.json", "evaluation_multiscale.json"):
        for path in out.glob(f"cells/*/{name}"):
            (small / path.relative_to(out)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, small / path.relative_to(out))
    elsewhere = dataclasses.replace(study.settings, data=DataConfig("folder", tmp_path / "gone"))
    write_results(dataclasses.replace(study, settings=elsewhere), small)
    for name in ("results.json", "results.md", "results.png", "results.svg"):
        assert (small / name).read_bytes() == (out / name).read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_an_interrupted_cell_resumes_and_ends_with_the_same_weights(settings, tmp_path, monkeypatch):
    config = settings(epochs=2, save_every=1)
    for name in ("whole", "broken"):
        study = open_study(tmp_path / name, "decoders", config, decoders=("depict_sa",))
        if name == "broken":
            with monkeypatch.context() as patch:
                patch.setattr("depict.training.loop.Trainer._validate", _stop)
                with pytest.raises(KeyboardInterrupt):
                    running.run(study, tmp_path / name)
            assert (tmp_path / name / "cells" / "depict_sa_seed0" / "state" / "last.pt").exists()
        running.run(open_study(tmp_path / name, "decoders", config), tmp_path / name)
    whole, broken = (tmp_path / name / "cells/depict_sa_seed0/last.safetensors" for name in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()


def _stop(*_):
    raise KeyboardInterrupt


@pytest.mark.usefixtures("no_figures")
def test_the_cells_before_a_failed_one_are_kept_and_reported(settings, tmp_path, monkeypatch):
    monkeypatch.setitem(RANGES, "train.lr", Range(0, 1e30))  # such a rate is refused otherwise
    study = open_study(tmp_path, "decoders", settings(epochs=5), decoders=("linear", "depict_sa,lr=1e30"))
    with pytest.raises(UserError, match="the loss became (nan|inf)"):
        running.run(study, tmp_path)
    kept = json.loads((tmp_path / "results.json").read_text())
    assert [line["label"] for line in kept["lines"]] == ["linear"]
    assert kept["missing"] == ["depict_sa_lr=1e30_seed0"]
    assert "1 of 2 cells finished" in (tmp_path / "results.md").read_text()


@pytest.mark.slow
def test_a_subset_study_trains_on_fractions_of_the_images(settings, tmp_path):
    study = open_study(tmp_path, "subset", settings(), decoders=("linear",), sizes=("1/4", "5", "1"))
    running.run(study, tmp_path)
    lines = json.loads((tmp_path / "results.json").read_text())["lines"]
    assert [(line["group"], line["images"]) for line in lines] == [("linear", 2), ("linear", 5), ("linear", ALL)]
    limits = [depict.load(tmp_path / "cells" / f"linear_{n}_seed0").config.data.limit for n in (2, 5, ALL)]
    assert limits == [2, 5, None]
    assert "ADE20K, ViT-S, other settings" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "results.png").stat().st_size > 10_000


def test_a_forecast_counts_steps_and_leaves_out_what_is_finished(finished, settings):
    out, _ = finished
    grown = open_study(out, "decoders", settings(), seeds=(7,))
    before = written(out)
    cells = {one.cell.name: one for one in forecast(grown, out)}
    assert len(cells) == 6
    assert all((one.epochs, one.steps) == (1, 2) for one in cells.values())
    assert cells["linear_seed0"].seconds == 0
    assert cells["linear_seed7"].seconds > 0
    assert cells["linear_seed7"].steps_left == 2
    assert written(out) == before


def test_two_studies_cannot_run_in_one_folder(finished):
    out, study = finished
    with lock_run(out), pytest.raises(UserError, match="another training is running in"):
        running.run(study, out)


def test_torchrun_is_refused(finished, monkeypatch):
    out, study = finished
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="a study runs in one process"):
        running.run(study, out)


def test_a_damaged_evaluation_is_named(finished, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(finished[0], out)
    (out / "cells" / "linear_seed0" / "evaluation.json").write_text("{")
    with pytest.raises(UserError, match=r"linear_seed0/evaluation.json' is damaged or unreadable: remove it"):
        write_results(finished[1], out)


@pytest.mark.parametrize(("seconds", "text"), [(0.44, "0.4 s"), (59, "59 s"), (61, "1 min"), (7290, "2 h 02 min")])
def test_a_duration_is_given_in_seconds_minutes_or_hours(seconds, text):
    assert duration(seconds) == text


def test_figures_label_decoders_by_the_settings_that_differ():
    names = short_names(["linear,lr=1e-2", "depict_sa,lr=3e-3,warmup=50", "depict_sa,lr=3e-3", "heads = 1"])
    assert names == ["linear", "depict_sa,warmup=50", "depict_sa", "heads = 1"]
