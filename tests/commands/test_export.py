"""`depict export` from the command line, and `depict segment` of what it wrote."""

import json
import re
import subprocess
import sys
from importlib.metadata import requires

import pytest
from PIL import Image

from conftest import REPOSITORY
from depict.cli import main
from depict.data.scenes.dataset import render
from depict.runs import save
from support.tiny_model import tiny_model

pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")

ALONE = """
import sys
from importlib.metadata import packages_distributions
from depict.cli import main
code = main(["segment", *sys.argv[1:]])
loaded = {name.partition(".")[0] for name in sys.modules}
print(*sorted({of.lower() for name, of_name in packages_distributions().items() if name in loaded for of in of_name}))
sys.exit(code)
"""
"""Segment, then print the packages that were imported."""


@pytest.mark.slow
def test_the_packages_that_the_guide_names_are_enough_to_segment_with_an_onnx_file(tmp_path):
    guide = (REPOSITORY / "docs/interchange.md").read_text(encoding="utf-8")
    named = set(re.search(r"^pip install (numpy .*)$", guide, re.MULTILINE)[1].split())
    required = {re.match(r"[\w-]+", text)[0].lower() for text in requires("depict")}
    assert named <= required
    save(tiny_model("linear"), tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "model.onnx")]) == 0
    for ending in ("jpg", "png"):
        Image.fromarray(render(1, 2, (50, 70))[0]).save(tmp_path / f"picture_{ending}.{ending}")
    pictures = [str(path) for path in tmp_path.glob("picture*")]
    command = [sys.executable, "-c", ALONE, str(tmp_path / "model.onnx"), *pictures, "--out", str(tmp_path / "out")]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    imported = set(answer.stdout.splitlines()[-1].split())
    assert imported & required == named


@pytest.mark.slow
def test_a_run_is_exported_quantized_measured_and_applied(tmp_path, capsys):
    save(tiny_model("linear"), tmp_path / "run")
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
    assert main(["segment", str(file), str(tmp_path / "picture.png"), "--out", str(out)]) == 0
    assert Image.open(out / "labels" / "picture.png").size == (70, 50)
    assert json.loads((out / "summary.json").read_text())


def test_errors_are_one_line(tmp_path, capsys):
    save(tiny_model("linear"), tmp_path / "run")
    run, file, exported = (str(tmp_path / name) for name in ("run", "model.onnx", "m.onnx"))
    (tmp_path / "m.onnx").write_bytes(b"a graph")
    for arguments, message in (
        ([run, str(tmp_path / "model.pt")], "must end in .onnx"),
        ([str(tmp_path), file], "is not a run folder"),
        ([exported, file], "m.onnx' is an exported model"),
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
