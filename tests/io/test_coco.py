"""Label maps as COCO annotations, and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depict.errors import UserError
from depict.io.coco import annotate, categories, encoded, paint_annotations, read_coco

mask = pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")

NAMES = ("sky", "road", "car")
LABELS = {1: 0, 2: 1, 3: 2}


@given(st.booleans(), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_annotations_give_back_the_label_map(polygons, height, width, seed):
    if polygons:
        pytest.importorskip("rasterio")
    labels = np.random.default_rng(seed).choice(np.array([0, 1, 2, 255], np.uint8), (height, width))
    annotations = json.loads(json.dumps(list(annotate(labels, NAMES, (0, 1, 2), polygons))))
    np.testing.assert_array_equal(paint_annotations(annotations, LABELS, height, width, 255), labels)
    for each in annotations:
        region = mask.decode(encoded(each, height, width))
        assert each["area"] == region.sum()
        rows, columns = np.nonzero(region)
        box = [columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1]
        assert each["bbox"] == box


def test_a_class_is_one_annotation_and_a_polygon_is_one_region():
    labels = np.array([[2, 0, 2], [2, 0, 0]], np.uint8)
    assert [each["category_id"] for each in annotate(labels, NAMES, (0, 2))] == [1, 3]
    pytest.importorskip("rasterio")
    cars = list(annotate(labels, NAMES, (2,), polygons=True))
    assert [each["area"] for each in cars] == [1, 2]
    assert all(isinstance(each["segmentation"], list) for each in cars)
    assert categories(NAMES, (0, 2)) == [{"id": 1, "name": "sky"}, {"id": 3, "name": "car"}]


def test_the_smaller_of_two_regions_is_on_top_in_any_order():
    def box(x, y, width, height, category):
        ring = [x, y, x + width, y, x + width, y + height, x, y + height]
        return {"category_id": category, "segmentation": [[float(value) for value in ring]]}

    regions = [box(0, 0, 4, 4, 2), box(1, 1, 2, 2, 3)]
    expected = np.ones((4, 4), np.uint8)
    expected[1:3, 1:3] = 2
    for order in (regions, regions[::-1]):
        np.testing.assert_array_equal(paint_annotations(order, LABELS, 4, 4, 0), expected)


def test_run_lengths_may_be_a_list_of_numbers():
    annotation = {"category_id": 3, "segmentation": {"size": [2, 3], "counts": [1, 2, 3]}}
    painted = paint_annotations([annotation], LABELS, 2, 3, 0)
    assert painted.tolist() == [[0, 2, 0], [2, 0, 0]]


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        (None, "no 'segmentation'"),
        ([], "no 'segmentation'"),
        ({"size": [3, 3], "counts": "0"}, r"for \[3, 3\] pixels, its image has \[2, 2\]"),
        ({"size": [2, 2], "counts": "11111111"}, "invalid"),
        ({"size": [2, 2]}, "invalid"),
        ({"size": [2, 2], "counts": ["a"]}, "invalid"),
        ([["a", "b"]], "invalid"),
        ([7], "invalid"),
        ("text", "invalid"),
    ],
)
def test_a_broken_annotation_is_one_line(segmentation, message):
    with pytest.raises(UserError, match=message) as caught:
        paint_annotations([{"category_id": 1, "segmentation": segmentation}], LABELS, 2, 2, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", '{"images": [], "categories": {}}', '{"images": [7]}', "[" * 100_000])
def test_a_file_that_is_not_coco_is_named(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match=r"a.json' is not"):
        read_coco(tmp_path / "a.json")
