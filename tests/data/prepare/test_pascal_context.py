from __future__ import annotations

import contextlib
import json
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

from depict.data.prepare.pascal_context import IDS, convert_annotations, convert_pickles, decode_runs
from depict.errors import UserError


def runs_of(mask: np.ndarray) -> list[int]:
    """The run lengths of a mask down its columns, beginning with a run of 0."""
    flat = np.concatenate([[0], mask.T.ravel().astype(int)])
    edges = np.flatnonzero(np.diff(flat))
    return np.diff([0, *edges, mask.size]).tolist()


def as_text(runs: list[int]) -> str:
    """COCO's text form of run lengths, written number by number."""
    text = ""
    for i, run in enumerate(runs):
        value, more = run - runs[i - 2] if i > 2 else run, True
        while more:
            bits, value = value & 31, value >> 5
            more = value != (-1 if bits & 16 else 0)
            text += chr(48 + bits + 32 * more)
    return text


def annotation(image_id: int, category: int, mask: np.ndarray, text: bool = True) -> dict:
    runs = runs_of(mask)
    return {
        "image_id": image_id,
        "category_id": category,
        "segmentation": {"size": list(mask.shape), "counts": as_text(runs) if text else runs},
    }


def image(number: int, phase: str, height: int = 4, width: int = 6) -> dict:
    name = f"{number // 10**6}_{number % 10**6:06d}.jpg"
    return {"image_id": number, "file_name": name, "phase": phase, "height": height, "width": width}


def left_half(columns: int = 3) -> np.ndarray:
    mask = np.zeros((4, 6), bool)
    mask[:, :columns] = True
    return mask


@pytest.fixture
def tiny() -> dict:
    return {
        "images": [image(2008000002, "train"), image(2010000001, "val"), image(2008000001, "train"), image(9, "test")],
        "annos_segmentation": [
            annotation(2008000002, 2, left_half()),
            annotation(2008000002, 458, left_half(1)),
            annotation(2010000001, 259, ~left_half(), text=False),
            annotation(7, 2, left_half()),
        ],
        "categories": [],
    }


def converted(tmp_path, data) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    (tmp_path / "a.json").write_text(json.dumps(data))
    convert_annotations(tmp_path / "a.json", tmp_path / "VOC2010")
    voc = tmp_path / "VOC2010"
    masks = {p.name: np.array(Image.open(p)) for p in (voc / "SegmentationClassContext").iterdir()}
    lists = {p.stem: p.read_text().split() for p in (voc / "ImageSets/SegmentationContext").iterdir()}
    return masks, lists


def test_the_text_form_of_a_square_is_decoded():
    mask = np.zeros((100, 100), bool)
    mask[:50, 50:] = True
    assert (decode_runs("Xl4b1b1" + "0" * 98, 100, 100) == mask).all()


def test_the_text_form_of_a_small_polygon_is_decoded():
    runs = [7, 2, 4, 13, 1, 4, 3, 1, 1, 2, 7]
    assert (decode_runs("724;MG2MN16", 9, 5) == decode_runs(runs, 9, 5)).all()


@given(arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=70)))
def test_any_mask_comes_back_from_its_runs(mask):
    runs = runs_of(mask)
    assert (decode_runs(runs, *mask.shape) == mask).all()
    assert (decode_runs(as_text(runs), *mask.shape) == mask).all()


@given(st.text("0123456PQoé~", max_size=8))
def test_any_other_text_is_a_value_error_or_a_mask_of_the_right_size(text):
    with contextlib.suppress(ValueError):
        assert decode_runs(text, 3, 2).shape == (3, 2)


def test_the_classes_are_in_the_order_of_their_ids():
    assert len(IDS) == 60
    assert list(IDS) == sorted(set(IDS))
    assert IDS[0] == 0


def test_annotations_become_masks_and_lists(tmp_path, tiny):
    masks, lists = converted(tmp_path, tiny)
    assert lists == {"train": ["2008_000001", "2008_000002"], "val": ["2010_000001"]}
    assert set(masks) == {"2008_000001.png", "2008_000002.png", "2010_000001.png"}
    expected = np.zeros((4, 6), np.uint8)
    expected[:, :3], expected[:, :1] = 1, 59  # the later annotation overwrites the earlier
    assert (masks["2008_000002.png"] == expected).all()
    assert (masks["2008_000001.png"] == 0).all()
    assert (masks["2010_000001.png"][:, 3:] == IDS.index(259)).all()
    assert masks["2010_000001.png"].dtype == np.uint8


def test_masks_of_an_interrupted_conversion_are_replaced(tmp_path, tiny):
    half = tmp_path / "VOC2010/SegmentationClassContext"
    half.mkdir(parents=True)
    (half / "old.png").write_bytes(b"")
    masks, _ = converted(tmp_path, tiny)
    assert "old.png" not in masks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["images"][0].update(file_name="../../evil.jpg"), "name a file"),
        (lambda d: d["images"][0].update(height=5), "runs of 24 pixels for a mask of 30"),
        (lambda d: d["images"][0].update(height=10**9), "has size"),
        (lambda d: d["annos_segmentation"][0].update(category_id=3), "unknown category 3"),
        (lambda d: d["annos_segmentation"][0].update(segmentation=[[1, 2, 3, 4, 5, 6]]), "not Pascal Context"),
        (lambda d: d["annos_segmentation"][0]["segmentation"].update(counts="~~~"), "2008_000002.jpg' has"),
        (lambda d: d.pop("images"), "key 'images'"),
        (lambda d: d.update(images=5), "not Pascal Context"),
    ],
)
def test_a_malformed_annotation_file_is_reported_in_one_line(change, message, tmp_path, tiny):
    change(tiny)
    with pytest.raises(UserError, match=message) as error:
        converted(tmp_path, tiny)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("*.png"))


def test_a_file_that_is_not_json_is_named(tmp_path):
    (tmp_path / "a.json").write_text("<html>")
    with pytest.raises(UserError, match=r"a\.json' is not valid JSON"):
        convert_annotations(tmp_path / "a.json", tmp_path)


def test_ready_masks_become_files(tmp_path):
    labels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    torch.save({2008000002: Image.fromarray(labels)}, tmp_path / "train.pth")
    torch.save({2010000001: Image.fromarray(labels[::-1].copy())}, tmp_path / "val.pth")
    convert_pickles(tmp_path / "train.pth", tmp_path / "val.pth", tmp_path)
    assert (np.array(Image.open(tmp_path / "SegmentationClassContext/2008_000002.png")) == labels).all()
    assert (tmp_path / "ImageSets/SegmentationContext/val.txt").read_text() == "2010_000001\n"


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("content", [Hostile(), {1: Hostile()}, {"x": 1}, [1, 2]])
def test_a_pickle_of_anything_else_runs_no_code(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(content, "train.pth")
    with pytest.raises(UserError, match=r"train\.pth.*--trust-pickle"):
        convert_pickles(tmp_path / "train.pth", tmp_path / "val.pth", tmp_path)
    assert not (tmp_path / "evil").exists()


def test_ready_masks_with_other_labels_are_refused(tmp_path):
    wrong = {2008000002: Image.fromarray(np.full((4, 6), 200, np.uint8))}
    torch.save(wrong, tmp_path / "train.pth")
    torch.save({}, tmp_path / "val.pth")
    with pytest.raises(UserError, match=r"image 2008000002 in 'train.pth' does not hold labels 0..59"):
        convert_pickles(tmp_path / "train.pth", tmp_path / "val.pth", tmp_path)
