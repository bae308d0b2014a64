"""`depict study` from the command line: planned, run, killed, resumed, redrawn."""

import os
import signal
import subprocess
import sys
import time

import pytest

from depict.cli import main
from support.layouts import rectangles


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Four training pictures and one for validation."""
    return rectangles(tmp_path_factory.mktemp("pictures"), train=4, val=1, size=(32, 32))


def words(root, out, *more, study="decoders", epochs=1):
    settings = f"""--data folder --root {root} --data.short-edge 32 --data.max-aspect 2 --data.workers 0
        --epochs {epochs}
        --encoder vit_tiny_patch16_224 --encoder.pretrained False --encoder.patch-size 8 --encoder.dim 64
        --encoder.depth 1 --image-size 32 --batch 4 --lr 1e-3 --device cpu --save-every 1"""
    return ["study", study, "--out", str(out), *settings.split(), *more]


def start(arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "depict.cli", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path, process):
    until = time.monotonic() + 240
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, f"no {path}"
        time.sleep(0.02)


def test_a_dry_run_lists_every_cell_and_writes_nothing(pictures, tmp_path, capsys):
    out = tmp_path / "study"
    assert main(words(pictures, out, "--decoders", "linear", "depict_sa", "--seeds", "0", "1", "--dry-run")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["cell", "decoder", "seed", "images", "epochs", "steps", "time", "left"]
    assert [line.split()[:6] for line in lines[1:5]] == [
        [f"{name}_seed{seed}", name, str(seed), "4", "1", "1"] for name in ("linear", "depict_sa") for seed in (0, 1)
    ]
    assert lines[6].startswith("4 of 4 cells to do, about ")
    assert not out.exists()


@pytest.mark.slow
def test_a_killed_study_does_what_is_missing_when_it_is_called_again(pictures, tmp_path, capsys):
    out = tmp_path / "study"
    more = ["--decoders", "linear", "depict_sa,epochs=60"]
    process = start(words(pictures, out, *more))
    try:
        wait_for(out / "cells" / "depict_sa_epochs=60_seed0" / "state" / "last.pt", process)
    finally:
        process.kill()
        process.communicate()
    first = {path: path.read_bytes() for path in (out / "cells" / "linear_seed0").rglob("*") if path.is_file()}
    assert "1 of 2 cells finished" in (out / "results.md").read_text()
    assert main(["study", "decoders", "--out", str(out)]) == 0  # its settings are remembered
    printed = capsys.readouterr()
    assert "2 of 2 cells finished" in printed.out
    assert "cell 2 of 2" in printed.err
    assert "cell 1 of 2" not in printed.err
    assert all(path.read_bytes() == content for path, content in first.items())


@pytest.mark.slow
def test_ctrl_c_keeps_everything_and_ends_with_130(pictures, tmp_path):
    process = start(words(pictures, tmp_path / "study", "--decoders", "linear", epochs=100_000))
    try:
        wait_for(tmp_path / "study" / "cells" / "linear_seed0" / "state" / "last.pt", process)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert error.strip().splitlines()[-1].endswith("the same command resumes.")
    assert "Traceback" not in error


def test_results_are_redrawn_by_one_command(pictures, tmp_path, capsys):
    out = tmp_path / "study"
    assert main(words(pictures, out, "--decoders", "linear")) == 0
    assert "| linear | 1 |" in capsys.readouterr().out
    for path in out.glob("results.*"):
        path.unlink()
    for path in out.glob("cells/*/*.safetensors"):
        path.unlink()
    assert main(["study", "decoders", "--out", str(out), "--redraw"]) == 0
    assert "| linear | 1 |" in capsys.readouterr().out
    assert sorted(path.name for path in out.glob("results.*")) == [f"results.{k}" for k in ("json", "md", "png", "svg")]


def test_a_configuration_file_gives_the_settings_and_flags_override_it(pictures, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("train: {epochs: 7, batch: 2}\n")
    flags = words(
        pictures, tmp_path / "study", "--decoders", "linear", "--dry-run", "--config", f"{tmp_path}/mine.yaml"
    )
    at = flags.index("--epochs")
    assert main(flags[:at] + flags[at + 2 :]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[4:6] == ["7", "7"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--redraw"], "depict: no study 'decoders' to redraw in"),
        (["--decoders", "linaer"], "depict: unknown decoder 'linaer'. Did you mean 'linear'?"),
        (["--data.limit", "9"], "depict: --data.limit must be at most 4, the training images, not 9."),
        (["--decoders", "linear,batch=0"], "depict: --batch must be at least 1, not 0."),
    ],
)
def test_mistakes_end_with_one_line_and_code_2(pictures, tmp_path, capsys, more, message):
    assert main(words(pictures, tmp_path / "study", *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1
    assert not (tmp_path / "study").exists()


def test_a_study_needs_data(tmp_path, capsys):
    assert main(["study", "ablation", "--out", str(tmp_path / "study")]) == 2
    assert capsys.readouterr().err.startswith("depict: no data set: give --data NAME and --root DIR")
