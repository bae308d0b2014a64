"""A short run of the load test: own answers under load, hostile uploads refused."""

import subprocess
import sys

import pytest

from conftest import REPOSITORY


@pytest.mark.slow
def test_clients_get_their_own_answers_and_hostile_uploads_are_refused():
    command = [sys.executable, str(REPOSITORY / "benchmarks/serving.py")]
    command += ["--clients", "40", "--seconds", "5", "--hostile", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every answer was right, every attack was refused" in done.stdout
    assert "20 hostile uploads of 20 kinds: {'refused': 20}" in done.stdout
