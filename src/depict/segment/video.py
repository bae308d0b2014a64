"""The frames of videos, read with PyAV (the extra `video`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from depict.errors import UserError
from depict.io.images import MAX_PIXELS


def check_installed(video: Path) -> None:
    """Raise if PyAV is missing, which is needed to read `video`."""
    if importlib.util.find_spec("av") is None:
        raise UserError(f"reading the video '{video}' needs PyAV: pip install av.")


def frame_count(path: Path) -> int | None:
    """The number of frames that a video states; None if it states none or cannot be read."""
    import av

    try:
        with av.open(str(path)) as container:
            return container.streams.video[0].frames or None
    except (av.FFmpegError, IndexError):
        return None


def video_frames(path: Path, rank: int = 0, world: int = 1) -> Iterator[tuple[int, np.ndarray]]:
    """Number (from 1) and upright RGB image (H, W, 3) of every world-th frame, beginning with frame rank + 1."""
    import av

    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise UserError(f"'{path}' contains no pictures, only sound or text.")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for number, frame in enumerate(container.decode(stream)):
                if number % world == rank:
                    if frame.width * frame.height > MAX_PIXELS:
                        raise UserError(f"'{path}' has frames of {frame.width} x {frame.height} pixels: too large.")
                    yield number + 1, np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
    except av.FFmpegError as error:
        raise UserError(f"'{path}' is not a readable video: {error.strerror}") from error
