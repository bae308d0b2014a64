"""`depict serve` from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from depict.cli import main
from support.explorer import encoded, picture


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "'nowhere' is not a run folder"),
        (["nowhere.onnx"], "there is no file 'nowhere.onnx'"),
        (["a", "a"], "a run was given twice"),
        (["nowhere", "--workers", "0"], "--workers must be at least 1"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys):
    assert main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_run_the_command_serves_the_shipped_model_until_it_is_told_to_stop(tmp_path, number):
    command = [sys.executable, "-m", "depict.cli", "serve", "--port", "0"]
    (tmp_path / "depict-ade20k").mkdir()  # of a user, who did not name the model
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ)
    )
    try:
        first, second = process.stdout.readline(), process.stdout.readline()
        assert first.startswith("serving depict-ade20k at http://127.0.0.1:")
        assert second == "only this machine can open it; Ctrl-C stops\n"
        address = first.split()[-1]
        for _ in range(100):
            try:
                with urllib.request.urlopen(address + "health") as answer:
                    assert json.load(answer)["status"] == "ok"
                break
            except OSError:
                time.sleep(0.1)
        request = urllib.request.Request(address + "segment", encoded(picture()))
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["run"] == "depict-ade20k"
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stdout.read() == "stopped\n"
    finally:
        process.kill()
