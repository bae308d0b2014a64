from depict.data import create_dataset
from support.layouts import camvid


def test_void_is_ignored(tmp_path):
    dataset = create_dataset("camvid", camvid(tmp_path, [0, 10, 11, 255]), "train")
    assert dataset.read(1)[1][0, ::4].tolist() == [0, 10, 255, 255]
    assert len(dataset.classes) == len(set(dataset.palette)) == 11


def test_the_test_images_have_labels(tmp_path):
    dataset = create_dataset("camvid", camvid(tmp_path, [3, 11]), "test")
    assert dataset.labeled
    assert dataset.read(0)[1][0, ::8].tolist() == [3, 255]


def test_the_real_set_is_complete(shared):
    train, val = (create_dataset("camvid", shared / "camvid", split) for split in ("train", "val"))
    assert (len(train), len(val)) == (367, 101)
    assert not train.problems
    image, labels = val.read(0)
    assert image.shape == (3, 360, 480)
    names = {val.classes[label] for label in labels.unique().tolist() if label != 255}
    assert names == set(val.classes)
    # The lower middle of a driving car's view is road.
    assert val.classes[int(labels[330:, 200:280].flatten().mode().values)] == "road"
