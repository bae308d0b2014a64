"""The demo from end to end, with a shorter training than the real one."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import depict
from depict.commands import demo
from depict.data.scenes.dataset import Scenes


@pytest.mark.slow
def test_both_decoders_are_trained_evaluated_and_drawn(tmp_path, monkeypatch, capsys):
    real = demo.config

    def small(decoder, quick):
        settings = real(decoder, quick)
        settings.train.epochs = settings.train.validate_every = 1
        settings.data.limit = 16
        return settings

    class InThisProcess:
        """Processes of a pool would not see the smaller settings."""

        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        map = staticmethod(map)

    monkeypatch.setenv("TQDM_POSITION", "0")  # the demo sets it in processes of its own
    monkeypatch.setattr(demo, "config", small)
    monkeypatch.setattr(demo, "SHOWN", (0, 1))
    monkeypatch.setitem(Scenes.images, "val", 4)
    monkeypatch.setattr(demo, "ProcessPoolExecutor", InThisProcess)
    demo.main(tmp_path / "demo")
    printed = capsys.readouterr().out
    assert "mean little" not in printed
    assert "DEPICT-SA" in printed
    assert "Segmenter" in printed
    for name in demo.DECODERS:
        assert depict.load(tmp_path / "demo" / name).num_classes == 8
    for name in ("demo.png", "photographs.png"):
        with Image.open(tmp_path / "demo" / name) as picture:
            assert picture.size[0] > 400


def test_every_photograph_is_drawn_above_its_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / demo.MODEL).mkdir()  # of a user, who did not name the model
    demo.draw_photographs(tmp_path / "photographs.png")
    with Image.open(tmp_path / "photographs.png") as picture:
        drawn = np.asarray(picture.convert("RGB"))
    left = 0
    for name in ("temple", "rocket", "astronaut"):
        with Image.open(demo.PHOTOGRAPHS / f"{name}.jpg") as file:
            photograph = np.asarray(file)
        height, width = photograph.shape[:2]
        columns = drawn[:, left : left + width]
        assert np.abs(columns[:height].astype(int) - photograph).mean() < 2  # decoders of JPEG round differently
        overlay = columns[height + 10 : 2 * height + 10]
        assert 10 < np.abs(overlay.astype(int) - photograph).mean() < 100  # the same picture, tinted
        left += width + 10
    assert drawn.shape[1] == left - 10


@pytest.mark.slow
def test_no_training_survives_a_killed_demo(tmp_path):
    command = [sys.executable, "-m", "depict.cli", "demo", "--quick"]
    demo_process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = [tmp_path / "runs/demo_quick" / name / "metrics.jsonl" for name in demo.DECODERS]
    wait_until(lambda: all(path.exists() and path.stat().st_size for path in metrics))
    trainings = [
        pid for pid in children(demo_process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(trainings) == 2
    demo_process.kill()
    demo_process.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in trainings))


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_both_decoders_get_the_same_budget_and_no_pretrained_weights():
    first, second = demo.config("depict_sa"), demo.config("segmenter")
    assert first.train == second.train
    assert first.encoder == second.encoder
    assert first.encoder.pretrained is False


def test_the_quick_demo_differs_only_in_its_schedule_and_number_of_scenes():
    quick, full = demo.config("depict_sa", quick=True), demo.config("depict_sa")
    assert quick.train.epochs == quick.train.validate_every == 1
    assert full.train.epochs == 12
    assert (quick.data.limit, full.data.limit) == (300, None)
    quick.train, quick.data = full.train, full.data
    assert quick == full
