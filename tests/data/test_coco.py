"""Data sets with COCO annotations: the usual layouts, classes, and what can be wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from depict.data import create_dataset
from depict.data.check import check_dataset
from depict.data.fingerprint import differences, fingerprint
from depict.data.pairs import DataError
from depict.errors import UserError

pytest.importorskip("pycocotools", reason="pycocotools is not installed")

SIZE = (12, 16)
"""Height and width of all images."""


def box(category: int, x: int, y: int, width: int, height: int) -> dict:
    ring = [x, y, x + width, y, x + width, y + height, x, y + height]
    return {"category_id": category, "segmentation": [[float(value) for value in ring]], "iscrowd": 0}


def write(file: Path, folder: Path, names: list[str], **changes) -> None:
    """Images with a car (category 7) in the left half and a person (category 3) on top of it."""
    folder.mkdir(parents=True, exist_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "images": [
            {"id": number, "file_name": f"{name}.png", "height": SIZE[0], "width": SIZE[1]}
            for number, name in enumerate(names)
        ],
        "categories": [{"id": 7, "name": "car"}, {"id": 3, "name": "person"}],
        "annotations": [
            region | {"id": 2 * number + index, "image_id": number}
            for number in range(len(names))
            for index, region in enumerate((box(3, 2, 2, 3, 4), box(7, 0, 0, 8, 12)))
        ],
    }
    for name in names:
        Image.fromarray(np.full((*SIZE, 3), 99, np.uint8)).save(folder / f"{name}.png")
    file.write_text(json.dumps(content | changes))


def names_of(root: Path, split: str) -> list[str]:
    dataset = create_dataset("coco", root, split)
    return [dataset.name_of(index) for index in range(len(dataset))]


def test_categories_are_classes_by_id_and_other_pixels_are_background(tmp_path):
    write(tmp_path / "result.json", tmp_path / "images", list("abcdefgh"))
    dataset = create_dataset("coco", tmp_path, "train")
    assert dataset.classes == ("background", "person", "car")
    image, labels = dataset.read(0)
    expected = np.zeros(SIZE, np.uint8)
    expected[:, :8] = 2
    expected[2:6, 2:5] = 1
    np.testing.assert_array_equal(labels.numpy(), expected)
    assert image.shape == (3, *SIZE)


def test_a_category_named_background_is_the_background(tmp_path):
    named = [{"id": 3, "name": "person"}, {"id": 7, "name": "car"}, {"id": 9, "name": "background"}]
    write(tmp_path / "result.json", tmp_path / "images", list("abcd"), categories=named)
    dataset = create_dataset("coco", tmp_path, "train")
    assert dataset.classes == ("person", "car", "background")
    assert int(dataset.read(0)[1][0, -1]) == 2


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("annotations/instances_{}2017.json", "{}2017"),
        ("annotations/instances_{}.json", "images/{}"),
        ("annotations/{}.json", "images"),
        ("{}/_annotations.coco.json", "{}"),
    ],
)
def test_the_usual_layouts_are_found(tmp_path, file, folder):
    for part, names in {"train": ["a", "b"], "val": ["c"]}.items():
        write(tmp_path / file.format(part), tmp_path / folder.format(part), names)
    (tmp_path / "annotations").mkdir(exist_ok=True)
    if "instances" in file:
        (tmp_path / "annotations" / "captions_train2017.json").write_text("{}")
    assert names_of(tmp_path, "train") == ["a", "b"]
    assert names_of(tmp_path, "val") == ["c"]
    assert names_of(tmp_path, "trainval") == ["train_a", "train_b", "val_c"]
    with pytest.raises(UserError, match="no test annotations"):
        create_dataset("coco", tmp_path, "test")


def test_of_one_file_a_part_is_held_out(tmp_path):
    names = [f"{index:02d}" for index in range(20)]
    write(tmp_path / "annotations" / "instances_default.json", tmp_path / "images", names)
    train, val = names_of(tmp_path, "train"), names_of(tmp_path, "val")
    assert sorted(train + val) == names
    assert len(val) == 5
    assert len(names_of(tmp_path, "trainval")) == 20


def test_a_sample_depends_on_the_annotations_of_its_own_part_only(tmp_path):
    for part in ("train", "val", "test"):
        write(tmp_path / part / "labels.json", tmp_path / part, [f"{part} a", f"{part} b"])
    for part in ("train", "val"):
        files = create_dataset("coco", tmp_path, part).files(0)
        assert [path for path in files if path.suffix == ".json"] == [tmp_path / part / "labels.json"]


def test_every_sample_is_checked_and_its_problem_named(tmp_path):
    write(tmp_path / "train/a.json", tmp_path / "train", list("abcd"))
    Image.new("RGB", (16, 13)).save(tmp_path / "train" / "b.png")
    (tmp_path / "train" / "c.png").unlink()
    content = json.loads((tmp_path / "train/a.json").read_text())
    content["annotations"][-1]["segmentation"] = {"size": [12, 16], "counts": [0, 1000]}
    (tmp_path / "train/a.json").write_text(json.dumps(content))
    report = check_dataset(create_dataset("coco", tmp_path, "train"))
    assert not report.usable
    assert [problem.kind for problem in report.problems] == ["size", "unreadable", "labels"]
    assert "b.png' is 16x13, but 16x12 in the annotations" in str(report.problems[0])
    assert report.sizes == {(16, 12): 1}


def test_identity_follows_the_files(tmp_path):
    write(tmp_path / "result.json", tmp_path / "images", list("abcd"))
    before = list(create_dataset("coco", tmp_path, "train").identity())
    assert before == list(create_dataset("coco", tmp_path, "train").identity())
    Image.new("RGB", (16, 12)).save(tmp_path / "images" / "a.png")
    Image.new("RGB", (16, 12)).save(tmp_path / "images" / "b.png")
    assert before != list(create_dataset("coco", tmp_path, "train").identity())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"categories": []}, "has 0 categories"),
        ({"categories": [{"id": 1}]}, "a category in .* has no 'id' or no 'name'"),
        ({"categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]}, "the same name or id"),
        ({"images": [{"id": 0}]}, "an image in .* has no 'id' or no 'file_name'"),
        ({"images": [{"id": 0, "file_name": "../a.png"}]}, r"names the image '../a.png', which is not inside"),
        ({"images": [{"id": 0, "file_name": "/a.png"}]}, "which is not inside"),
        ({"images": [{"id": 0, "file_name": "a.png"}, {"id": 1, "file_name": "a.png"}]}, "lists an image twice"),
        (
            {"annotations": [{"id": 5, "image_id": 9, "category_id": 3}]},
            "annotation 5 in .* is of image 9 and category 3",
        ),
        ({"annotations": [{"id": 5, "image_id": [0], "category_id": 3}]}, "which the file does not list"),
        ({"images": [{"id": 0, "file_name": "z.png"}], "annotations": []}, "'z.png' of .* is in none of the folders"),
    ],
)
def test_a_wrong_file_is_named_in_one_line(tmp_path, changes, message):
    write(tmp_path / "train/a.json", tmp_path / "train", ["a"], **changes)
    with pytest.raises(UserError, match=message) as caught:
        create_dataset("coco", tmp_path, "train")
    assert "\n" not in str(caught.value)


def test_two_files_for_the_same_images_are_refused(tmp_path):
    for name in ("x.json", "y.json"):
        write(tmp_path / "train" / name, tmp_path / "train", ["a"])
    with pytest.raises(UserError, match="several annotation files .* 'train/x.json', 'train/y.json': keep one"):
        create_dataset("coco", tmp_path, "train")


def test_an_unreadable_image_is_a_data_error(tmp_path):
    write(tmp_path / "train/a.json", tmp_path / "train", ["a"])
    (tmp_path / "train" / "a.png").write_text("no picture")
    with pytest.raises(DataError, match="a.png"):
        create_dataset("coco", tmp_path, "train").read(0)


def test_a_copy_is_the_same_data_and_another_image_is_not(tmp_path):
    write(tmp_path / "first/train/labels.json", tmp_path / "first/train", ["a", "b"])
    shutil.copytree(tmp_path / "first", tmp_path / "copy", copy_function=shutil.copyfile)  # with times of its own
    first, copy = (create_dataset("coco", tmp_path / name, "train") for name in ("first", "copy"))
    before = fingerprint(first, first)
    assert differences(before, fingerprint(copy, copy)) == []
    Image.fromarray(np.full((*SIZE, 3), 98, np.uint8)).save(tmp_path / "copy/train/b.png")
    assert differences(before, fingerprint(copy, copy))[0] == "1 training file changed ('b.png')"
