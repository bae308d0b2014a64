"""Rasters in blocks: the labels of the whole picture, in bounded memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depict.errors import UserError
from depict.io.geotiff import open_raster
from depict.segment import raster as rasters
from depict.segment.raster import predict_blocks, spans
from support.geotiff import make_geotiff
from support.tiny_model import tiny_model

pytest.importorskip("rasterio", reason="rasterio is not installed")


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 50))
def test_blocks_cover_every_pixel_once_and_read_what_they_are_responsible_for(length, step, overlap):
    found = spans(length, step, overlap)
    assert [span.first for span in found] == [0, *(span.last for span in found[:-1])]
    assert found[-1].last == found[-1].stop == length
    for span in found:
        assert span.start <= span.first < span.last <= span.stop
        assert span.stop - span.start <= step + overlap + overlap // 2
    for one, other in itertools.pairwise(found):
        assert one.stop - other.start == overlap


@pytest.mark.parametrize("confidence", [False, True])
@pytest.mark.parametrize("size", [(150, 170), (40, 300), (31, 33)])
def test_blocks_give_the_labels_of_the_whole_picture(model, tmp_path, monkeypatch, size, confidence):
    monkeypatch.setattr(rasters, "BLOCK", 70)
    image = picture(*size)
    make_geotiff(tmp_path / "a.tif", image.transpose(2, 0, 1))
    whole = model.predict(image, tile=40)  # a tile of the model's short edge: nothing is resized
    predictor = model.predictor(model.sliding_window(tile=40))
    labels, certain = np.full(size, 255, np.uint8), np.full(size, np.nan, np.float32)
    with open_raster(tmp_path / "a.tif") as raster:
        blocks = list(predict_blocks(predictor, raster, confidence))
    for block in blocks:
        inside = block.window.toslices()
        np.testing.assert_array_equal(block.image, image[inside])
        labels[inside] = block.labels
        if confidence:
            certain[inside] = block.confidence
        else:
            assert block.confidence is None
    assert len(blocks) > 1 or min(size) == 31
    assert max(block.image.size for block in blocks) < 3 * 100 * 100
    if confidence:
        np.testing.assert_allclose(certain, whole.confidence, atol=1e-5)
    assert (labels == whole.labels).mean() > 0.999  # windows of other batches are rounded differently


def test_a_raster_that_is_too_large_to_be_resized_needs_a_tile(model, tmp_path, monkeypatch):
    monkeypatch.setattr(rasters, "MAX_PIXELS", 1000)
    make_geotiff(tmp_path / "a.tif", picture(40, 50).transpose(2, 0, 1))
    with open_raster(tmp_path / "a.tif") as raster:
        with pytest.raises(UserError, match=r"has 50 x 40 pixels, more than 1000: give --tile N"):
            next(predict_blocks(model.predictor(), raster))
        assert next(predict_blocks(model.predictor(model.sliding_window(tile=40)), raster)).labels.shape == (40, 50)
