"""What every test shares: no network, one thread, and the material next to the repository if it is there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
# Some virtual machines announce AMX and then forbid it: bfloat16 would end in an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import settings

from support.browser import CHROMIUM, FLAGS

settings.register_profile("depict", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("depict")

# A job in the background of a shell ignores Ctrl-C, and so would every command that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _reproducible():
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` next to the repository: reference vectors, real images, real weights."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the folder 'shared' is not next to this repository")
    return folder


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()
