import numpy as np
from PIL import Image

from depict.data import create_dataset
from support.layouts import cityscapes

ROAD, CAR, BICYCLE, EGO = 7, 26, 33, 1


def test_label_ids_become_train_ids_when_those_are_absent(tmp_path):
    dataset = create_dataset("cityscapes", cityscapes(tmp_path, {"labelIds": [ROAD, CAR, BICYCLE, EGO]}), "train")
    assert dataset.read(0)[1][0, ::4].tolist() == [0, 13, 18, 255]


def test_train_ids_are_preferred(tmp_path):
    masks = {"labelIds": [ROAD, CAR], "labelTrainIds": [18, 255], "instanceIds": [9, 9]}
    dataset = create_dataset("cityscapes", cityscapes(tmp_path, masks), "val")
    assert dataset.name_of(0) == "lindau_000000_000019"
    assert dataset.read(0)[1][0, ::8].tolist() == [18, 255]


def test_the_empty_masks_of_the_test_images_are_not_used(tmp_path):
    dataset = create_dataset("cityscapes", cityscapes(tmp_path, {"labelIds": [ROAD]}), "test")
    assert (dataset.name_of(0), dataset.file_name(0)) == ("berlin_000000_000019", "berlin_000000_000019_leftImg8bit")
    assert not dataset.labeled


def test_there_are_nineteen_classes_in_their_order(tmp_path):
    dataset = create_dataset("cityscapes", cityscapes(tmp_path, {"labelIds": [ROAD]}), "train")
    assert len(dataset.classes) == len(set(dataset.palette)) == 19
    assert (dataset.classes[0], dataset.classes[13], dataset.classes[18]) == ("road", "car", "bicycle")
    assert dataset.palette[13] == (0, 0, 142)


def test_both_codes_of_the_real_file_agree(shared):
    dataset = create_dataset("cityscapes", shared / "fixtures/cityscapes", "val")
    image, labels = dataset.read(0)
    assert image.shape == (3, 128, 256)
    mask = shared / "fixtures/cityscapes/gtFine/val/frankfurt/frankfurt_000000_000294_gtFine_labelIds.png"
    assert np.array_equal(labels.numpy(), np.array(Image.open(str(mask).replace("labelIds", "labelTrainIds"))))
    # The two small files were made separately, so that 77 of 32768 pixels at borders differ.
    assert (dataset.read_labels(mask) != labels.numpy()).sum() == 77


def test_the_real_training_files_are_mapped(shared):
    dataset = create_dataset("cityscapes", shared / "fixtures/cityscapes", "train")
    image, labels = dataset.read(0)
    assert (len(dataset), image.shape) == (2, (3, 1024, 2048))
    seen = [dataset.classes[label] for label in labels.unique().tolist() if label != 255]
    assert seen[:3] == ["road", "sidewalk", "building"]
    assert seen[-1] == "bicycle"
