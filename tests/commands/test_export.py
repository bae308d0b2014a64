"""`depict export` from the command line, and `depict segment` of what it wrote."""

import json
import subprocess
import sys

import pytest
from PIL import Image

from depict.cli import main
from depict.data.scenes import render
from tiny_model import tiny_model

pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")

WITHOUT_TORCH = """
import sys
from depict.cli import main
code = main(["segment", *sys.argv[1:]])
heavy = {"torch", "torchvision", "timm", "onnx", "scipy", "matplotlib", "accelerate"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else code)
"""


def test_a_run_is_exported_quantised_measured_and_applied_without_torch(tmp_path, capsys):
    tiny_model("linear").save(tmp_path / "run")
    file = tmp_path / "model.onnx"
    assert main(["export", str(tmp_path / "run"), str(file), "--int8", "--images", "2"]) == 0
    printed = capsys.readouterr().out
    assert "images 1 x 3 x 32 x 32: masks differ from PyTorch by at most" in printed
    assert "largest difference" in printed
    assert "mIoU on 2 images: " in printed
    assert f"written: {file}" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"run", "model.onnx"}

    Image.fromarray(render(1, 2, (50, 70))[0]).save(tmp_path / "picture.png")
    out = tmp_path / "out"
    command = [sys.executable, "-c", WITHOUT_TORCH, str(file), str(tmp_path / "picture.png"), "--out", str(out)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert Image.open(out / "labels" / "picture.png").size == (70, 50)
    assert json.loads((out / "summary.json").read_text())


def test_mistakes_are_told_in_one_line(tmp_path, capsys):
    tiny_model("linear").save(tmp_path / "run")
    run, file = str(tmp_path / "run"), str(tmp_path / "model.onnx")
    for arguments, message in (
        ([run, str(tmp_path / "model.pt")], "must end in .onnx"),
        ([str(tmp_path), file], "is not a run folder"),
        ([run, file, "--batch", "0"], "batch must be at least 1"),
        ([run, file, "--int8", "--images", "0"], "--images must be at least 1"),
        ([run, file, "--int8", "--data", "scene"], "Did you mean 'scenes'"),
        ([run, file, "--int8", "--data", "camvid", "--root", str(tmp_path)], str(tmp_path)),
    ):
        assert main(["export", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "model.onnx").exists()
