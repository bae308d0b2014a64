import numpy as np
from PIL import Image

from depict.data import create_dataset
from support.layouts import ade20k


def test_zero_is_ignored_and_every_class_moves_down_by_one(tmp_path):
    dataset = create_dataset("ade20k", ade20k(tmp_path, [0, 1, 2, 150]), "train")
    assert len(dataset) == 2
    image, labels = dataset.read(0)
    assert image.shape == (3, 12, 16)
    assert labels.shape == (12, 16)
    assert labels[0, ::4].tolist() == [255, 0, 1, 149]


def test_the_challenge_folder_itself_may_be_the_root(tmp_path):
    ade20k(tmp_path, [1, 2])
    assert len(create_dataset("ade20k", tmp_path / "ADEChallengeData2016", "val")) == 2


def test_the_test_release_has_images_without_labels(tmp_path):
    dataset = create_dataset("ade20k", ade20k(tmp_path, [1, 2]), "test")
    assert ([dataset.name_of(0)], dataset.labeled, dataset.problems) == (["ADE_test_1"], False, [])
    image, labels = dataset.read(0)
    assert image.shape == (3, 12, 16)
    assert labels.unique().tolist() == [255]


def test_training_and_validation_images_can_be_joined(tmp_path):
    dataset = create_dataset("ade20k", ade20k(tmp_path, [1, 2]), "trainval")
    names = [dataset.name_of(index) for index in range(len(dataset))]
    assert names == ["train_ADE_x_1", "train_ADE_x_2", "val_ADE_x_1", "val_ADE_x_2"]
    assert "validation" in str(dataset.paths(3)[1])


def test_names_and_colors_are_those_in_use(tmp_path):
    dataset = create_dataset("ade20k", ade20k(tmp_path, [1, 2]), "train")
    assert len(dataset.classes) == len(dataset.palette) == len(set(dataset.classes)) == 150
    known = {0: "wall", 2: "sky", 12: "person", 20: "car", 76: "boat", 104: "fountain", 127: "bicycle", 149: "flag"}
    assert {label: dataset.classes[label] for label in known} == known
    assert dataset.palette[0] == (120, 120, 120)
    assert dataset.palette[2] == (6, 230, 230)
    assert dataset.palette[149] == (92, 0, 255)
    assert len(set(dataset.palette)) == 150


def test_the_real_files_have_their_values(shared):
    dataset = create_dataset("ade20k", shared / "fixtures", "train")
    image, labels = dataset.read(0)
    assert dataset.name_of(0) == "ADE_train_00000001"
    assert image.shape == (3, 512, 683)
    raw = np.array(Image.open(shared / "fixtures/ADEChallengeData2016/annotations/training/ADE_train_00000001.png"))
    assert np.array_equal(labels.numpy(), (raw.astype(int) - 1) % 256)
    seen = {dataset.classes[label] for label in labels.unique().tolist() if label != 255}
    assert {"wall", "floor", "tree", "ceiling", "person", "fountain", "escalator", "flag"} <= seen
