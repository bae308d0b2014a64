"""A small video for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def make_video(path: Path, count: int) -> None:
    """Write frames of 64 x 48 pixels, each brighter by 20 than the one before."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * number + 20, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
