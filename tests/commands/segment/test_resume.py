"""What `depict segment` keeps: only outputs that it can prove to be those of the picture, model and settings."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

import depict
from depict.commands.segment import _exit_on_signals
from depict.io.coco import read_coco
from depict.io.files import locked_folder
from depict.runs import save
from depict.segment import outputs as outputs_module
from support.segmenting import png, read, segment, summary
from support.several_processes import ENVIRONMENT, start_processes


@pytest.mark.parametrize("flags", [(), ("--overwrite",)])
def test_files_that_are_not_outputs_are_not_overwritten(run, tmp_path, capsys, flags):
    (tmp_path / "labels").mkdir()
    (tmp_path / "8.png").write_bytes(png())
    (tmp_path / "labels/8.png").write_bytes(b"a mask made by hand")
    assert segment(run, tmp_path / "8.png", "--out", tmp_path, *flags) == 2
    error = capsys.readouterr().err
    assert f"'{tmp_path / 'labels'}' holds files that may not be outputs" in error
    assert error.count("\n") == 1
    assert (tmp_path / "labels/8.png").read_bytes() == b"a mask made by hand"


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


@pytest.mark.parametrize(("ending", "expected"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGHUP, SystemExit)])
def test_a_signal_whose_exception_python_drops_ends_the_call_after_the_picture(ending, expected, capsys):
    def collected_when_the_signal_comes():
        try:
            yield
        finally:
            signal.raise_signal(ending)

    with pytest.raises(expected), _exit_on_signals() as check:
        check()
        generator = collected_when_the_signal_comes()
        next(generator)
        del generator
        dropped = True
        check()
    assert dropped
    assert capsys.readouterr().err == ""


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


def test_a_folder_with_the_name_of_an_output_is_no_obstacle(run, tmp_path):
    folder = tmp_path / "pictures"
    (folder / "x.png").mkdir(parents=True)
    for name in ("x.jpg", "x.png/y.jpg", "z.jpg"):
        (folder / name).write_bytes(png())
    assert segment(run, folder, "--out", tmp_path / "out") == 0
    assert sorted(row["name"] for row in summary(tmp_path / "out")["pictures"]) == ["x.jpg", "x.png/y", "z"]
