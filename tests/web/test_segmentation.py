"""What the page gets of a segmentation is what the predictor says."""

import gzip
import io

import numpy as np
import pytest
from PIL import Image

from depict.errors import UserError
from depict.web import segmentation
from depict.web.segmentation import overlay_png, probabilities_npz, segment, summary
from support.explorer import picture
from support.tiny_model import tiny_model


@pytest.fixture(scope="module")
def predictor():
    return tiny_model().predictor()


def whole(predictor, image):
    return np.concatenate([band.copy() for _, _, band in predictor.probabilities(image)], axis=1)


def unpacked(result, classes):
    h, w = result.view
    content = gzip.decompress(result.maps)
    first = np.frombuffer(content[: 3 * h * w], np.uint8).reshape(3, h, w)
    return first, np.frombuffer(content[3 * h * w :], np.uint8).reshape(3, h, w)


def test_labels_and_the_three_most_probable_classes_are_those_of_the_predictor(predictor):
    image = picture(70, 100)
    result = segment(predictor, image, lambda: None)
    probabilities = whole(predictor, image)
    labels = np.asarray(Image.open(io.BytesIO(result.labels)))
    assert (labels == probabilities.argmax(0)).all()
    assert result.view == (70, 100)
    classes, scores = unpacked(result, predictor.classes)
    order = np.sort(probabilities, axis=0)[::-1][:3]
    assert (classes[0] == labels).all()
    assert np.abs(scores / 255 - order).max() <= 0.5 / 255 + 1e-6
    assert np.abs(np.take_along_axis(probabilities, classes.astype(int), 0) - order).max() < 1e-6
    assert result.confidence == pytest.approx(probabilities.max(0).mean(), rel=1e-5)
    assert sum(result.shares.values()) == pytest.approx(1)


def test_large_pictures_get_maps_of_a_bounded_size_and_labels_of_their_own(predictor, monkeypatch):
    monkeypatch.setattr(segmentation, "VIEW", 30)
    image = picture(90, 120)
    result = segment(predictor, image, lambda: None)
    assert result.view == (22, 30)
    labels = np.asarray(Image.open(io.BytesIO(result.labels)))
    assert labels.shape == (90, 120)
    classes, _ = unpacked(result, predictor.classes)
    reduced = next(iter(predictor.scores([image]))).probabilities((22, 30))
    assert (classes[0] == np.concatenate([band.argmax(0) for _, _, band in reduced])).all()


def test_the_summary_lists_present_classes_from_the_largest_share(predictor):
    result = segment(predictor, picture(), lambda: None)
    found = summary(predictor, result)
    shares = [entry["share"] for entry in found["classes"]]
    assert shares == sorted(shares, reverse=True)
    assert min(shares) > 0
    assert {entry["name"] for entry in found["classes"]} <= set(predictor.classes)
    assert (found["height"], found["width"]) == (44, 60)


def test_probabilities_are_those_of_the_predictor_and_too_many_are_refused(predictor, monkeypatch):
    image = picture()
    with np.load(io.BytesIO(probabilities_npz(predictor, image))) as file:
        assert file["probabilities"].shape == (44, 60, len(predictor.classes))
        expected = whole(predictor, image).transpose(1, 2, 0)
        assert np.abs(file["probabilities"].astype(np.float32) - expected).max() < 1e-3
        assert tuple(file["classes"]) == predictor.classes
    monkeypatch.setattr(segmentation, "MAX_PROBABILITIES", 1000)
    with pytest.raises(UserError, match="too large to download: use `depict segment --probabilities`"):
        probabilities_npz(predictor, image)


def test_the_overlay_has_the_picture_above_the_legend(predictor):
    image = picture(100, 200)
    overlay = Image.open(io.BytesIO(overlay_png(predictor, image, segment(predictor, image, lambda: None))))
    assert overlay.width == 200
    assert overlay.height > 100


def test_work_that_is_given_up_stops(predictor):
    def stop():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        segment(predictor, picture(), stop)
