"""A fingerprint changes with the classes and the content of the files, and not with where they are."""

import os
import shutil

import pytest
import yaml

from depict.data import create_dataset
from depict.data.dataset import hold_out, random_subset
from depict.data.fingerprint import differences, fingerprint
from depict.data.pairs import DataError
from depict.data.scenes.dataset import Scenes
from support.layouts import ade20k, picture, rectangles, save


@pytest.fixture
def root(tmp_path):
    """Ten training and four validation pictures with the classes a, b and c."""
    root = rectangles(tmp_path / "data", size=(8, 8))
    write_classes(root)
    return root


def write_classes(root, names=("a", "b", "c"), **more):
    (root / "classes.yaml").write_text(yaml.safe_dump({"names": list(names), **more}))


def of(root):
    return fingerprint(*(create_dataset("folder", root, split) for split in ("train", "val")))


def test_the_same_data_in_another_place_and_at_another_time_have_the_same_fingerprint(root, tmp_path):
    before = of(root)
    assert len(before["training"]) == 20
    assert len(before["validation"]) == 8
    moved = root.rename(tmp_path / "moved")
    for path in moved.rglob("*.png"):
        os.utime(path, (1, 1))
    assert differences(before, of(moved)) == []


def test_the_root_may_be_the_folder_or_its_parent(tmp_path):
    ade20k(tmp_path, [0, 1])
    one, two = (
        fingerprint(*(create_dataset("ade20k", folder, split) for split in ("train", "val")))
        for folder in (tmp_path, tmp_path / "ADEChallengeData2016")
    )
    assert one == two


def test_files_that_are_changed_added_or_removed_are_counted_and_named(root):
    before = of(root)
    path = root / "masks" / "train" / "train3.png"
    content, status = bytearray(path.read_bytes()), path.stat()
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # neither size nor time tells
    for kind in ("images", "masks"):
        shutil.copy(root / kind / "val" / "val0.png", root / kind / "val" / "val9.png")
        (root / kind / "train" / "train7.png").unlink()
    assert differences(before, of(root)) == [
        "2 training files removed ('images/train/train7.png' and 1 more)",
        "1 training file changed ('masks/train/train3.png')",
        "2 validation files added ('images/val/val9.png' and 1 more)",
    ]


@pytest.mark.parametrize(
    ("names", "more", "expected"),
    [
        (["a", "b", "d"], {}, "the class 'c', now 'd'"),
        (["x", "b", "y"], {}, "the class 'a', now 'x' and 1 more"),
        (["b", "a", "c"], {}, "the same classes, now in another order"),
        (["a", "b", "c", "d"], {}, "3 classes, now 4"),
        (["a", "b", "c"], {"values": [2, 1, 0]}, "the same classes, now with other mask values"),
    ],
)
def test_other_classes_are_named(root, names, more, expected):
    before = of(root)
    write_classes(root, names, **more)
    assert differences(before, of(root)) == [expected]


def test_only_the_images_of_a_part_count(root):
    def part():
        training = random_subset(create_dataset("folder", root, "train"), 3, seed=0)
        return training, fingerprint(*hold_out(training, 1 / 3))

    training, before = part()
    assert (len(before["training"]), len(before["validation"])) == (4, 2)
    unused = next(f"train{index}" for index in range(10) if index not in training.indices)
    save(root / "images" / "train" / f"{unused}.png", picture(8, 8))
    assert part()[1] == before


def test_generated_images_have_one_without_files():
    before = fingerprint(Scenes(None, "train", 32), Scenes(None, "val", 32))
    assert before == fingerprint(Scenes(None, "train", 32), Scenes(None, "val", 32))
    other = fingerprint(random_subset(Scenes(None, "train", 32), 9, seed=0), Scenes(None, "val", 32))
    assert differences(before, other) == ["1 training file changed ('generated scenes')"]


def test_a_file_that_disappears_is_named(root):
    training, validation = (create_dataset("folder", root, split) for split in ("train", "val"))
    (root / "images" / "val" / "val2.png").unlink()
    with pytest.raises(DataError, match="cannot read '.*val2.png': No such file"):
        fingerprint(training, validation)
