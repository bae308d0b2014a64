import json

import pytest
from PIL import Image

from depict.cli import main
from support import layouts


@pytest.fixture
def folder(tmp_path):
    """Ten pairs of 16x12 pixels, two classes."""
    layouts.folder(tmp_path, [str(index) for index in range(10)], [0, 1])
    (tmp_path / "classes.yaml").write_text("names: [left, right]\n")
    return tmp_path


def test_a_good_set_is_reported_and_drawn(folder, capsys):
    out, show = folder / "out" / "report.json", folder / "out" / "show.png"
    arguments = ["check", "--data", "folder", "--root", str(folder), "--json", str(out), "--show", str(show)]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "folder, train" in text and "folder, val" in text
    assert "ready for training" in text
    report = json.loads(out.read_text())
    assert report["usable"] is True
    assert sum(split["samples"] for split in report["splits"]) == 10
    assert [c["pixels"] for c in report["splits"][0]["classes"]] == [12 * 8 * report["splits"][0]["samples"]] * 2
    with Image.open(show) as picture:
        assert picture.format == "PNG"


def test_a_set_that_would_stop_training_exits_with_one(folder, capsys):
    (folder / "masks" / "3.png").unlink()
    show = folder / "show.png"
    assert main(["check", "--data", "folder", "--root", str(folder), "--show", str(show)]) == 1
    text = capsys.readouterr().out
    assert f"no mask for '{folder / 'images' / '3.jpg'}'" in text
    assert "training would fail" in text
    assert not show.exists()


def test_files_of_the_data_set_are_not_overwritten(folder, capsys):
    mask, annotations = folder / "masks/3.png", folder / "annotations.json"
    annotations.write_text("{}")
    before = mask.read_bytes()
    for flag, path in (("--show", mask), ("--json", annotations)):
        assert main(["check", "--data", "folder", "--root", str(folder), flag, str(path)]) == 2
        assert f"{flag} '{path}' is in '{folder}' and would be overwritten" in capsys.readouterr().err
    assert (mask.read_bytes(), annotations.read_text()) == (before, "{}")


def test_black_and_white_masks_with_other_values_in_classes_yaml_have_one_class(tmp_path, capsys):
    layouts.folder(tmp_path, [str(index) for index in range(10)], [0, 255])
    (tmp_path / "classes.yaml").write_text("names: [background, leaf]\n")
    assert main(["check", "--data", "folder", "--root", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "only one class has pixels" in text and "`values: [0, 255]`" in text and "learn nothing" in text
    (tmp_path / "classes.yaml").write_text("names: [background, leaf]\nvalues: [0, 255]\n")
    assert main(["check", "--data", "folder", "--root", str(tmp_path)]) == 0


def test_one_split_alone_can_be_read(folder, capsys):
    assert main(["check", "--data", "folder", "--root", str(folder), "--split", "val"]) == 0
    text = capsys.readouterr().out
    assert "folder, val" in text
    assert "folder, train" not in text


def test_test_images_without_masks_are_ready_for_prediction(folder, capsys):
    layouts.save(folder / "images" / "test" / "new.jpg", layouts.picture())
    assert main(["check", "--data", "folder", "--root", str(folder), "--split", "test"]) == 0
    assert "1 of 1 images readable\n" in (text := capsys.readouterr().out)
    assert "no ground truth: ready for prediction" in text


@pytest.mark.parametrize(("split", "drawn"), [("both", "train"), ("train", "train"), ("val", "val")])
def test_the_picture_shows_training_images_or_those_of_the_split(folder, monkeypatch, split, drawn):
    calls = []
    monkeypatch.setattr("depict.viz.samples.draw_samples", lambda dataset, path, _: calls.append((dataset.split, path)))
    show = folder / "show.PNG"
    assert main(["check", "--data", "folder", "--root", str(folder), "--split", split, "--show", str(show)]) == 0
    assert calls == [(drawn, show)]


def test_samples_are_augmented_by_the_flags_of_a_training(folder, monkeypatch):
    calls = []
    monkeypatch.setattr("depict.viz.samples.draw_samples", lambda *arguments: calls.append(arguments[2]))
    command = ["check", "--data", "folder", "--root", str(folder), "--show", str(folder / "show.png")]
    assert main([*command, "--image-size", "64", "96", "--data.scale-range", "1", "2", "--data.no-flip"]) == 0
    assert main(command) == 0
    assert main([*command, "--no-augment"]) == 0
    changed, default, none = calls
    assert (changed.crop, changed.scale_range, changed.flip, changed.color_jitter) == ((64, 96), (1, 2), False, True)
    assert (default.crop, default.short_edge, default.scale_range, default.flip) == ((512, 512), 512, (0.5, 2), True)
    assert none is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "citiscapes", "--root", "."], "unknown data set 'citiscapes'. Did you mean 'cityscapes'?"),
        (["--data", "camvid"], "camvid needs --root DIR, a folder with train, trainannot"),
        (["--data", "camvid", "--root", "no/such/folder"], "cannot list 'no/such/folder/train'"),
        (["--data", "scenes", "--show", "s.txt"], "--show 's.txt' must end in .png."),
        (["--data", "scenes", "--data.short-edge", "0"], "--data.short-edge must be at least 1, not 0"),
        (
            ["--data", "scenes", "--data.scale-range", "2", "1"],
            "--data.scale-range must be the smallest and the largest",
        ),
        (["--data", "scenes", "--workers", "-3"], "--workers must be at least 0, not -3."),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_two(arguments, message, capsys):
    assert main(["check", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
