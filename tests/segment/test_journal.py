"""The journal tells outputs that are kept from those that are made again, and from files that are not touched."""

import json

import pytest
from PIL import Image

from depict.errors import UserError
from depict.segment.journal import Journal


@pytest.fixture
def files(tmp_path):
    """The outputs of a picture: a label map and its probabilities."""
    paths = [tmp_path / "labels" / "a.png", tmp_path / "probabilities" / "a.npz"]
    for path in paths:
        path.parent.mkdir()
    Image.new("P", (9, 9)).save(paths[0])
    paths[1].write_bytes(b"PK\x05\x06" + bytes(18))  # an empty archive
    return paths


def finished(out, files, source="A/a.jpg", content="1", settings="s", rank=0):
    journal = Journal(out, settings, rank)
    journal.begin("a", source)
    journal.finish("a", source, content, files)


def keeps(out, files, source="A/a.jpg", content="1", settings="s"):
    return Journal(out, settings).keeps("a", source, content, files)


def test_complete_outputs_are_kept_for_the_same_content_and_settings_only(tmp_path, files):
    finished(tmp_path, files)
    assert keeps(tmp_path, files)
    assert keeps(tmp_path, files[:1])
    assert keeps(tmp_path, files, source="moved/a.jpg")
    assert not keeps(tmp_path, files, content="2")
    assert not keeps(tmp_path, files, settings="other")
    assert not keeps(tmp_path, [*files, tmp_path / "overlays" / "a.png"])


def test_outputs_that_were_begun_and_not_finished_are_not_kept(tmp_path, files):
    finished(tmp_path, files)
    Journal(tmp_path, "s").begin("a", "B/a.jpg")
    assert not keeps(tmp_path, files)
    assert not keeps(tmp_path, files, source="B/a.jpg")


def test_outputs_of_another_picture_and_files_of_others_are_not_touched(tmp_path, files):
    with pytest.raises(UserError, match=r"labels/a.png' was not written by depict: choose another --out, or give"):
        keeps(tmp_path, files)
    finished(tmp_path, files)
    with pytest.raises(UserError, match="'B/a.jpg' would overwrite the outputs of 'A/a.jpg'"):
        keeps(tmp_path, files, source="B/a.jpg", content="2")


@pytest.mark.parametrize("number", [0, 1])
def test_an_output_that_is_cut_is_made_again_and_one_that_is_changed_is_not_touched(tmp_path, files, number):
    finished(tmp_path, files)
    whole = files[number].read_bytes()
    for length in (0, 10, len(whole) - 1):
        files[number].write_bytes(whole[:length])
        assert not keeps(tmp_path, files)
    if number == 0:
        Image.new("P", (8, 9)).save(files[0])
    else:
        files[1].write_bytes(b"PK\x05\x06" + bytes(16) + b"\x01\x00!")  # with a comment
    with pytest.raises(UserError, match=f"{files[number].name}' was changed after depict wrote it: choose another"):
        keeps(tmp_path, files)


def test_a_line_that_a_crash_has_cut_does_not_count_and_harms_no_other(tmp_path, files):
    finished(tmp_path, files)
    path = tmp_path / ".journal" / "0.jsonl"
    content = path.read_bytes()
    for length in range(len(content) - 200, len(content)):
        path.write_bytes(content[:length])
        assert not keeps(tmp_path, files)
    finished(tmp_path, files)
    assert keeps(tmp_path, files)


def test_the_last_call_counts_whatever_its_number_of_processes(tmp_path, files):
    finished(tmp_path, files, content="1", rank=2)
    finished(tmp_path, files, content="2", rank=0)
    finished(tmp_path, files, content="3", rank=1)
    assert [keeps(tmp_path, files, content=content) for content in "123"] == [False, False, True]


@pytest.mark.parametrize(
    "line",
    ["", "no JSON", "7", "[]", "{}", '{"name": 1, "call": 9, "source": "A/a.jpg"}', '{"name": "a"}', "[" * 90_000],
)
def test_foreign_lines_are_ignored(tmp_path, files, line):
    finished(tmp_path, files)
    with (tmp_path / ".journal" / "0.jsonl").open("a") as file:
        file.write(f"\n{line}\n\xff")
    assert keeps(tmp_path, files)


def test_names_that_are_not_utf8_are_recorded(tmp_path, files):
    journal = Journal(tmp_path, "s")
    journal.begin("caf\udce9", "A")
    journal.finish("caf\udce9", "A", "1", files)
    assert Journal(tmp_path, "s").keeps("caf\udce9", "A", "1", files)
    assert json.loads((tmp_path / ".journal/0.jsonl").read_bytes().split(b"\n")[-1])["name"] == "caf\udce9"
