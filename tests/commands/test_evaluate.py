"""`depict evaluate` with a small run and a small folder of images."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import depict
from depict.cli import main
from depict.config.resolve import resolve
from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig
from depict.data import dataset_class
from depict.data.cityscapes import EVALUATED
from depict.model import SegmentationModel
from depict.runs import LAST, load, save_tensors
from support import layouts
from support.several_processes import torchrun

CLASSES = ("left", "right", "center")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with random weights and a data set with five validation images."""
    root = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for kind in ("images", "masks"):
        for split in ("train", "val"):
            (root / kind / split).mkdir(parents=True)
    for index in range(5):
        size = (40 + index, 50)
        Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)).save(root / f"images/val/é {index}.png")
        mask = random.integers(0, 3, size, np.uint8)
        mask[:5] = 255
        Image.fromarray(mask).save(root / f"masks/val/é {index}.png")
    for kind in ("images", "masks"):
        Image.open(root / kind / "val" / "é 0.png").save(root / kind / "train" / "a.png")
    (root / "classes.yaml").write_text("names: [left, right, center]\n")
    config = Config(
        encoder=EncoderConfig("vit_tiny_patch16_224", pretrained=False, depth=1, dim=48),
        decoder=DecoderConfig("linear"),
        data=DataConfig("folder", root, short_edge=32, max_aspect=4.0),
        image_size=32,
    )
    folder = tmp_path_factory.mktemp("runs") / "run"
    model = SegmentationModel(config, CLASSES, ((255, 0, 0), (0, 255, 0), (0, 0, 255)))
    depict.save(model, folder)
    return folder


def test_it_prints_the_table_and_writes_json_into_the_run(run, capsys):
    assert main(["evaluate", str(run)]) == 0
    printed = capsys.readouterr()
    for word in (*CLASSES, "mIoU", "5 images", "evaluation.html and .json"):
        assert word in printed.out
    assert "warning: the scores come from only 5 images (fewer than 20)" in printed.err
    written = json.loads((run / "evaluation.json").read_text())
    assert written["protocol"]["short_edge"] == 32
    assert written["protocol"]["stride"] == [16, 16]
    assert np.sum(written["confusion"]) == sum((35 + i) * 50 for i in range(5))
    assert [row["name"] for row in written["images"]] == [f"é {i}" for i in range(5)]
    assert 0 < written["calibration"]["ece"] < 1
    page = (run / "evaluation.html").read_text()
    assert f"Evaluation of {run}" in page
    assert "5 images of folder (val), best weights" in page
    assert all(f"é {i}: " in page for i in range(5))  # each is an example


def test_other_settings_write_to_files_of_their_own(run):
    assert main(["evaluate", str(run), "--multiscale", "--split", "train", "--short-edge", "40"]) == 0
    written = json.loads((run / "evaluation_train_multiscale_short-edge40.json").read_text())
    assert written["protocol"]["scales"] == [0.5, 0.75, 1.0, 1.25, 1.5, 1.75]
    assert written["protocol"]["flip"]
    assert written["protocol"]["short_edge"] == 40
    assert len(written["images"]) == 1


def test_last_evaluates_the_weights_after_the_last_step(run, capsys):
    """Last weights that always predict the class 'right', unlike the best ones."""
    weights = load(run).state_dict()
    weights["decoder.head.weight"].zero_()
    weights["decoder.head.bias"].copy_(torch.tensor([0.0, 1.0, 0.0]))
    save_tensors(weights, run / LAST)
    assert main(["evaluate", str(run)]) == 0
    assert main(["evaluate", str(run), "--last", "--multiscale"]) == 0
    assert main(["evaluate", str(run), "--last"]) == 0
    assert "evaluation_last.html and .json" in capsys.readouterr().out
    best, last = (json.loads((run / name).read_text()) for name in ("evaluation.json", "evaluation_last.json"))
    assert (best["weights"], last["weights"]) == ("best", "last")
    assert (run / "evaluation_last_multiscale.json").is_file()
    assert [row["accuracy"] for row in last["classes"]] == [0, 1, 0]
    assert [row["accuracy"] for row in best["classes"]] != [0, 1, 0]
    (run / LAST).unlink()
    assert main(["evaluate", str(run), "--last"]) == 2
    assert "has no last.safetensors" in capsys.readouterr().err


def test_another_folder_writes_to_a_file_of_its_own(run, tmp_path):
    assert main(["evaluate", str(run)]) == 0
    own = (run / "evaluation.json").read_bytes()
    trained = depict.load(run).config.data.root
    shutil.copytree(trained, tmp_path / "test photos")
    (tmp_path / "test photos/images/val/é 4.png").unlink()
    assert main(["evaluate", str(run), "--root", str(tmp_path / "test photos"), "--multiscale"]) == 0
    assert main(["evaluate", str(run), "--root", str(tmp_path / "test photos")]) == 0
    written = json.loads((run / "evaluation_root-test photos.json").read_text())
    assert (written["data"], written["root"], len(written["images"])) == ("folder", "test photos", 4)
    assert len(json.loads((run / "evaluation_root-test photos_multiscale.json").read_text())["images"]) == 4
    assert (run / "evaluation.json").read_bytes() == own
    (tmp_path / "link").symlink_to(trained)
    (run / "evaluation.json").unlink()
    assert main(["evaluate", str(run), "--root", str(tmp_path / "link")]) == 0  # the same folder as in training
    assert (run / "evaluation.json").read_bytes() == own


