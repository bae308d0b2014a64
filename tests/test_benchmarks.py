"""The benchmarks still run. Their figures come from full runs on an idle machine; these here are small."""

import json
import os
import subprocess
import sys

import pytest

from conftest import REPOSITORY
from depict.data.scenes.dataset import Scenes

SMALL = {
    "allocation": "--encoder test_efficientnet --side 64 --batch 1 --rounds 1",
    "denormals": "",
    "levers": "--shares shares.json --out study --data scenes --encoder test_efficientnet --encoder.pretrained False "
    "--image-size 64 --data.every 64 --data.holdout 0.25 --data.workers 0 --epochs 1 --batch 4 --device cpu "
    "--decoders us_orthonormal us_compress us_prior us_principal us_scaled sparse "
    "linear_fine linear_relu linear_raw linear_all linear_deep",
    "inference": "--only resized --size 64 --rounds 1",
    "loading": "--images 4 --batches 2",
    "loss": "--classes 3 --side 64 --batch 1 --repeats 1",
    "mixed_images": "--count 45 --largest 60 40",
    "onnx_export": "--encoder vit_tiny_patch16_224 --side 64 --classes 3 --seconds 0.2",
    "operators": "--most 256",
    "rendering": "--classes 3",
    "segmenting": "--encoder vit_tiny_patch16_224 --count 2 --classes 3",
    "thin_classes": "--data scenes --strides 8",
    "training_step": "--side 64 --batch 1 --classes 3 --steps 2",
}
ELSEWHERE = {"attack", "peers", "serving"}
"""Tested in tests/docs, tests/studies and tests/web."""


def scripts() -> set[str]:
    paths = (REPOSITORY / "benchmarks").glob("*.py")
    return {path.stem for path in paths if "if __name__" in path.read_text()}


def test_every_benchmark_is_run_by_a_test():
    assert scripts() <= set(SMALL) | ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs(name, tmp_path):
    classes = [{"name": one, "share": 1 / len(Scenes.classes)} for one in Scenes.classes]
    (tmp_path / "shares.json").write_text(json.dumps({"splits": [{"classes": classes}]}))
    command = [sys.executable, str(REPOSITORY / "benchmarks" / f"{name}.py"), *SMALL[name].split()]
    environment = os.environ | {"DEPICT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
