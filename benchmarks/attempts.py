"""What the attack tries, each in a process of its own: how it ended, and what is wrong with that."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np

from depict import cli
from depict.errors import UserError
from support.layouts import rectangles
from support.trainings import small_command

for module in ("accelerate", "matplotlib.backends.backend_agg", "torchvision.transforms.v2"):
    importlib.import_module(module)  # what commands import when they run, so that forks of this process need not
for module in ("interchange.checkpoint", "training.loop", "segment.pipeline"):
    importlib.import_module(f"depict.{module}")

MEMORY = 1 << 30
"""Bytes that a hostile file may make a process grow by."""
Attempts = Iterator[tuple[str, str | None]]
"""What was tried, and what went wrong; None if nothing did."""


@dataclass
class Ended:
    """How a process ended: its exit code (negative: the signal), seconds, bytes of growth, and what it printed."""

    code: int
    seconds: float
    printed: bytes
    growth: int = 0

    @property
    def problem(self) -> str | None:
        """What is wrong with a call that may succeed, or end with one line of ours."""
        lines = [line for line in self.printed.decode(errors="replace").splitlines() if line.startswith("depict: ")]
        if self.code not in (0, 1, 2) or b"Traceback" in self.printed:
            return f"exit code {self.code}: {self.printed[-500:].decode(errors='replace')}"
        if self.code == 2 and len(lines) != 1:
            return f"{len(lines)} lines of error: {self.printed[-500:].decode(errors='replace')}"
        if self.growth > MEMORY:
            return f"{self.growth >> 20} MB of memory"
        return None


class Attack:
    """What every section needs: a folder, random numbers, and how often things are tried."""

    def __init__(self, folder: Path, seed: int, quick: bool) -> None:
        self.folder, self.quick = folder, quick
        self.random = np.random.default_rng(seed)
        self.data = rectangles(folder / "data")

    def times(self, few: int, many: int) -> int:
        """How often: `few` times if it has to be quick."""
        return few if self.quick else many

    def new(self, name: str) -> Path:
        """A new folder."""
        path = self.folder / name
        path.mkdir(parents=True)
        return path

    def command(self, out: Path, *more: str) -> list[str]:
        """A training of 18 steps that saves every second one and is validated twice."""
        return small_command(self.data, out, "--epochs", "6", "--save-every", "2", "--validate-every", "3", *more)


def in_child(task: Callable[[], Any], kill_after: float | None = None) -> Ended:
    """Run a task in a fork of this process, in which torch is imported already; SIGKILL it after some seconds."""
    with tempfile.TemporaryFile() as output:
        process = multiprocessing.get_context("fork").Process(target=_child, args=(task, output.fileno()))
        started = time.perf_counter()
        process.start()
        process.join(kill_after)
        if process.is_alive():
            process.kill()
            process.join()
        seconds = time.perf_counter() - started
        output.seek(0)
        printed = output.read()
    printed, _, growth = printed.partition(b"\ngrowth ")
    return Ended(process.exitcode or 0, seconds, printed, int(growth) if growth.isdigit() else 0)


def _child(task: Callable[[], Any], output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        code = task() or 0
    except UserError as error:
        print(f"depict: {error}", file=sys.stderr)
        code = 2
    except SystemExit as stop:  # tyro's
        code = stop.code
    sys.stderr.flush()
    sys.stdout.flush()
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    os.write(1, f"\ngrowth {growth << 10}".encode())
    os._exit(code if isinstance(code, int) else 0)


def depict(*words: object) -> Callable[[], int]:
    """A call of the command line."""
    return partial(cli.main, [str(word) for word in words])
