import pytest

from depict.data import create_dataset
from depict.errors import UserError
from support.layouts import pascal_context


def test_sixty_classes_count_the_background(tmp_path):
    dataset = create_dataset("pascal_context", pascal_context(tmp_path, [0, 1, 59, 255]), "train")
    assert [dataset.name_of(i) for i in range(len(dataset))] == ["2008_000002", "2008_000003"]
    assert dataset.read(0)[1][0, ::4].tolist() == [0, 1, 59, 255]
    assert len(dataset.classes) == len(set(dataset.palette)) == 60


def test_fifty_nine_classes_ignore_the_background(tmp_path):
    dataset = create_dataset("pascal_context_59", pascal_context(tmp_path, [0, 1, 59, 255]), "val")
    assert dataset.read(0)[1][0, ::4].tolist() == [255, 0, 58, 255]
    assert len(dataset.classes) == len(dataset.palette) == 59
    assert dataset.classes[0] == "aeroplane"


def test_classes_are_in_the_order_of_the_masks(tmp_path):
    classes = create_dataset("pascal_context", pascal_context(tmp_path, [0]), "val").classes
    assert classes[:7] == ("background", "aeroplane", "bag", "bed", "bedclothes", "bench", "bicycle")
    assert list(classes[1:]) == sorted(classes[1:])


def test_the_names_are_those_of_the_published_list(shared):
    listed = (shared / "fixtures/pascal_context_classes_59.txt").read_text().split("\n")
    names = {line.split(": ")[1] for line in listed if ": " in line}
    renamed = {"diningtable": "table", "bedcloth": "bedclothes", "clothes": "cloth"}
    from depict.data.pascal_context import PascalContext

    assert {renamed.get(name, name) for name in names} | {"background"} == set(PascalContext.classes)


def test_a_list_cannot_lead_out_of_the_folder(tmp_path):
    pascal_context(tmp_path, [0])
    (tmp_path / "VOCdevkit/VOC2010/ImageSets/SegmentationContext/train.txt").write_text("../../secret\n")
    with pytest.raises(UserError, match=r"train.txt' lists '../../secret'"):
        create_dataset("pascal_context", tmp_path, "train")
