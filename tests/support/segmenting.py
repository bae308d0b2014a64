"""`depict segment` in this process, and its outputs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from depict.cli import main

CLASSES = ("sky", "road", "car")
PALETTE = ((0, 0, 255), (120, 120, 120), (255, 0, 0))
"""Of the small run."""


def segment(run: Path, *arguments: object) -> int:
    """The exit code of `depict segment`."""
    return main(["segment", str(run), *map(str, arguments)])


def read(path: Path) -> np.ndarray:
    """The pixels of a picture."""
    with Image.open(path) as picture:
        return np.asarray(picture)


def summary(out: Path) -> dict:
    """The summary of a folder of outputs."""
    return json.loads((out / "summary.json").read_text())


def png() -> bytes:
    """A file with a small black picture."""
    buffer = io.BytesIO()
    Image.new("RGB", (5, 5)).save(buffer, "png")
    return buffer.getvalue()
