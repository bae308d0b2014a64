"""Studies for real: whole sweeps of tiny trainings, what they keep, what they tell."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import depict
from depict import UserError
from depict.config.paper import paper_rows
from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, TrainConfig
from depict.data import create_dataset
from depict.evaluation import evaluate, sliding_window_for
from depict.runs import lock_run, read_metrics
from depict.studies import plan, results, running
from depict.studies.plan import Study, open_study, variant
from depict.training.loop import train
from support.layouts import rectangles

ALL = 8


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Eight training and two validation pictures of rectangles, 32 x 40."""
    return rectangles(tmp_path_factory.mktemp("pictures"), train=ALL, val=2, size=(32, 40))


def settings(root, **training):
    return Config(
        encoder=EncoderConfig("vit_tiny_patch16_224", False, patch_size=8, dim=64, depth=1),
        decoder=DecoderConfig("depict_sa", layers=1, heads=1, head_dim=8),
        data=DataConfig("folder", root, short_edge=32, max_aspect=2, workers=0),
        train=TrainConfig(**{"epochs": 1, "batch": 4, "lr": 1e-3, "device": "cpu"} | training),
        image_size=32,
    )


def written(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def trained(monkeypatch):
    """The folders of the trainings that are started from now on."""
    folders = []

    def watched(config, out):
        folders.append(out.name)
        return train(config, out)

    monkeypatch.setattr(running, "train", watched)
    return folders


@pytest.fixture(scope="module")
def finished(pictures, tmp_path_factory):
    """A study of two decoders and two seeds that has run: its folder and the study."""
    out = tmp_path_factory.mktemp("study")
    study = open_study(out, "decoders", settings(pictures), (0, 1), ("linear", "depict_sa,lr=3e-3"))
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


def test_a_line_tells_the_mean_and_the_spread_of_its_seeds(finished):
    out, _ = finished
    kept = json.loads((out / "results.json").read_text())
    line = kept["lines"][1]
    folders = [out / "cells" / f"depict_sa_lr=3e-3_seed{seed}" for seed in (0, 1)]
    scores = [json.loads((folder / "evaluation.json").read_text())["miou"] for folder in folders]
    assert (line["label"], line["seeds"], line["miou"]) == ("depict_sa,lr=3e-3", [0, 1], scores)
    assert line["mean"] == pytest.approx(np.mean(scores))
    assert line["spread"] == pytest.approx(np.std(scores, ddof=1))
    assert line["best"] == folders[int(np.argmax(scores))].name
    decoder = depict.load(folders[0]).decoder
    assert line["parameters"] == sum(parameter.numel() for parameter in decoder.parameters())
    speeds = [next(row["images_per_second"] for row in read_metrics(f) if "loss" in row) for f in folders]
    assert line["seconds"] == pytest.approx(np.mean([ALL / speed for speed in speeds]))
    assert kept["missing"] == []


def test_the_time_of_a_training_counts_the_smaller_last_step_of_an_epoch(finished, tmp_path):
    shutil.copy(finished[0] / "cells" / "linear_seed0" / "config.yaml", tmp_path)  # batches of 4
    rows = [{"iteration": 10, "images_per_second": 17}, {"iteration": 10, "miou": 0.5}]
    rows += [{"iteration": 12, "images_per_second": 6}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # 10 images are steps of 4, 4 and 2: three epochs and a step are 34 images, four epochs 40
    assert results.training_time(tmp_path, 10) == (34 / 17 + 6 / 6, 12, 40)


def test_the_best_cell_alone_is_evaluated_at_several_scales(finished):
    out, study = finished
    best = results.best_line(results.collect(study, out))
    assert [path.parent.name for path in out.glob("cells/*/evaluation_multiscale.json")] == [best["best"]]
    sliding = json.loads((out / "cells" / best["best"] / "evaluation_multiscale.json").read_text())["protocol"]
    assert len(sliding["scales"]) == 6
    assert best["multiscale"] is not None


# One training whose last step is the best, and one that was better before.
@pytest.mark.parametrize(("epochs", "rate"), [(1, 1e-3), (6, 0.3)])
def test_what_is_told_of_a_cell_is_what_its_kept_model_does(pictures, tmp_path, epochs, rate):
    study = open_study(tmp_path, "decoders", settings(pictures, epochs=epochs, lr=rate), decoders=("depict_sa",))
    running.run(study, tmp_path)
    folder = tmp_path / "cells" / "depict_sa_seed0"
    scores = [line["miou"] for line in read_metrics(folder) if "miou" in line]
    model, validation = depict.load(folder), create_dataset("folder", pictures, "val")
    again = evaluate(model.predictor(sliding_window_for(model, validation)), validation).to_dict()
    told = json.loads((folder / "evaluation.json").read_text())
    assert {key: told[key] for key in again} == again
    assert told["miou"] == pytest.approx(max(scores), abs=1e-6)


def test_a_second_call_trains_nothing_and_a_grown_study_what_is_new(finished, pictures, tmp_path, monkeypatch):
    out = tmp_path / "copy"
    shutil.copytree(finished[0], out)
    folders = trained(monkeypatch)
    running.run(open_study(out, "decoders", settings(pictures)), out)
    assert folders == []
    running.run(open_study(out, "decoders", settings(pictures), seeds=(2,)), out)
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
    results.write_results(dataclasses.replace(study, settings=elsewhere), small)
    for name in ("results.json", "results.md", "results.png", "results.svg"):
        assert (small / name).read_bytes() == (out / name).read_bytes()


def test_an_interrupted_cell_goes_on_and_ends_as_if_it_had_not_stopped(pictures, tmp_path, monkeypatch):
    config = settings(pictures, epochs=2, save_every=1)
    for name in ("whole", "broken"):
        study = open_study(tmp_path / name, "decoders", config, decoders=("linear", "depict_sa"))
        if name == "broken":
            with monkeypatch.context() as patch:
                patch.setattr("depict.training.loop._Trainer._validate", _stop)
                with pytest.raises(KeyboardInterrupt):
                    running.run(study, tmp_path / name)
            assert (tmp_path / name / "cells" / "linear_seed0" / "state" / "last.pt").exists()
        running.run(open_study(tmp_path / name, "decoders", config), tmp_path / name)
    for cell in ("linear_seed0", "depict_sa_seed0"):
        whole, broken = (tmp_path / name / "cells" / cell / "last.safetensors" for name in ("whole", "broken"))
        assert whole.read_bytes() == broken.read_bytes()


def _stop(*_):
    raise KeyboardInterrupt


def test_the_cells_before_a_failed_one_are_kept_and_told(pictures, tmp_path):
    study = open_study(tmp_path, "decoders", settings(pictures, epochs=5), decoders=("linear", "depict_sa,lr=1e30"))
    with pytest.raises(UserError, match="the loss became (nan|inf)"):
        running.run(study, tmp_path)
    kept = json.loads((tmp_path / "results.json").read_text())
    assert [line["label"] for line in kept["lines"]] == ["linear"]
    assert kept["missing"] == ["depict_sa_lr=1e30_seed0"]
    assert "1 of 2 cells finished" in (tmp_path / "results.md").read_text()


def test_a_subset_study_trains_on_parts_of_the_images(pictures, tmp_path):
    study = open_study(tmp_path, "subset", settings(pictures), decoders=("linear",), sizes=("1/4", "5", "1"))
    running.run(study, tmp_path)
    lines = json.loads((tmp_path / "results.json").read_text())["lines"]
    assert [(line["group"], line["images"]) for line in lines] == [("linear", 2), ("linear", 5), ("linear", ALL)]
    limits = [depict.load(tmp_path / "cells" / f"linear_{n}_seed0").config.data.limit for n in (2, 5, ALL)]
    assert limits == [2, 5, None]
    assert "ADE20K, ViT-S, other settings" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


def test_the_ablation_has_every_line_of_both_tables_and_trains_a_shared_one_once(pictures, tmp_path):
    study = Study("ablation", (0,), (), (), ALL, settings(pictures))
    cells = plan.plan(study)
    printed = [row for row in paper_rows() if row.table.startswith("Ablation")]
    lines = {(cell.label, cell.config.decoder.name) for cell in cells}
    assert lines == {(row.label, row.decoder) for row in printed}
    for row in printed:
        cell = next(cell for cell in cells if cell.label == row.label and cell.config.decoder.name == row.decoder)
        assert cell.config.decoder.options() == row.options
        assert cell.config.encoder == study.settings.encoder
    assert len(cells) == 12 + 9
    assert len(running.distinct(study)) == 12 + 9 - 1


def test_the_ablation_starts_from_the_gain_and_the_step_that_are_asked_for(pictures):
    asked = dataclasses.replace(settings(pictures), decoder=DecoderConfig("depict_sa", logit_gain=4.0, step_size=0.1))
    study = Study("ablation", (0,), (), (), ALL, asked)
    decoders = {cell.label: cell.config.decoder for cell in plan.plan(study)}
    assert {decoder.logit_gain for decoder in decoders.values()} == {4.0}
    steps = {label: decoder.step_size for label, decoder in decoders.items()}
    assert (steps["3 x 100"], steps["MSSA + MLP"], steps["MHSA + MLP (Segmenter)"]) == (0.1, 0.1, None)
    assert {cell.label: results._printed(study, cell) for cell in plan.plan(study)}["MSSA only"] == "45.4 ViT-S"


def test_the_papers_figures_stand_beside_the_lines_that_it_has(pictures):
    study = Study("ablation", (0,), (), (), ALL, settings(pictures))
    printed = {cell.label: results._printed(study, cell) for cell in plan.plan(study)}
    assert printed["MSSA only"] == "45.4 ViT-S"
    assert printed["3 x 100"] == "46.7 ViT-S, 49.3 ViT-B"
    decoders = Study("decoders", (0,), ("linear", "depict_ca"), (), ALL, settings(pictures))
    assert [results._printed(decoders, cell) for cell in plan.plan(decoders)] == ["", "45.8 ViT-S, 49.0 ViT-B"]


def test_a_forecast_counts_steps_and_leaves_out_what_is_finished(finished, pictures):
    out, _ = finished
    grown = open_study(out, "decoders", settings(pictures), seeds=(7,))
    before = written(out)
    told = {one.cell.name: one for one in running.forecast(grown, out)}
    assert len(told) == 6
    assert all((one.epochs, one.steps) == (1, 2) for one in told.values())
    assert told["linear_seed0"].seconds == 0
    assert told["linear_seed7"].seconds > 0
    assert told["linear_seed7"].left == 2
    assert written(out) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depict_as", "unknown decoder 'depict_as'. Did you mean 'depict_sa'?"),
        ("depict_sa,lrr=1", "Did you mean 'lr'?"),
        ("depict_sa,lr", "'lr' is not SETTING=VALUE"),
        ("depict_sa,lr=[", "is not SETTING=VALUE"),
        ("depict_sa,lr=fast", "'fast' is not of type float"),
        ("linear,decoder.layers=2", "unknown option for the decoder 'linear': 'layers'"),
        ("linear,precision=bf16", "one for the whole study: give it as --precision"),
    ],
)
def test_a_wrong_decoder_is_told_before_anything_is_trained(pictures, tmp_path, text, message):
    with pytest.raises(UserError) as caught:
        open_study(tmp_path / "out", "decoders", settings(pictures), decoders=("linear", text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_settings_of_a_decoder_are_called_as_on_the_command_line(pictures):
    config = variant(settings(pictures), "depict_sa,decoder.head-dim=16,warmup=3,encoder.freeze=true")
    assert (config.decoder.head_dim, config.decoder.heads, config.train.warmup) == (16, 1, 3)
    assert config.encoder.freeze


@pytest.mark.parametrize("size", ["0", "-1/2", "9", "half", "1/0", "1/1000"])
def test_a_size_that_is_no_part_of_the_images_is_refused(pictures, tmp_path, size):
    with pytest.raises(UserError, match=f"--sizes: '{size}' is neither a part such as 1/4 nor a count up to the 8"):
        open_study(tmp_path, "subset", settings(pictures), sizes=(size,))


def test_a_list_that_does_not_belong_to_a_study_is_refused(pictures, tmp_path):
    with pytest.raises(UserError, match="the study 'ablation' has no --decoders"):
        open_study(tmp_path, "ablation", settings(pictures), decoders=("linear",))
    with pytest.raises(UserError, match="the study 'decoders' has no --sizes"):
        open_study(tmp_path, "decoders", settings(pictures), sizes=("1/2",))


def test_another_configuration_another_study_and_other_files_are_refused(finished, pictures, tmp_path):
    out, _ = finished
    with pytest.raises(UserError, match=r"was trained with train.batch = 4, not 2: give the same settings"):
        open_study(out, "decoders", settings(pictures, batch=2))
    with pytest.raises(UserError, match="holds the study 'decoders', not 'subset'"):
        open_study(out, "subset", settings(pictures))
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="holds other files and no study"):
        open_study(tmp_path, "decoders", settings(pictures))


def test_two_studies_do_not_work_in_one_folder(finished):
    out, study = finished
    with lock_run(out), pytest.raises(UserError, match="another training is at work in"):
        running.run(study, out)


def test_many_processes_are_refused(finished, monkeypatch):
    out, study = finished
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="a study runs in one process"):
        running.run(study, out)


def test_a_damaged_evaluation_is_named(finished, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(finished[0], out)
    (out / "cells" / "linear_seed0" / "evaluation.json").write_text("{")
    with pytest.raises(UserError, match=r"linear_seed0/evaluation.json' is damaged or unreadable: remove it"):
        results.write_results(finished[1], out)


@pytest.mark.parametrize(("seconds", "text"), [(0.44, "0.4 s"), (59, "59 s"), (61, "1 min"), (7290, "2 h 02 min")])
def test_times_are_told_in_the_unit_that_suits_them(seconds, text):
    assert results.duration(seconds) == text


def test_pictures_name_decoders_by_what_tells_them_apart():
    told = results._short(["linear,lr=1e-2", "depict_sa,lr=3e-3,warmup=50", "depict_sa,lr=3e-3", "heads = 1"])
    assert told == ["linear", "depict_sa,warmup=50", "depict_sa", "heads = 1"]
