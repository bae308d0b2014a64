"""Strange files, names and flags given to `depict segment`."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from depict.commands import segment as segment_command
from depict.viz.overlays import OPACITY
from support.segmenting import png, read, segment, summary
from support.strange_files import account, make_mixed


def test_a_damaged_file_whose_name_is_not_utf8_is_named_and_counted(run, tmp_path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")).write_bytes(b"x")
    assert segment(run, tmp_path, "--out", tmp_path / "out") == 1
    row = summary(tmp_path / "out")["pictures"][0]
    assert row["status"] == "failed"
    assert "caf\\xe9.png' is not a readable image" in row["error"]


@pytest.mark.parametrize("given", ["", "*", "**/*.png"])
def test_outputs_may_be_in_the_folder_of_the_pictures(run, pictures, capsys, given):
    assert segment(run, f"{pictures}/{given}", "--out", pictures, "--probabilities") == 0
    files = sorted(pictures.rglob("*"))
    assert segment(run, f"{pictures}/{given}", "--out", pictures, "--probabilities") == 0
    assert "3 pictures: 0 written, 3 kept, 0 failed" in capsys.readouterr().out
    assert sorted(pictures.rglob("*")) == files


def test_the_orientation_that_a_camera_recorded_is_applied(run, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(tmp_path / "turned.jpg", exif=exif)
    assert segment(run, tmp_path / "turned.jpg", "--out", tmp_path / "out") == 0
    assert read(tmp_path / "out/labels/turned.png").shape == (40, 20)


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
    (pictures / "locked/a.png").write_bytes(png())
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


def test_a_name_that_is_not_utf8_is_segmented_and_reported(run, tmp_path):
    raw = os.fsencode(tmp_path) + b"/caf\xe9.png"
    Path(os.fsdecode(raw)).write_bytes(png())
    assert segment(run, tmp_path, "--out", tmp_path / "out") == 0
    assert summary(tmp_path / "out")["pictures"][0]["name"] == "caf\\xe9"
    assert [os.fsencode(path.name) for path in (tmp_path / "out/labels").iterdir()] == [b"caf\xe9.png"]


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
