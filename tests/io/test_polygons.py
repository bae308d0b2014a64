"""Label maps as polygons: exact, with holes, and written as GeoJSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depict.io.polygons import label_polygons, ring_area, write_geojson

features = pytest.importorskip("rasterio.features", reason="rasterio is not installed")

NAMES = ("sky", "road", "car")


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([np.uint8, np.int16]), st.integers(0, 2**32 - 1))
def test_the_polygons_of_a_label_map_are_its_pixels(height, width, dtype, seed):
    labels = np.random.default_rng(seed).integers(0, 3, (height, width)).astype(dtype)
    found = list(label_polygons(labels, NAMES))
    assert sum(each["properties"]["pixels"] for each in found) == labels.size
    shapes = [(each["geometry"], each["properties"]["label"] + 1) for each in found]
    np.testing.assert_array_equal(features.rasterize(shapes, labels.shape) - 1, labels)


def test_a_region_has_its_class_its_size_and_its_holes():
    labels = np.zeros((5, 6), np.uint8)
    labels[1:4, 1:4] = 2
    labels[2, 2] = 1
    [car] = label_polygons(labels, NAMES, [2])
    assert car["properties"] == {"class": "car", "label": 2, "pixels": 8}
    outer, hole = car["geometry"]["coordinates"]
    assert set(outer) == {(1, 1), (1, 4), (4, 4), (4, 1)}
    assert ring_area(hole) == 1


def test_labels_without_a_name_have_no_polygon():
    labels = np.array([[0, 255]], np.uint8)
    assert [each["properties"]["class"] for each in label_polygons(labels, NAMES)] == ["sky"]


def test_small_regions_become_part_of_their_neighbor():
    labels = np.zeros((6, 6), np.uint8)
    labels[2, 2] = 1
    assert len(list(label_polygons(labels, NAMES))) == 2
    [sky] = label_polygons(labels, NAMES, smallest=2)
    assert sky["properties"]["pixels"] == 36


def test_the_file_is_a_collection_of_features(tmp_path):
    labels = np.array([[0, 1, 1], [0, 2, 2]], np.uint8)
    found = list(label_polygons(labels, NAMES))
    assert write_geojson(tmp_path / "a.geojson", iter(found)) == 3
    written = json.loads((tmp_path / "a.geojson").read_text())
    assert written["type"] == "FeatureCollection"
    assert written["features"] == json.loads(json.dumps(found))
    assert write_geojson(tmp_path / "none.geojson", iter(())) == 0
    assert json.loads((tmp_path / "none.geojson").read_text())["features"] == []
