"""Videos are read frame by frame, in order, and shared among processes."""

import importlib.util

import numpy as np
import pytest

from depict.errors import UserError
from depict.segment.inputs import find_inputs
from depict.segment.video import frame_count, video_frames
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
