"""Files, folders and patterns become inputs in order, with names that never collide."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depict.errors import UserError
from depict.segment import inputs
from depict.segment.inputs import find_inputs, natural


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def names(*given: Path | str, out: str = "nowhere") -> list[str]:
    return [one.name for one in find_inputs([str(one) for one in given], Path(out))[0]]


def test_a_folder_is_searched_recursively_in_natural_order(tmp_path):
    touch(tmp_path, "frame10.png", "frame2.png", "frame1.JPG", "b/9.png", "b/10.png")
    assert names(tmp_path) == ["b/9", "b/10", "frame1", "frame2", "frame10"]


@given(st.lists(st.integers(0, 10**6), min_size=1, unique=True))
def test_numbers_in_names_sort_by_value(numbers):
    shuffled = [Path(f"clip/frame {n} é.png") for n in numbers]
    random.Random(0).shuffle(shuffled)
    assert [p.name for p in sorted(shuffled, key=natural)] == [f"frame {n} é.png" for n in sorted(numbers)]


def test_pictures_that_differ_only_in_their_suffix_keep_it(tmp_path):
    touch(tmp_path, "a.jpg", "a.png", "b.png", "c/a.jpg")
    assert sorted(names(tmp_path)) == ["a.jpg", "a.png", "b", "c/a"]


def test_a_picture_whose_output_would_have_the_name_of_a_folder_keeps_its_suffix(tmp_path):
    touch(tmp_path, "x.jpg", "x.png/y.jpg", "z.jpg", "w.jpg", "W.NPZ/y.jpg")
    assert names(tmp_path) == ["W.NPZ/y", "w.jpg", "x.jpg", "x.png/y", "z"]
    touch(tmp_path, "x.jpg.png/y.jpg")
    assert "x.jpg_" in names(tmp_path)


def test_names_stay_distinct_when_a_kept_suffix_gives_the_name_of_another(tmp_path):
    touch(tmp_path, "a.jpg", "a.png", "a.png.jpg")
    assert len(set(names(tmp_path))) == 3


ALIKE = ["a.jpg", "a.png", "a.png.jpg", "A.tif", "a.mp4", "a.mp4.jpg", "a.jpg_", "a.jpg_.png"]
ALIKE += ["a.png/a.jpg", "A.NPZ/a.jpg", "a.jpg.png/a.jpg", "a.jpg_.png/a.jpg"]


def test_no_two_inputs_share_a_name_nor_is_an_output_the_folder_of_another():
    for size in range(1, 5):
        for files in itertools.combinations(map(Path, ALIKE), size):
            if any(file.parent in files for file in files):
                continue  # no file is a folder, too
            named = inputs._named([Path("/x") / file for file in files], Path("/x"))
            pictures, videos = ([one.name.casefold() for one in named if one.video == video] for video in (False, True))
            assert len({*pictures, *videos}) == size, files
            folders = {Path(one.name.casefold()).parent.as_posix() for one in named}
            assert folders.isdisjoint(name + ending for name in pictures for ending in (".png", ".npz")), files


def test_the_same_stem_in_two_folders_mirrors_the_tree(tmp_path):
    touch(tmp_path, "x/a.png", "y/a.png")
    assert names(tmp_path / "x", tmp_path / "y") == ["x/a", "y/a"]
    assert names(tmp_path / "x/../y/a.png", tmp_path / "x/a.png") == ["y/a", "x/a"]


def test_a_file_that_is_given_twice_is_read_once(tmp_path):
    touch(tmp_path, "a.png")
    assert names(tmp_path, tmp_path / "a.png", tmp_path / "*.png") == ["a"]


def test_other_files_hidden_files_and_the_output_folder_are_left_out(tmp_path):
    touch(tmp_path, "a.png", "notes.txt", "clip.mp4", ".hidden.png", ".git/b.png", "out/labels/a.png")
    found, ignored = find_inputs([str(tmp_path)], tmp_path / "out")
    assert [one.name for one in found] == ["a"]
    assert sorted(path.name for path in ignored) == ["clip.mp4", "notes.txt"]


def test_outputs_among_the_pictures_never_become_inputs(tmp_path):
    touch(tmp_path, "a.png", "labels/a.png", "sub/labels/b.png", "summary.json", "sub/summary.json")
    own = ["labels", "summary.json"]
    found, ignored = find_inputs([str(tmp_path)], tmp_path, own)
    assert [one.name for one in found] == ["a", "sub/labels/b"]
    assert ignored == [tmp_path / "sub/summary.json"]
    found, ignored = find_inputs([f"{tmp_path}/**/*.png", f"{tmp_path}/summary.json"], tmp_path, own)
    assert [one.name for one in found] == ["a", "sub/labels/b"]
    assert ignored == [tmp_path / "labels/a.png", tmp_path / "summary.json"]
    found, ignored = find_inputs([f"{tmp_path}/*", f"{tmp_path}/sub"], tmp_path / "sub", own)
    assert [one.name for one in found] == ["a", "labels/a", "summary"]
    assert ignored == []


def test_a_file_that_is_given_by_itself_may_have_any_suffix(tmp_path):
    touch(tmp_path, "scan.dat")
    assert names(tmp_path / "scan.dat") == ["scan"]


def test_links_to_folders_are_not_followed_in_circles(tmp_path):
    touch(tmp_path, "a.png")
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "again.png").symlink_to(tmp_path)
    found, ignored = find_inputs([str(tmp_path)], tmp_path / "out")
    assert [one.name for one in found] == ["a"]
    assert ignored == [tmp_path / "again", tmp_path / "again.png"]
    assert names(tmp_path / "again") == ["a"]


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """A folder of a user without root's permissions, as whom this process runs inside the block."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_cannot_be_listed_is_named():
    with ordinary_user() as folder:
        touch(folder, "a.png", "locked.mp4/b.png")
        locked = folder / "locked.mp4"
        locked.chmod(0)
        found, ignored = find_inputs([str(folder)], folder / "out")
        with pytest.raises(UserError) as caught:
            find_inputs([str(locked)], folder / "out")
    said = f"cannot read '{locked}': Permission denied."
    assert [(one.name, one.error, one.video) for one in found] == [("a", None, False), ("locked.mp4", said, False)]
    assert ignored == []
    assert str(caught.value) == said


def test_everything_is_reported_in_a_folder_that_may_be_listed_but_not_entered():
    with ordinary_user() as folder:
        touch(folder, "a.png", "half/b.png", "half/deep/c.png")
        (folder / "half").chmod(0o400)
        found, _ = find_inputs([str(folder)], folder / "out")
    assert [(one.name, one.error is None) for one in found] == [("a", True), ("half/b", True), ("half/deep", False)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "no pictures given"),
        (["missing.png"], "there is no file or folder 'missing.png'"),
        (["missing*.png"], "nothing matches 'missing*.png'"),
        (["empty"], "no picture in 'empty' (1 other files)"),
    ],
)
def test_missing_inputs_are_reported(tmp_path, monkeypatch, given, said):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "empty/readme.txt")
    with pytest.raises(UserError) as caught:
        find_inputs(given, tmp_path / "out")
    assert said in str(caught.value)
