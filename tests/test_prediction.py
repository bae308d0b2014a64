"""`model.predict`: what it takes, and what a prediction knows."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import depict.prediction
from depict.errors import UserError
from depict.prediction import Prediction
from support.geotiff import make_geotiff
from support.tiny_model import tiny_model


def picture(height: int = 45, width: int = 60, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b").mkdir()
    for number, name in enumerate(("b/1.png", "a10.png", "a2.png")):
        Image.fromarray(picture(20 + 7 * number, 30, number)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden.png").write_text("no picture")
    return tmp_path


def test_an_image_or_a_path_gives_a_prediction_and_a_list_gives_a_list(model, folder):
    expected = model.predict(Image.open(folder / "a2.png"))
    assert isinstance(expected, Prediction)
    assert expected.path is None
    for source in (folder / "a2.png", str(folder / "a2.png")):
        one = model.predict(source)
        assert one.path == folder / "a2.png"
        np.testing.assert_array_equal(one.labels, expected.labels)
    several = model.predict([picture(40, 50), torch.tensor(picture()).permute(2, 0, 1), folder / "a2.png"])
    assert [each.labels.shape for each in several] == [(40, 50), (45, 60), (34, 30)]
    np.testing.assert_array_equal(several[2].labels, expected.labels)


def test_a_folder_is_predicted_one_picture_after_the_other_in_natural_order(model, folder):
    predictions = model.predict(folder)
    assert iter(predictions) is predictions
    assert [each.path.relative_to(folder).as_posix() for each in predictions] == ["a2.png", "a10.png", "b/1.png"]


def test_images_that_are_generated_are_read_only_as_predictions_are_taken(model):
    taken = []

    def images():
        for number in range(20):
            taken.append(number)
            yield picture(40, 40, number)

    next(depict.prediction.predict(model.predictor(batch=8), images()))
    assert len(taken) == 2  # of four windows each


def test_windows_of_several_images_share_a_call_of_the_network(model):
    sizes = []

    def network(images):
        sizes.append(len(images))
        return model.masks(images)

    images = [picture(32, 32, seed) for seed in range(5)]
    together = list(depict.prediction.predictions(model.predictor(network=network, batch=8), images))
    assert sizes[0] == 8
    for image, each in zip(images, together, strict=True):
        np.testing.assert_array_equal(each.image, image)
        np.testing.assert_allclose(each.confidence, model.predict(image).confidence, atol=1e-5)


def test_shares_confidence_and_probabilities_describe_the_labels(model):
    prediction = model.predict(picture(), multiscale=True)
    counts = np.bincount(prediction.labels.ravel(), minlength=len(model.classes))
    assert list(prediction.classes.values()) == sorted((c / counts.sum() for c in counts if c), reverse=True)
    assert prediction.classes[model.classes[counts.argmax()]] == counts.max() / counts.sum()
    every = prediction.probabilities()
    assert every.shape == (len(model.classes), 45, 60)
    np.testing.assert_allclose(every.sum(0), 1, atol=1e-5)
    np.testing.assert_array_equal(every.argmax(0), prediction.labels)
    np.testing.assert_array_equal(every.max(0), prediction.confidence)
    chosen = [model.classes[5], model.classes[2]]
    np.testing.assert_array_equal(prediction.probabilities(chosen), every[[5, 2]])


def test_probabilities_at_another_size_are_those_of_the_same_network_output(model):
    prediction = model.predict(picture(40, 40))
    small = prediction.probabilities(size=(20, 20))
    np.testing.assert_allclose(small.sum(0), 1, atol=1e-5)
    # Every logit is linear in the position between samples, so the middle of four pixels is their mean, up to corners.
    full = np.log(prediction.probabilities())
    logits = full - full.mean(0)
    middle = logits.reshape(len(full), 20, 2, 20, 2).mean((2, 4))
    expected = np.exp(middle) / np.exp(middle).sum(0)
    assert np.median(np.abs(small - expected)) < 1e-4
    assert prediction.probabilities(size=(80, 80)).shape == (len(full), 80, 80)


def test_probabilities_that_would_fill_the_memory_are_refused(model):
    prediction = model.predict(picture())
    with pytest.raises(UserError, match=r"8 classes at 20000 x 20000 pixels would take 12\.8 GB: choose fewer classes"):
        prediction.probabilities(size=(20000, 20000))


def test_one_call_of_the_network_answers_everything(model, monkeypatch):
    calls = []
    monkeypatch.setattr(model, "masks", lambda images, own=model.masks: calls.append(1) or own(images))
    prediction = model.predict(picture(32, 32))
    count = len(calls)
    assert prediction.confidence.shape == (32, 32)
    prediction.probabilities()
    prediction.overlay()
    assert len(calls) == count


def test_the_suffix_decides_what_is_saved(model, tmp_path):
    prediction = model.predict(picture())
    prediction.save(tmp_path / "labels.png")
    with Image.open(tmp_path / "labels.png") as saved:
        np.testing.assert_array_equal(np.asarray(saved), prediction.labels)
        assert saved.getpalette()[:3] == list(model.palette[0])
    prediction.save(tmp_path / "scores.npz")
    with np.load(tmp_path / "scores.npz") as saved:
        assert saved["classes"].tolist() == list(model.classes)
        values = saved["probabilities"].transpose(2, 0, 1)
        np.testing.assert_allclose(values, prediction.probabilities(), atol=1e-3)
    with pytest.raises(UserError, match=r"labels.jpg' must end in \.png"):
        prediction.save(tmp_path / "labels.jpg")


def test_polygons_are_in_pixels_and_are_saved_as_geojson(model, tmp_path):
    pytest.importorskip("rasterio")
    prediction = model.predict(picture())
    polygons = prediction.polygons()
    assert sum(each["properties"]["pixels"] for each in polygons) == 45 * 60
    name = next(iter(prediction.classes))
    chosen = prediction.polygons([name])
    assert {each["properties"]["class"] for each in chosen} == {name}
    pixels = sum(each["properties"]["pixels"] for each in chosen)
    assert pixels / (45 * 60) == pytest.approx(prediction.classes[name])
    assert len(prediction.polygons(smallest=100)) < len(polygons)
    prediction.save(tmp_path / "a.geojson")
    assert len(json.loads((tmp_path / "a.geojson").read_text())["features"]) == len(polygons)
    with pytest.raises(UserError, match="not from a georeferenced TIFF"):
        prediction.save(tmp_path / "a.tif")


def test_a_georeferenced_tiff_keeps_its_coordinates(model, tmp_path):
    rasterio = pytest.importorskip("rasterio")
    make_geotiff(tmp_path / "a.tif", picture().transpose(2, 0, 1))
    prediction = model.predict(tmp_path / "a.tif")
    np.testing.assert_array_equal(prediction.labels, model.predict(picture()).labels)
    prediction.save(tmp_path / "labels.tif")
    with rasterio.open(tmp_path / "a.tif") as source, rasterio.open(tmp_path / "labels.tif") as written:
        assert (written.crs, written.transform) == (source.crs, source.transform)
        np.testing.assert_array_equal(written.read(1), prediction.labels)
    x, y = np.array(prediction.polygons()[0]["geometry"]["coordinates"][0]).T
    assert (x >= 9).all() and (x < 9.001).all() and (y > 45).all() and (y < 46).all()


def test_tiles_have_the_scale_of_the_training_images(model):
    image = picture(120, 90)
    same = model.predict(image, tile=40)  # the model resizes training images to a short edge of 40
    double = model.predict(image.repeat(2, 0).repeat(2, 1), tile=80)
    assert len(same.scores.scores.passes[0].rows) == 120
    assert (double.labels[::2, ::2] == same.labels).mean() > 0.9
    with pytest.raises(UserError, match="--tile or --full-image, not both"):
        model.predict(image, tile=40, full_image=True)
    with pytest.raises(UserError, match="--tile must be at least 1 pixel, not 0"):
        model.predict(image, tile=0)


def test_a_notebook_shows_the_overlay_scaled_down_and_the_text_names_the_largest_classes(model):
    prediction = model.predict(picture(40, 2000))
    with Image.open(io.BytesIO(prediction._repr_png_())) as shown:
        assert shown.width == 960
    assert prediction.overlay().width == 2000
    name, share = next(iter(prediction.classes.items()))
    assert repr(prediction).startswith(f"Prediction(2000 x 40 pixels: {name} {100 * share:.1f} %, ")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, folder: model.predict(7), "give an image, a path, or a list of them, not a int"),
        (lambda model, folder: model.predict(folder / "c.png"), "c.png"),
        (lambda model, folder: model.predict(folder / "notes.txt"), "notes.txt' is not a readable image"),
        (lambda model, folder: model.predict(np.zeros((2, 4, 4, 3), np.uint8)), r"shape \(2, 4, 4, 3\)"),
        (lambda model, folder: model.predict(picture()).probabilities(["skye"]), "Did you mean 'sky'"),
        (lambda model, folder: model.predict(picture()).overlay(opacity=2), "opacity must be between 0 and 1"),
    ],
)
def test_wrong_input_is_named_in_one_line(model, folder, call, message):
    with pytest.raises(UserError, match=message) as caught:
        call(model, folder)
    assert "\n" not in str(caught.value)


def test_a_folder_without_pictures_is_named(model, tmp_path):
    with pytest.raises(UserError, match="no picture in"):
        model.predict(tmp_path)


def test_predictions_need_no_torch():
    code = "import sys, depict.prediction; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
