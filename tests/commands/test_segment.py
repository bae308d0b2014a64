"""`depict segment` with a small run: every output, every kind of file, one process and two."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import depict
from depict.cli import main
from depict.commands import segment as segment_command
from depict.io.coco import paint_annotations, read_coco
from depict.io.files import locked_folder
from depict.model import create_model
from depict.runs import save
from depict.segment import outputs as outputs_module
from depict.segment.collected import GAP, TILE
from depict.segment.video import video_frames
from depict.viz.overlays import OPACITY
from support.geotiff import make_geotiff
from support.several_processes import ENVIRONMENT, start_processes, torchrun
from support.strange_files import account, make_mixed
from support.video import make_video

CLASSES = ("sky", "road", "car")
PALETTE = ((0, 0, 255), (120, 120, 120), (255, 0, 0))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    model = create_model("linear", "vit_tiny_patch16_224", image_size=32, classes=CLASSES, palette=PALETTE)
    model.encoder.vit.blocks = model.encoder.vit.blocks[:1]
    config = model.config
    config.encoder.depth = 1
    torch.nn.init.normal_(model.decoder.head.weight, std=0.5)
    folder = tmp_path_factory.mktemp("runs") / "run"
    save(model, folder)
    return folder


@pytest.fixture
def pictures(tmp_path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    random = np.random.default_rng(0)
    for index, size in enumerate([(40, 50), (33, 20), (70, 40)]):
        small = random.integers(0, 256, (4, 4, 3), np.uint8)
        Image.fromarray(small).resize(size[::-1], Image.Resampling.BICUBIC).save(folder / f"{index + 8}.png")
    return folder


def segment(run: Path, *arguments: object) -> int:
    return main(["segment", str(run), *map(str, arguments)])


def read(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


def summary(out: Path) -> dict:
    return json.loads((out / "summary.json").read_text())


def test_label_maps_are_the_models_own_with_the_palette_of_the_classes(run, pictures, tmp_path, capsys):
    out = tmp_path / "out"
    assert segment(run, pictures, "--out", out) == 0
    assert "3 pictures: 3 written, 0 kept, 0 failed" in capsys.readouterr().out
    model = depict.load(run)
    seen = set()
    for name in ("8", "9", "10"):
        expected = model.predict(read(pictures / f"{name}.png")).labels
        np.testing.assert_array_equal(read(out / "labels" / f"{name}.png"), expected)
        seen |= set(np.unique(expected).tolist())
        with Image.open(out / "labels" / f"{name}.png") as picture:
            assert picture.mode == "P"
            np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), np.array(PALETTE, np.uint8)[expected])
    assert len(seen) > 1  # a model of one answer would show nothing


def test_the_summary_has_the_share_of_each_class_in_natural_order(run, pictures, tmp_path):
    out = tmp_path / "out"
    assert segment(run, pictures, "--out", out) == 0
    found = summary(out)
    assert [row["name"] for row in found["pictures"]] == ["8", "9", "10"]
    for row in found["pictures"]:
        labels = read(out / "labels" / f"{row['name']}.png")
        assert (row["height"], row["width"]) == labels.shape
        for index, name in enumerate(CLASSES):
            assert row["shares"][name] == pytest.approx((labels == index).mean(), abs=1e-6)


def test_only_the_chosen_classes_are_written(run, pictures, tmp_path):
    assert segment(run, pictures, "--out", tmp_path / "all", "--probabilities") == 0
    assert segment(run, pictures, "--out", tmp_path / "some", "--classes", "car, sky", "--probabilities") == 0
    for row in summary(tmp_path / "some")["pictures"]:
        everything = read(tmp_path / "all/labels" / f"{row['name']}.png")
        some = read(tmp_path / "some/labels" / f"{row['name']}.png")
        np.testing.assert_array_equal(some, np.where(everything == 1, 255, everything))
        assert list(row["shares"]) == ["sky", "car", "(other)"]
        assert row["shares"]["(other)"] == pytest.approx((everything == 1).mean(), abs=1e-6)
        file = f"probabilities/{row['name']}.npz"
        with np.load(tmp_path / "all" / file) as whole, np.load(tmp_path / "some" / file) as part:
            assert part["classes"].tolist() == ["sky", "car"]
            np.testing.assert_array_equal(part["probabilities"], whole["probabilities"][..., [0, 2]])


def test_the_summary_has_a_legend_of_the_values_in_label_maps(run, pictures, tmp_path):
    assert segment(run, pictures, "--out", tmp_path / "some", "--classes", "car,sky") == 0
    *shown, other = summary(tmp_path / "some")["legend"]
    assert [(entry["value"], entry["name"]) for entry in shown] == [(0, "sky"), (2, "car")]
    assert other == {"value": 255, "name": "(other)"}
    for path in (tmp_path / "some/labels").iterdir():
        with Image.open(path) as picture:
            colors = np.array(picture.getpalette()).reshape(-1, 3)
        assert all(colors[entry["value"]].tolist() == entry["color"] for entry in shown)


@pytest.mark.parametrize("flags", [(), ("--overwrite",)])
def test_files_that_are_not_outputs_are_not_overwritten(run, tmp_path, capsys, flags):
    (tmp_path / "labels").mkdir()
    (tmp_path / "8.png").write_bytes(_png())
    (tmp_path / "labels/8.png").write_bytes(b"a mask made by hand")
    assert segment(run, tmp_path / "8.png", "--out", tmp_path, *flags) == 2
    error = capsys.readouterr().err
    assert f"'{tmp_path / 'labels'}' holds files that may not be outputs" in error
    assert error.count("\n") == 1
    assert (tmp_path / "labels/8.png").read_bytes() == b"a mask made by hand"


def test_a_damaged_file_whose_name_is_not_utf8_is_named_and_counted(run, tmp_path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")).write_bytes(b"x")
    assert segment(run, tmp_path, "--out", tmp_path / "out") == 1
    row = summary(tmp_path / "out")["pictures"][0]
    assert row["status"] == "failed"
    assert "caf\\xe9.png' is not a readable image" in row["error"]


def test_probabilities_sum_to_one_and_agree_with_the_labels(run, pictures, tmp_path):
    out = tmp_path / "out"
    assert segment(run, pictures, "--out", out, "--probabilities", "--multiscale") == 0
    for name in ("8", "9", "10"):
        labels = read(out / f"labels/{name}.png")
        with np.load(out / f"probabilities/{name}.npz") as file:
            probabilities = file["probabilities"]
        assert probabilities.dtype == np.float16
        assert probabilities.shape == (*labels.shape, 3)
        np.testing.assert_allclose(probabilities.astype(np.float32).sum(2), 1, atol=2e-3)
        chosen = np.take_along_axis(probabilities, labels[..., None].astype(int), 2)[..., 0]
        assert (chosen >= probabilities.max(2) - 1e-3).all()


def test_with_full_image_the_model_sees_each_picture_at_once(run, pictures, tmp_path):
    assert segment(run, pictures, "--out", tmp_path / "out", "--full-image") == 0
    model = depict.load(run)
    image = read(pictures / "10.png")  # larger than the window of 32 on both sides
    with torch.no_grad():
        logits = model(model.normalize(torch.tensor(image).permute(2, 0, 1))[None])[0]
    top = logits.topk(2, dim=0).values
    clear = (top[0] - top[1] > 1e-4).numpy()
    np.testing.assert_array_equal(read(tmp_path / "out/labels/10.png")[clear], logits.argmax(0).numpy()[clear])


def test_existing_outputs_are_kept_unless_overwrite_is_given(run, pictures, tmp_path, capsys):
    out = tmp_path / "out"
    assert segment(run, pictures / "8.png", "--out", out) == 0
    path = out / "labels/8.png"
    shares = summary(out)["pictures"][0]["shares"]
    os.utime(path, (1, 1))
    assert segment(run, pictures, "--out", out) == 0
    assert "2 written, 1 kept" in capsys.readouterr().out
    assert path.stat().st_mtime == 1
    assert {row["name"]: row["status"] for row in summary(out)["pictures"]} == {
        "8": "kept",
        "9": "written",
        "10": "written",
    }
    assert summary(out)["pictures"][0]["shares"] == shares
    assert segment(run, pictures, "--out", out, "--overwrite") == 0
    assert path.stat().st_mtime > 1


@pytest.mark.parametrize("given", ["", "*", "**/*.png"])
def test_outputs_may_be_in_the_folder_of_the_pictures(run, pictures, capsys, given):
    assert segment(run, f"{pictures}/{given}", "--out", pictures, "--probabilities") == 0
    files = sorted(pictures.rglob("*"))
    assert segment(run, f"{pictures}/{given}", "--out", pictures, "--probabilities") == 0
    assert "3 pictures: 0 written, 3 kept, 0 failed" in capsys.readouterr().out
    assert sorted(pictures.rglob("*")) == files


def test_a_damaged_or_missing_output_is_made_again(run, pictures, tmp_path):
    out = tmp_path / "out"
    assert segment(run, pictures, "--out", out) == 0
    whole = (out / "labels/8.png").read_bytes()
    (out / "labels/8.png").write_bytes(whole[:50])
    (out / "overlays/9.png").unlink()
    assert segment(run, pictures, "--out", out) == 0
    assert [row["status"] for row in summary(out)["pictures"]] == ["written", "written", "kept"]
    assert (out / "labels/8.png").read_bytes() == whole
    overlay = (out / "overlays/10.png").read_bytes()
    (out / "overlays/10.png").write_bytes(overlay[: len(overlay) // 2])
    assert segment(run, pictures, "--out", out) == 0
    assert [row["status"] for row in summary(out)["pictures"]] == ["kept", "kept", "written"]
    assert (out / "overlays/10.png").read_bytes() == overlay


def test_an_output_that_someone_has_changed_is_not_kept_and_not_lost(run, pictures, tmp_path, capsys):
    out = tmp_path / "out"
    assert segment(run, pictures, "--out", out) == 0
    Image.new("P", (7, 7)).save(out / "labels/8.png")
    changed = (out / "labels/8.png").read_bytes()
    assert segment(run, pictures, "--out", out) == 1
    assert f"'{out / 'labels/8.png'}' was changed after depict wrote it" in capsys.readouterr().err
    assert (out / "labels/8.png").read_bytes() == changed
    assert segment(run, pictures, "--out", out, "--overwrite") == 0
    assert read(out / "labels/8.png").shape == (40, 50)


def test_outputs_of_a_picture_that_has_changed_are_made_again(run, pictures, tmp_path):
    out = tmp_path / "out"
    assert segment(run, pictures, "--out", out) == 0
    (pictures / "9.png").write_bytes((pictures / "8.png").read_bytes())
    assert segment(run, pictures, "--out", out) == 0
    assert [row["status"] for row in summary(out)["pictures"]] == ["kept", "written", "kept"]
    np.testing.assert_array_equal(read(out / "labels/9.png"), read(out / "labels/8.png"))


def test_what_a_killed_call_left_is_never_taken_for_the_outputs_of_other_pictures(run, pictures, tmp_path, capsys):
    """A call that is killed writes no rows to the summary; one of its pictures is begun and not finished."""
    out, other = tmp_path / "out", tmp_path / "other"
    assert segment(run, pictures, "--out", out) == 0
    (out / "summary.json").write_text(json.dumps(summary(out) | {"pictures": [], "written": 0}))
    journal = out / ".journal/0.jsonl"
    lines = journal.read_text().split("\n")
    journal.write_text("\n".join(line for line in lines if '"10"' not in line or '"outputs"' not in line))
    (out / "labels/.10.png.abc.part.png").write_bytes(b"half")
    whole = {name: read(out / f"labels/{name}.png") for name in ("8", "9", "10")}
    other.mkdir()
    for name, content in (("8", "10"), ("9", "8"), ("10", "9")):
        (other / f"{name}.png").write_bytes((pictures / f"{content}.png").read_bytes())
    assert segment(run, other, "--out", out, "--coco", "rle") == 1
    assert [row["status"] for row in summary(out)["pictures"]] == ["failed", "failed", "written"]
    assert [image["file_name"] for image in read_coco(out / "coco.json")["images"]] == ["10.png"]
    assert capsys.readouterr().err.count("would overwrite the outputs of") == 2
    np.testing.assert_array_equal(read(out / "labels/10.png"), whole["9"])
    assert not list(out.rglob(".*.part*"))
    assert segment(run, other, "--out", out, "--overwrite") == 0
    for name, content in (("8", "10"), ("9", "8"), ("10", "9")):
        np.testing.assert_array_equal(read(out / f"labels/{name}.png"), whole[content])


def test_a_call_with_other_settings_that_stopped_early_is_resumed_with_those_settings(run, pictures, tmp_path):
    out, expected = tmp_path / "out", tmp_path / "expected"
    assert segment(run, pictures, "--out", expected, "--classes", "car") == 0
    assert segment(run, pictures, "--out", out) == 0
    before = (out / "labels/9.png").read_bytes()
    assert segment(run, pictures / "8.png", "--out", out, "--classes", "car", "--overwrite") == 0
    assert before == (out / "labels/9.png").read_bytes()
    assert segment(run, pictures, "--out", out, "--classes", "car") == 0
    for name in ("8", "9", "10"):
        np.testing.assert_array_equal(read(out / f"labels/{name}.png"), read(expected / f"labels/{name}.png"))


def test_outputs_of_a_run_that_was_trained_again_are_not_kept(run, pictures, tmp_path, capsys):
    copied, out = shutil.copytree(run, tmp_path / "run"), tmp_path / "out"
    assert segment(copied, pictures, "--out", out) == 0
    model = depict.load(run)
    torch.nn.init.normal_(model.decoder.head.weight)
    save(model, copied)
    assert segment(copied, pictures, "--out", out) == 2
    assert "were made with another setting (weights: " in capsys.readouterr().err


def test_a_second_call_at_the_same_time_is_refused(run, pictures, tmp_path, capsys):
    out = tmp_path / "out"
    with locked_folder(out, "busy"):
        assert segment(run, pictures, "--out", out) == 2
    line = f"depict: another `depict segment` is writing to '{out}': wait for it, or choose another --out.\n"
    assert capsys.readouterr().err == line


def test_outputs_of_other_settings_or_another_file_are_not_kept_for_these(run, pictures, tmp_path, capsys):
    out = tmp_path / "out"
    assert segment(run, pictures / "8.png", "--out", out) == 0
    assert segment(run, pictures / "8.png", "--out", out, "--multiscale") == 2
    assert "made with another setting (multiscale: false)" in capsys.readouterr().err
    other = tmp_path / "other"
    other.mkdir()
    (pictures / "9.png").rename(other / "8.png")
    for _ in range(2):  # the refusal does not make the second file the owner
        assert segment(run, other / "8.png", "--out", out) == 1
        assert "would overwrite the outputs of" in capsys.readouterr().err
    assert segment(run, other / "8.png", "--out", out, "--overwrite") == 0
    assert [row["source"] for row in summary(out)["pictures"] if row["status"] != "failed"] == [str(other / "8.png")]


@pytest.mark.slow
def test_a_compiled_network_gives_the_same_labels(run, pictures, tmp_path, monkeypatch):
    # Only traced: generating machine code takes a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    assert segment(run, pictures, "--out", tmp_path / "plain", "--device", "cpu") == 0
    assert segment(run, pictures, "--out", tmp_path / "compiled", "--device", "cpu", "--compile") == 0
    for name in ("8", "9", "10"):
        plain, compiled = (read(tmp_path / kind / f"labels/{name}.png") for kind in ("plain", "compiled"))
        np.testing.assert_array_equal(plain, compiled)


def test_the_orientation_that_a_camera_recorded_is_applied(run, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(tmp_path / "turned.jpg", exif=exif)
    assert segment(run, tmp_path / "turned.jpg", "--out", tmp_path / "out") == 0
    assert read(tmp_path / "out/labels/turned.png").shape == (40, 20)


def test_a_full_disk_ends_the_work_and_leaves_nothing_half_written(run, pictures, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    real, calls = outputs_module.label_picture, []

    def full(*arguments):
        calls.append(arguments)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(outputs_module, "label_picture", full)
    assert segment(run, pictures, "--out", out, "--workers", "1") == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert "Traceback" not in error
    assert [row["name"] for row in summary(out)["pictures"]] == ["8"]
    assert [path.name for path in (out / "labels").iterdir()] == ["8.png"]
    assert not list(out.rglob("*.part*"))


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_call_leaves_complete_files_and_a_summary_and_is_resumed(run, tmp_path, ending, code):
    folder, out = tmp_path / "many", tmp_path / "out"
    folder.mkdir()
    for number in range(100):
        Image.new("RGB", (60, 60), (number % 256, 0, 0)).save(folder / f"{number}.png")
    command = [sys.executable, "-m", "depict.cli", "segment", str(run), str(folder), "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        while process.poll() is None and not (out / "labels/3.png").is_file():
            time.sleep(0.01)
        process.send_signal(ending)
        error = process.communicate()[1].decode()
    assert process.returncode == code, error
    assert "Traceback" not in error
    assert not list(out.rglob(".*.part*"))
    done = {path.stem for path in (out / "labels").iterdir()}
    assert {row["name"] for row in summary(out)["pictures"]} <= done
    assert len(done) < 100
    assert segment(run, folder, "--out", out) == 0
    kept = {row["name"] for row in summary(out)["pictures"] if row["status"] == "kept"}
    assert kept == done


@pytest.mark.slow
def test_a_killed_call_keeps_nothing_for_other_pictures_of_the_same_names(run, tmp_path):
    first, second, out = tmp_path / "first", tmp_path / "second", tmp_path / "out"
    random = np.random.default_rng(0)
    for folder in (first, second):
        folder.mkdir()
        for number in range(60):
            small = Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8))
            small.resize((60, 60), Image.Resampling.BICUBIC).save(folder / f"{number}.png")
    command = [sys.executable, "-m", "depict.cli", "segment", str(run), str(first), "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        while process.poll() is None and not (out / "labels/3.png").is_file():
            time.sleep(0.01)
        process.kill()
    assert summary(out)["pictures"] == []
    assert segment(run, second, "--out", out) == 1
    for folder in (first, second):
        assert segment(run, folder, "--out", tmp_path / f"expected_{folder.name}") == 0
    rows = {row["name"]: row["status"] for row in summary(out)["pictures"]}
    assert set(rows.values()) == {"failed", "written"}
    for name, status in rows.items():
        expected = tmp_path / ("expected_first" if status == "failed" else "expected_second")
        for kind in ("labels", "overlays"):
            assert (out / kind / f"{name}.png").read_bytes() == (expected / kind / f"{name}.png").read_bytes()
    assert not list(out.rglob(".*.part*"))


@pytest.mark.slow
def test_processes_that_torchrun_ends_leave_nothing_half_written(run, tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (1500, 1500)).save(tmp_path / name)
    out = tmp_path / "out"
    command = ["-m", "depict.cli", "segment", run, tmp_path, "--out", out]
    command += ["--probabilities", "--multiscale"]  # written as they are computed, which takes long
    started = start_processes(command, command)
    while all(one.poll() is None for one in started) and len(list(out.rglob(".*.part.npz"))) < 2:
        time.sleep(0.01)
    for one in started:
        one.terminate()
    error = [one.communicate()[1] for one in started]
    assert [one.returncode for one in started] == [143, 143], error
    assert not list(out.rglob(".*.part*"))


@pytest.mark.slow
def test_two_processes_share_the_pictures_and_write_one_summary(run, pictures, tmp_path):
    (pictures / "bad.png").write_bytes(b"")
    done = torchrun("segment", run, pictures, "--out", tmp_path / "two")
    assert done.returncode == 1, done.stderr[-3000:]
    assert "4 pictures: 3 written, 0 kept, 1 failed" in done.stdout
    assert segment(run, pictures, "--out", tmp_path / "one") == 1
    assert summary(tmp_path / "two") == summary(tmp_path / "one")
    for name in ("8", "9", "10"):
        one, two = (read(tmp_path / count / f"labels/{name}.png") for count in ("one", "two"))
        np.testing.assert_array_equal(one, two)


def test_a_video_gives_label_maps_of_its_frames_and_a_video_of_overlays(run, tmp_path):
    make_video(tmp_path / "clip.mp4", 3)
    assert segment(run, tmp_path / "clip.mp4", "--out", tmp_path / "out") == 0
    names = [f"{number:06d}.png" for number in (1, 2, 3)]
    assert sorted(path.name for path in (tmp_path / "out/labels/clip.mp4").iterdir()) == names
    video = tmp_path / "out/overlays/clip.mp4"
    frames = [frame for _, frame in video_frames(video)]
    assert len(frames) == 3
    assert frames[0].shape[0] > 48  # the legend
    made = video.stat().st_mtime_ns
    assert segment(run, tmp_path / "clip.mp4", "--out", tmp_path / "out") == 0
    assert video.stat().st_mtime_ns == made  # nothing is new
    video.unlink()
    assert segment(run, tmp_path / "clip.mp4", "--out", tmp_path / "out") == 0
    assert len(list(video_frames(video))) == 3
    make_video(tmp_path / "clip.mp4", 4)
    assert segment(run, tmp_path / "clip.mp4", "--out", tmp_path / "out") == 0
    assert len(list(video_frames(video))) == 4
    (tmp_path / "cut.mp4").write_bytes(b"no video")
    assert segment(run, tmp_path / "cut.mp4", "--out", tmp_path / "out") == 1


def test_confidence_is_a_picture_and_a_score_and_sorts_the_summary_and_the_sheet(run, pictures, tmp_path, capsys):
    out = tmp_path / "out"
    for status in ("written", "kept"):
        assert segment(run, pictures, "--out", out, "--sort", "confidence", "--sheet") == 0
        rows = summary(out)["pictures"]
        assert {row["status"] for row in rows} == {status}
        assert [row["confidence"] for row in rows] == sorted(row["confidence"] for row in rows)
        model = depict.load(run)
        for row in rows:
            levels = read(out / "confidence" / f"{row['name']}.png")
            expected = model.predict(pictures / f"{row['name']}.png").confidence
            np.testing.assert_allclose(levels / 255, expected, atol=0.003)
            assert row["confidence"] == pytest.approx(expected.mean(), abs=0.002)
        assert f"least certain: {rows[0]['name']} (" in capsys.readouterr().out
    least, most = (read(pictures / f"{rows[index]['name']}.png") for index in (0, -1))
    sheet = read(out / "contact_sheet.png")
    for number, image in ((0, least), (2, most)):
        tile = sheet[GAP:, GAP + number * (TILE + GAP) :][: image.shape[0], : image.shape[1]]
        np.testing.assert_array_equal(
            tile, read(out / "overlays" / f"{rows[number]['name']}.png")[: len(tile), : tile.shape[1]]
        )


def test_pictures_become_coco_annotations_that_give_back_the_label_maps(run, pictures, tmp_path):
    pytest.importorskip("pycocotools")
    pytest.importorskip("rasterio")
    for kind in ("rle", "polygons"):
        out = tmp_path / kind
        assert segment(run, pictures, "--out", out, "--coco", kind, "--classes", "road,car") == 0
        content = read_coco(out / "coco.json")
        assert [entry["file_name"] for entry in content["images"]] == ["8.png", "9.png", "10.png"]
        assert content["categories"] == [{"id": 2, "name": "road"}, {"id": 3, "name": "car"}]
        assert [entry["id"] for entry in content["annotations"]] == list(range(1, len(content["annotations"]) + 1))
        for entry in content["images"]:
            own = [each for each in content["annotations"] if each["image_id"] == entry["id"]]
            painted = paint_annotations(own, {2: 1, 3: 2}, entry["height"], entry["width"], 255)
            np.testing.assert_array_equal(painted, read(out / "labels" / entry["file_name"]))


def test_polygons_are_written_for_each_picture(run, pictures, tmp_path):
    pytest.importorskip("rasterio")
    assert segment(run, pictures, "--out", tmp_path / "out", "--polygons", "--classes", "road") == 0
    features = json.loads((tmp_path / "out/polygons/8.geojson").read_text())["features"]
    assert {each["properties"]["class"] for each in features} == {"road"}
    pixels = sum(each["properties"]["pixels"] for each in features)
    assert pixels == (read(tmp_path / "out/labels/8.png") == 1).sum()


def test_a_georeferenced_tiff_gives_rasters_at_its_place(run, tmp_path):
    rasterio = pytest.importorskip("rasterio")
    small = np.random.default_rng(0).integers(1, 256, (6, 8, 3), np.uint8)
    image = np.array(Image.fromarray(small).resize((160, 120)))
    image[:, :20] = 0
    make_geotiff(tmp_path / "field.tif", image.transpose(2, 0, 1), nodata=0)
    out = tmp_path / "out"
    for status in ("written", "kept"):
        assert segment(run, tmp_path / "field.tif", "--out", out, "--polygons", "--confidence", "--coco", "rle") == 0
        [row] = summary(out)["pictures"]
        assert (row["status"], row["height"], row["width"]) == (status, 120, 160)
        assert sum(row["shares"].values()) == pytest.approx(1, abs=1e-5)  # of the pixels with data
        assert 1 / 3 < row["confidence"] <= 1
    expected = depict.load(run).predict(image)
    with rasterio.open(tmp_path / "field.tif") as source, rasterio.open(out / "labels/field.tif") as written:
        assert (written.crs, written.transform, written.nodata) == (source.crs, source.transform, 255)
        labels = written.read(1)
    np.testing.assert_array_equal(labels[:, 20:], expected.labels[:, 20:])
    assert (labels[:, :20] == 255).all()
    with rasterio.open(out / "confidence/field.tif") as written:
        levels = written.read(1)
    np.testing.assert_allclose(levels[:, 20:] / 255, expected.confidence[:, 20:], atol=0.003)
    assert (levels[:, :20] == 0).all()
    assert read(out / "overlays/field.png").shape[1] == 160
    features = json.loads((out / "polygons/field.geojson").read_text())["features"]
    assert sum(each["properties"]["pixels"] for each in features) == 120 * 140
    assert features[0]["geometry"]["coordinates"][0][0][0] == pytest.approx(9, abs=0.01)
    assert [entry["file_name"] for entry in read_coco(out / "coco.json")["images"]] == ["field.tif"]
    (out / "labels/field.tif").write_bytes(b"damaged")
    assert segment(run, tmp_path / "field.tif", "--out", out, "--polygons", "--confidence") == 0
    assert summary(out)["pictures"][0]["status"] == "written"
    assert segment(run, tmp_path / "field.tif", "--out", tmp_path / "other", "--probabilities") == 1


def test_tiles_change_the_scale_and_are_part_of_the_settings(run, pictures, tmp_path, capsys):
    model, out = depict.load(run), tmp_path / "out"
    assert segment(run, pictures, "--out", out, "--tile", "20") == 0
    expected = model.predict(pictures / "10.png", tile=20).labels
    np.testing.assert_array_equal(read(out / "labels/10.png"), expected)
    assert segment(run, pictures, "--out", out) == 2
    assert "were made with another setting (tile: 20)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--opacity", "35"], "the opacity must be between 0 and 1, not 35.0."),
        (["--tile", "0"], "--tile must be at least 1, not 0."),
        (["--tile", "9", "--full-image"], "give --tile or --full-image, not both"),
        (["--sheet", "--no-overlay"], "--sheet shows overlays: omit --no-overlay."),
    ],
)
def test_flags_that_contradict_each_other_are_refused_before_any_work(run, pictures, tmp_path, capsys, flags, message):
    assert segment(run, pictures, "--out", tmp_path / "out", *flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_opacity_in_the_help_is_the_default_of_overlays():
    assert inspect.signature(segment_command.main).parameters["opacity"].default == OPACITY


def test_sixty_strange_files_are_all_accounted_for(run, tmp_path, capfd):
    folder = tmp_path / "mixed"
    expected = make_mixed(folder, 60, largest=(130, 90))
    assert segment(run, folder, "--out", tmp_path / "out", "--workers", "3") == 1
    assert account(folder, tmp_path / "out", expected) == []
    assert "Traceback" not in capfd.readouterr().err


def test_a_locked_folder_is_named_and_counted(run, pictures, tmp_path, monkeypatch, capsys):
    (pictures / "locked").mkdir()
    (pictures / "locked/a.png").write_bytes(_png())
    real = os.scandir

    def scandir(path):
        if Path(path).name == "locked":  # root would list it whatever its permissions are
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert segment(run, pictures, "--out", tmp_path / "out") == 1
    printed = capsys.readouterr()
    assert "4 pictures: 3 written, 0 kept, 1 failed" in printed.out
    error = f"cannot read '{pictures / 'locked'}': Permission denied."
    assert f"depict: skipped: {error}" in printed.err
    row = {"name": "locked", "source": str(pictures / "locked"), "status": "failed", "error": error}
    assert summary(tmp_path / "out")["pictures"][3:] == [row]


def test_a_folder_with_the_name_of_an_output_is_no_obstacle(run, tmp_path):
    folder = tmp_path / "pictures"
    (folder / "x.png").mkdir(parents=True)
    for name in ("x.jpg", "x.png/y.jpg", "z.jpg"):
        (folder / name).write_bytes(_png())
    assert segment(run, folder, "--out", tmp_path / "out") == 0
    assert sorted(row["name"] for row in summary(tmp_path / "out")["pictures"]) == ["x.jpg", "x.png/y", "z"]


def test_a_name_that_is_not_utf8_is_segmented_and_reported(run, tmp_path):
    raw = os.fsencode(tmp_path) + b"/caf\xe9.png"
    Path(os.fsdecode(raw)).write_bytes(_png())
    assert segment(run, tmp_path, "--out", tmp_path / "out") == 0
    assert summary(tmp_path / "out")["pictures"][0]["name"] == "caf\\xe9"
    assert [os.fsencode(path.name) for path in (tmp_path / "out/labels").iterdir()] == [b"caf\xe9.png"]


def _png() -> bytes:
    import io

    buffer = io.BytesIO()
    Image.new("RGB", (5, 5)).save(buffer, "png")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.png"], "there is no file or folder 'missing.png'"),
        (["{pictures}", "--classes", "skye"], "unknown class 'skye'. Did you mean 'sky'?"),
        (["{pictures}", "--classes", ","], "--classes names no class"),
        (["{pictures}", "--workers", "0"], "--workers must be at least 1"),
        (["{pictures}", "--device", "cuda:99"], "the device 'cuda:99' cannot be used here"),
        ([], "no pictures given"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(run, pictures, tmp_path, capsys, arguments, message):
    arguments = [word.format(pictures=pictures) for word in arguments]
    assert segment(run, *arguments, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_the_pipeline_needs_no_torch():
    code = "import sys, depict.segment.pipeline, depict.commands.segment; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