def test_holdout_evaluates_the_images_on_which_the_training_validated(run, tmp_path, capsys):
    model = load(run)
    model.config.data = dataclasses.replace(model.config.data, train_split="trainval", every=2, holdout=0.4)
    depict.save(model, tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), "--split", "holdout"]) == 0
    record = json.loads((tmp_path / "run/evaluation_holdout.json").read_text())
    validation = resolve(model.config).validation
    assert [image["name"] for image in record["images"]] == [validation.name_of(i) for i in range(len(validation))]
    assert main(["evaluate", str(run), "--split", "holdout"]) == 2
    assert "this split needs a run trained with --data.holdout" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["missing", "size"])
def test_a_faulty_mask_is_named_before_any_image_is_evaluated(run, tmp_path, capsys, fault):
    shutil.copytree(depict.load(run).config.data.root, tmp_path / "data")
    mask = tmp_path / "data/masks/val/é 4.png"
    mask.unlink()
    if fault == "size":
        Image.new("L", (3, 3)).save(mask)
    assert main(["evaluate", str(run), "--root", str(tmp_path / "data"), "--save", str(tmp_path / "pictures")]) == 2
    error = capsys.readouterr().err.strip()
    assert "no mask for" in error if fault == "missing" else "é 4.png' is 3x3" in error
    assert "\n" not in error
    assert not (tmp_path / "pictures").exists()


def test_pictures_show_the_prediction_in_class_colors_and_the_errors(run, tmp_path):
    assert main(["evaluate", str(run), "--save", str(tmp_path)]) == 0
    with Image.open(tmp_path / "predictions/é 3.png") as picture:
        assert picture.mode == "P"
        labels = np.asarray(picture)
        colors = np.asarray(picture.convert("RGB"))
    written = json.loads((run / "evaluation.json").read_text())["images"][3]
    with Image.open(tmp_path / "errors/é 3.png") as picture:
        errors = np.asarray(picture.convert("RGB")).astype(int)
    np.testing.assert_array_equal(colors, 255 * np.eye(3, dtype=np.uint8)[labels])
    assert (errors[:5] == 96).all()  # ignored
    wrong = errors[5:, :, 0] >= int(0.7 * 255)
    assert 1 - wrong.mean() == pytest.approx(written["aacc"], abs=1e-5)
    assert errors[5:][~wrong].max() <= 102


@pytest.mark.slow
def test_two_processes_count_each_image_once(run):
    assert main(["evaluate", str(run)]) == 0
    alone = json.loads((run / "evaluation.json").read_text())
    several = torchrun("evaluate", run)
    assert several.returncode == 0, several.stderr[-3000:]
    together = json.loads((run / "evaluation.json").read_text())
    assert together.pop("processes") == 2
    assert alone.pop("processes") == 1
    assert together == alone
    assert all(f"é {i}: " in (run / "evaluation.html").read_text() for i in range(5))  # of both processes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "scenes"], "the model has 3 classes, 'scenes' has"),
        (["--data", "scene"], "Did you mean 'scenes'?"),
        (["--stride", "33"], "stride 33 must be between 1 and the window 32"),
        (["--short-edge", "0"], "--short-edge must be at least 1, not 0"),
        (["--device", "cuda:99"], "the device 'cuda:99' cannot be used here"),
        (["--device", "meta"], "the device 'meta' cannot be used here"),
        (["--root", "nowhere"], "'nowhere'"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(run, capsys, arguments, message):
    assert main(["evaluate", str(run), *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_a_folder_that_is_not_a_run_is_refused(tmp_path, capsys):
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
    (tmp_path / "m.onnx").write_bytes(b"a graph")
    assert main(["evaluate", str(tmp_path / "m.onnx")]) == 2
    assert "m.onnx' is an exported model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "layout", "file", "values"),
    [
        ("ade20k", layouts.ade20k, "ADE_test_1", range(1, 151)),
        ("cityscapes", lambda root, _: layouts.cityscapes(root, {}), "berlin_000000_000019_leftImg8bit", EVALUATED),
    ],
)
def test_a_submission_holds_the_values_that_the_test_server_expects(tmp_path, capsys, name, layout, file, values):
    root = layout(tmp_path / "data", [1])
    cls = dataset_class(name)
    config = Config(
        encoder=EncoderConfig("vit_tiny_patch16_224", pretrained=False, depth=1, dim=48),
        decoder=DecoderConfig("linear"),
        data=DataConfig(name, root, short_edge=32, max_aspect=4.0),
        image_size=32,
    )
    depict.save(SegmentationModel(config, cls.classes, cls.palette), tmp_path / "run")
    command = ["evaluate", str(tmp_path / "run"), "--split", "test"]
    assert main([*command, "--submission", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "label maps of 1 images" in printed
    assert "mIoU" not in printed
    assert [path.name for path in (tmp_path / "out").iterdir()] == [f"{file}.png"]
    model = depict.load(tmp_path / "run")
    published = dataclasses.replace(model.sliding_window(), blend=False)
    labels = model.predictor(published).labels(np.asarray(Image.open(next(root.rglob(f"{file}.*"))).convert("RGB")))
    written = np.asarray(Image.open(tmp_path / "out" / f"{file}.png"))
    assert written.shape == labels.shape == (12, 16)
    assert len(np.unique(written)) > 1
    np.testing.assert_array_equal(written, np.array(values)[labels])
    assert not list((tmp_path / "run").glob("evaluation*"))
    assert main(command) == 2
    assert f"the test images of {name} have no ground truth" in capsys.readouterr().err


def test_a_submission_needs_a_data_set_with_a_test_server(run, capsys):
    assert main(["evaluate", str(run), "--submission", "out"]) == 2
    assert "folder has no test server: leave out --submission" in capsys.readouterr().err
