"""Videos in, overlays as videos out, with PyAV (the extra `video`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

from depict.errors import UserError
from depict.io.files import atomic_path
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


def draw_video(source: Path, out: Path, draw: Callable[[int, np.ndarray], Image.Image]) -> None:
    """Write a video of the pictures that `draw` makes of each frame, given its number (from 1) and image (H, W, 3).

    H.264 in MP4 without sound. Each frame is shown when that of the source is, so frame rate and length are the same.
    """
    import av

    try:
        with av.open(str(source)) as inside, atomic_path(out) as temporary:
            shown = inside.streams.video[0]
            shown.thread_type = "AUTO"
            rate = shown.average_rate or Fraction(25)
            with av.open(str(temporary), "w", format="mp4", options={"movflags": "faststart"}) as container:
                stream = container.add_stream("h264", rate=rate, options={"crf": "20"})
                stream.pix_fmt = "yuv420p"
                for number, frame in enumerate(inside.decode(shown), 1):
                    image = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
                    picture = draw(number, image)
                    if number == 1:  # H.264 halves the colors, so that sides are even
                        stream.width, stream.height = (side + side % 2 for side in picture.size)
                    drawn = av.VideoFrame.from_image(_fitted(picture, (stream.width, stream.height)))
                    if frame.pts is not None and frame.time_base is not None:
                        drawn.pts, drawn.time_base = frame.pts, frame.time_base
                    container.mux(stream.encode(drawn))
                container.mux(stream.encode())
    except av.FFmpegError as error:
        raise UserError(f"cannot draw the overlays of '{source}' as a video: {error.strerror}") from error


def _fitted(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The picture with its last row or column repeated where `size` (width, height) has one more."""
    if all(0 <= wanted - side <= 1 for wanted, side in zip(size, picture.size, strict=True)):
        edges = ((0, size[1] - picture.height), (0, size[0] - picture.width), (0, 0))
        return Image.fromarray(np.pad(np.asarray(picture), edges, "edge"))
    return picture.resize(size)  # a video may change its size
