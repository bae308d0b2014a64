"""Every output of `depict segment`, in one process and two."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

import depict
from depict.io.coco import paint_annotations, read_coco
from depict.segment.collected import GAP, TILE
from depict.segment.video import video_frames
from support.geotiff import make_geotiff
from support.segmenting import CLASSES, PALETTE, read, segment, summary
from support.several_processes import torchrun
from support.video import make_video


def test_label_maps_are_the_models_own_with_the_palette_of_the_classes(run, pictures, tmp_path, capsys):
    out = tmp_path / "out"
    assert segment(run, pictures, "--out", out) == 0
    assert "3 pictures: 3 written, 0 kept, 0 failed" in capsys.readouterr().out
    model = depict.load(run)
    seen = set()
    for name in ("8", "9", "10"):
        expected = model.predict(read(pictures / f"{name}.png")).labels
        np.testing.assert_array_equal(read(out / "labels" / f"{name}.png"), expected)
        seen |= set(np.unique(expected).tolist())
        with Image.open(out / "labels" / f"{name}.png") as picture:
            assert picture.mode == "P"
            np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), np.array(PALETTE, np.uint8)[expected])
    assert len(seen) > 1  # a model of one answer would show nothing


def test_the_summary_has_the_share_of_each_class_in_natural_order(run, pictures, tmp_path):
    out = tmp_path / "out"
    assert segment(run, pictures, "--out", out) == 0
    found = summary(out)
    assert [row["name"] for row in found["pictures"]] == ["8", "9", "10"]
    for row in found["pictures"]:
        labels = read(out / "labels" / f"{row['name']}.png")
        assert (row["height"], row["width"]) == labels.shape
        for index, name in enumerate(CLASSES):
            assert row["shares"][name] == pytest.approx((labels == index).mean(), abs=1e-6)


def test_only_the_chosen_classes_are_written(run, pictures, tmp_path):
    assert segment(run, pictures, "--out", tmp_path / "all", "--probabilities") == 0
    assert segment(run, pictures, "--out", tmp_path / "some", "--classes", "car, sky", "--probabilities") == 0
    for row in summary(tmp_path / "some")["pictures"]:
        everything = read(tmp_path / "all/labels" / f"{row['name']}.png")
        some = read(tmp_path / "some/labels" / f"{row['name']}.png")
        np.testing.assert_array_equal(some, np.where(everything == 1, 255, everything))
        assert list(row["shares"]) == ["sky", "car", "(other)"]
        assert row["shares"]["(other)"] == pytest.approx((everything == 1).mean(), abs=1e-6)
        file = f"probabilities/{row['name']}.npz"
        with np.load(tmp_path / "all" / file) as whole, np.load(tmp_path / "some" / file) as part:
            assert part["classes"].tolist() == ["sky", "car"]
            np.testing.assert_array_equal(part["probabilities"], whole["probabilities"][..., [0, 2]])


def test_the_summary_has_a_legend_of_the_values_in_label_maps(run, pictures, tmp_path):
    assert segment(run, pictures, "--out", tmp_path / "some", "--classes", "car,sky") == 0
    *shown, other = summary(tmp_path / "some")["legend"]
    assert [(entry["value"], entry["name"]) for entry in shown] == [(0, "sky"), (2, "car")]
    assert other == {"value": 255, "name": "(other)"}
    for path in (tmp_path / "some/labels").iterdir():
        with Image.open(path) as picture:
            colors = np.array(picture.getpalette()).reshape(-1, 3)
        assert all(colors[entry["value"]].tolist() == entry["color"] for entry in shown)


def test_probabilities_sum_to_one_and_agree_with_the_labels(run, pictures, tmp_path):
    out = tmp_path / "out"
    assert segment(run, pictures, "--out", out, "--probabilities", "--multiscale") == 0
    for name in ("8", "9", "10"):
        labels = read(out / f"labels/{name}.png")
        with np.load(out / f"probabilities/{name}.npz") as file:
            probabilities = file["probabilities"]
        assert probabilities.dtype == np.float16
        assert probabilities.shape == (*labels.shape, 3)
        np.testing.assert_allclose(probabilities.astype(np.float32).sum(2), 1, atol=2e-3)
        chosen = np.take_along_axis(probabilities, labels[..., None].astype(int), 2)[..., 0]
        assert (chosen >= probabilities.max(2) - 1e-3).all()


def test_with_full_image_the_model_sees_each_picture_at_once(run, pictures, tmp_path):
    assert segment(run, pictures, "--out", tmp_path / "out", "--full-image") == 0
    model = depict.load(run)
    image = read(pictures / "10.png")  # larger than the window of 32 on both sides
    with torch.no_grad():
        logits = model(model.normalize(torch.tensor(image).permute(2, 0, 1))[None])[0]
    top = logits.topk(2, dim=0).values
    clear = (top[0] - top[1] > 1e-4).numpy()
    np.testing.assert_array_equal(read(tmp_path / "out/labels/10.png")[clear], logits.argmax(0).numpy()[clear])


@pytest.mark.slow
def test_a_compiled_network_gives_the_same_labels(run, pictures, tmp_path, monkeypatch):
    # Only traced: generating machine code takes a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    assert segment(run, pictures, "--out", tmp_path / "plain", "--device", "cpu") == 0
    assert segment(run, pictures, "--out", tmp_path / "compiled", "--device", "cpu", "--compile") == 0
    for name in ("8", "9", "10"):
        plain, compiled = (read(tmp_path / kind / f"labels/{name}.png") for kind in ("plain", "compiled"))
        np.testing.assert_array_equal(plain, compiled)


@pytest.mark.slow
def test_two_processes_share_the_pictures_and_write_one_summary(run, pictures, tmp_path):
    (pictures / "bad.png").write_bytes(b"")
    done = torchrun("segment", run, pictures, "--out", tmp_path / "two")
    assert done.returncode == 1, done.stderr[-3000:]
    assert "4 pictures: 3 written, 0 kept, 1 failed" in done.stdout
    assert segment(run, pictures, "--out", tmp_path / "one") == 1
    assert summary(tmp_path / "two") == summary(tmp_path / "one")
    for name in ("8", "9", "10"):
        one, two = (read(tmp_path / count / f"labels/{name}.png") for count in ("one", "two"))
        np.testing.assert_array_equal(one, two)


def test_a_video_gives_label_maps_of_its_frames_and_a_video_of_overlays(run, tmp_path):
    make_video(tmp_path / "clip.mp4", 3)
    assert segment(run, tmp_path / "clip.mp4", "--out", tmp_path / "out") == 0
    names = [f"{number:06d}.png" for number in (1, 2, 3)]
    assert sorted(path.name for path in (tmp_path / "out/labels/clip.mp4").iterdir()) == names
    video = tmp_path / "out/overlays/clip.mp4"
    frames = [frame for _, frame in video_frames(video)]
    assert len(frames) == 3
    assert frames[0].shape[0] > 48  # the legend
    made = video.stat().st_mtime_ns
    assert segment(run, tmp_path / "clip.mp4", "--out", tmp_path / "out") == 0
    assert video.stat().st_mtime_ns == made  # nothing is new
    video.unlink()
    assert segment(run, tmp_path / "clip.mp4", "--out", tmp_path / "out") == 0
    assert len(list(video_frames(video))) == 3
    make_video(tmp_path / "clip.mp4", 4)
    assert segment(run, tmp_path / "clip.mp4", "--out", tmp_path / "out") == 0
    assert len(list(video_frames(video))) == 4
    (tmp_path / "cut.mp4").write_bytes(b"no video")
    assert segment(run, tmp_path / "cut.mp4", "--out", tmp_path / "out") == 1


def test_confidence_is_a_picture_and_a_score_and_sorts_the_summary_and_the_sheet(run, pictures, tmp_path, capsys):
    out = tmp_path / "out"
    for status in ("written", "kept"):
        assert segment(run, pictures, "--out", out, "--sort", "confidence", "--sheet") == 0
        rows = summary(out)["pictures"]
        assert {row["status"] for row in rows} == {status}
        assert [row["confidence"] for row in rows] == sorted(row["confidence"] for row in rows)
        model = depict.load(run)
        for row in rows:
            levels = read(out / "confidence" / f"{row['name']}.png")
            expected = model.predict(pictures / f"{row['name']}.png").confidence
            np.testing.assert_allclose(levels / 255, expected, atol=0.003)
            assert row["confidence"] == pytest.approx(expected.mean(), abs=0.002)
        assert f"least certain: {rows[0]['name']} (" in capsys.readouterr().out
    least, most = (read(pictures / f"{rows[index]['name']}.png") for index in (0, -1))
    sheet = read(out / "contact_sheet.png")
    for number, image in ((0, least), (2, most)):
        tile = sheet[GAP:, GAP + number * (TILE + GAP) :][: image.shape[0], : image.shape[1]]
        np.testing.assert_array_equal(
            tile, read(out / "overlays" / f"{rows[number]['name']}.png")[: len(tile), : tile.shape[1]]
        )


def test_pictures_become_coco_annotations_that_give_back_the_label_maps(run, pictures, tmp_path):
    pytest.importorskip("pycocotools")
    pytest.importorskip("rasterio")
    for kind in ("rle", "polygons"):
        out = tmp_path / kind
        assert segment(run, pictures, "--out", out, "--coco", kind, "--classes", "road,car") == 0
        content = read_coco(out / "coco.json")
        assert [entry["file_name"] for entry in content["images"]] == ["8.png", "9.png", "10.png"]
        assert content["categories"] == [{"id": 2, "name": "road"}, {"id": 3, "name": "car"}]
        assert [entry["id"] for entry in content["annotations"]] == list(range(1, len(content["annotations"]) + 1))
        for entry in content["images"]:
            own = [each for each in content["annotations"] if each["image_id"] == entry["id"]]
            painted = paint_annotations(own, {2: 1, 3: 2}, entry["height"], entry["width"], 255)
            np.testing.assert_array_equal(painted, read(out / "labels" / entry["file_name"]))


def test_polygons_are_written_for_each_picture(run, pictures, tmp_path):
    pytest.importorskip("rasterio")
    assert segment(run, pictures, "--out", tmp_path / "out", "--polygons", "--classes", "road") == 0
    features = json.loads((tmp_path / "out/polygons/8.geojson").read_text())["features"]
    assert {each["properties"]["class"] for each in features} == {"road"}
    pixels = sum(each["properties"]["pixels"] for each in features)
    assert pixels == (read(tmp_path / "out/labels/8.png") == 1).sum()


def test_a_georeferenced_tiff_gives_rasters_at_its_place(run, tmp_path):
    rasterio = pytest.importorskip("rasterio")
    small = np.random.default_rng(0).integers(1, 256, (6, 8, 3), np.uint8)
    image = np.array(Image.fromarray(small).resize((160, 120)))
    image[:, :20] = 0
    make_geotiff(tmp_path / "field.tif", image.transpose(2, 0, 1), nodata=0)
    out = tmp_path / "out"
    for status in ("written", "kept"):
        assert segment(run, tmp_path / "field.tif", "--out", out, "--polygons", "--confidence", "--coco", "rle") == 0
        [row] = summary(out)["pictures"]
        assert (row["status"], row["height"], row["width"]) == (status, 120, 160)
        assert sum(row["shares"].values()) == pytest.approx(1, abs=1e-5)  # of the pixels with data
        assert 1 / 3 < row["confidence"] <= 1
    expected = depict.load(run).predict(image)
    with rasterio.open(tmp_path / "field.tif") as source, rasterio.open(out / "labels/field.tif") as written:
        assert (written.crs, written.transform, written.nodata) == (source.crs, source.transform, 255)
        labels = written.read(1)
    np.testing.assert_array_equal(labels[:, 20:], expected.labels[:, 20:])
    assert (labels[:, :20] == 255).all()
    with rasterio.open(out / "confidence/field.tif") as written:
        levels = written.read(1)
    np.testing.assert_allclose(levels[:, 20:] / 255, expected.confidence[:, 20:], atol=0.003)
    assert (levels[:, :20] == 0).all()
    assert read(out / "overlays/field.png").shape[1] == 160
    features = json.loads((out / "polygons/field.geojson").read_text())["features"]
    assert sum(each["properties"]["pixels"] for each in features) == 120 * 140
    assert features[0]["geometry"]["coordinates"][0][0][0] == pytest.approx(9, abs=0.01)
    assert [entry["file_name"] for entry in read_coco(out / "coco.json")["images"]] == ["field.tif"]
    (out / "labels/field.tif").write_bytes(b"damaged")
    assert segment(run, tmp_path / "field.tif", "--out", out, "--polygons", "--confidence") == 0
    assert summary(out)["pictures"][0]["status"] == "written"
    assert segment(run, tmp_path / "field.tif", "--out", tmp_path / "other", "--probabilities") == 1


def test_tiles_change_the_scale_and_are_part_of_the_settings(run, pictures, tmp_path, capsys):
    model, out = depict.load(run), tmp_path / "out"
    assert segment(run, pictures, "--out", out, "--tile", "20") == 0
    expected = model.predict(pictures / "10.png", tile=20).labels
    np.testing.assert_array_equal(read(out / "labels/10.png"), expected)
    assert segment(run, pictures, "--out", out) == 2
    assert "were made with another setting (tile: 20)" in capsys.readouterr().err
