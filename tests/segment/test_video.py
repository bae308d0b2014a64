"""Videos are read frame by frame, in order, and shared among processes."""

import importlib.util

import numpy as np
import pytest
from PIL import Image

from depict.errors import UserError
from depict.segment.collected import video_path
from depict.segment.inputs import find_inputs
from depict.segment.outputs import Outputs
from depict.segment.video import draw_video, frame_count, video_frames
from support.video import make_video


def test_a_video_without_its_library_says_how_to_get_it(tmp_path, monkeypatch):
    (tmp_path / "clip.mp4").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match=r"clip.mp4' needs PyAV: pip install av\."):
        find_inputs([str(tmp_path / "clip.mp4")], tmp_path)


def test_the_frames_of_a_video_come_in_order_and_are_shared_out(tmp_path):
    make_video(tmp_path / "clip.mp4", 7)
    assert [one.name for one in find_inputs([str(tmp_path / "clip.mp4")], tmp_path)[0]] == ["clip.mp4"]
    assert frame_count(tmp_path / "clip.mp4") == 7
    frames = list(video_frames(tmp_path / "clip.mp4"))
    assert [number for number, _ in frames] == [1, 2, 3, 4, 5, 6, 7]
    assert all(frame.shape == (48, 64, 3) and frame.dtype == np.uint8 for _, frame in frames)
    for number, frame in frames:
        assert abs(frame.mean() - 20 * number) < 4
    shares = [[number for number, _ in video_frames(tmp_path / "clip.mp4", rank, 2)] for rank in range(2)]
    assert shares == [[1, 3, 5, 7], [2, 4, 6]]


def test_a_damaged_video_is_named_in_one_line(tmp_path):
    pytest.importorskip("av")
    (tmp_path / "clip.mp4").write_bytes(b"nothing of the kind")
    assert frame_count(tmp_path / "clip.mp4") is None
    with pytest.raises(UserError, match="clip.mp4' is not a readable video") as caught:
        list(video_frames(tmp_path / "clip.mp4"))
    assert "\n" not in str(caught.value)


def test_a_drawn_video_has_the_frames_and_the_times_of_its_source(tmp_path):
    av = pytest.importorskip("av")
    make_video(tmp_path / "clip.avi", 7)
    seen = []

    def draw(number: int, image: np.ndarray) -> Image.Image:
        seen.append(number)
        return Image.fromarray(255 - image[:47, :63])  # sides that H.264 cannot have

    draw_video(tmp_path / "clip.avi", tmp_path / "out/clip.mp4", draw)
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    with av.open(str(tmp_path / "clip.avi")) as source, av.open(str(tmp_path / "out/clip.mp4")) as drawn:
        assert drawn.streams.video[0].average_rate == source.streams.video[0].average_rate == 10
        times = [[frame.time for frame in each.decode(video=0)] for each in (source, drawn)]
    assert times[1] == pytest.approx([time - times[0][0] for time in times[0]], abs=1e-3)
    for number, frame in video_frames(tmp_path / "out/clip.mp4"):
        assert frame.shape == (48, 64, 3)
        assert abs(frame.mean() - (255 - 20 * number)) < 4


def test_a_video_that_cannot_be_drawn_leaves_nothing(tmp_path):
    pytest.importorskip("av")
    (tmp_path / "clip.mp4").write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match="cannot draw the overlays of"):
        draw_video(tmp_path / "clip.mp4", tmp_path / "out.mp4", lambda _, image: Image.fromarray(image))
    assert [path.name for path in tmp_path.iterdir()] == ["clip.mp4"]


def test_the_overlays_of_two_videos_never_share_a_name(tmp_path):
    pytest.importorskip("av")
    for name in ("clip.avi", "clip.avi.mp4"):
        (tmp_path / name).touch()
    inputs = find_inputs([str(tmp_path / "clip.avi"), str(tmp_path / "clip.avi.mp4")], tmp_path)[0]
    outputs = Outputs(tmp_path, (), (), ())
    assert len({video_path(outputs, one) for one in inputs}) == 2
