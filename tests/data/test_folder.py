import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from depict.data import create_dataset
from depict.data.folder import held_out_names
from depict.errors import UserError
from support.layouts import folder, picture, save, stripes

NAMES = [f"photo {i}" for i in range(20)]


def test_classes_are_found_in_the_masks_when_nothing_names_them(tmp_path):
    dataset = create_dataset("folder", folder(tmp_path, NAMES, [3, 7, 255]), "train")
    assert dataset.classes == ("3", "7")
    assert sorted(dataset.read(0)[1].unique().tolist()) == [0, 1, 255]


def test_black_and_white_masks_are_two_classes(tmp_path):
    dataset = create_dataset("folder", folder(tmp_path, NAMES, [0, 255]), "val")
    assert dataset.classes == ("0", "255")
    assert sorted(dataset.read(0)[1].unique().tolist()) == [0, 1]


def test_masks_without_a_single_label_say_so(tmp_path):
    with pytest.raises(UserError, match="every pixel of the 2 masks is 255, which means not labeled"):
        create_dataset("folder", folder(tmp_path, NAMES[:2], [255]), "train")


def test_the_split_is_complete_stable_and_without_overlap(tmp_path):
    folder(tmp_path, NAMES, [0, 1])
    train, val = (create_dataset("folder", tmp_path, split) for split in ("train", "val"))
    names = [{d.name_of(i) for i in range(len(d))} for d in (train, val)]
    assert names[0] | names[1] == set(NAMES)
    assert not names[0] & names[1]
    assert names[1] == {"photo 12", "photo 13", "photo 16", "photo 18", "photo 9"}
    assert len(create_dataset("folder", tmp_path, "trainval")) == len(NAMES)


@pytest.mark.parametrize(
    ("images", "held_out"), [(2, 1), (5, 1), (8, 2), (20, 5), (40, 10), (50, 10), (60, 12), (101, 20), (1000, 200)]
)
def test_exactly_a_fifth_is_held_out_but_ten_if_these_are_no_more_than_a_quarter(images, held_out):
    assert len(held_out_names({f"{index}.jpg" for index in range(images)})) == held_out


@given(st.sets(st.text(min_size=1, max_size=8), min_size=2, max_size=60))
def test_both_sides_of_any_split_have_an_image(names):
    held_out = held_out_names(names)
    assert 1 <= len(held_out) < len(names)
    assert held_out < names


@given(st.sets(st.text(min_size=1, max_size=8), min_size=30, max_size=60), st.text(min_size=9, max_size=10))
def test_a_new_image_moves_at_most_one_other_to_the_other_side(names, new):
    before, after = held_out_names(names), held_out_names(names | {new})
    assert len((after - {new}) ^ before) <= 1


def test_subfolders_are_the_split_if_there_are_any(tmp_path):
    for part, count in (("train", 3), ("val", 2)):
        for i in range(count):
            save(tmp_path / "images" / part / f"{i}.jpg", picture())
            save(tmp_path / "masks" / part / f"{i}.png", stripes([0, 1]))
    assert [len(create_dataset("folder", tmp_path, split)) for split in ("train", "val")] == [3, 2]


def test_both_parts_together_keep_files_of_the_same_name_apart(tmp_path):
    for part in ("train", "val"):
        save(tmp_path / "images" / part / "a.jpg", picture())
        save(tmp_path / "masks" / part / "a.png", stripes([0, 1]))
    both = create_dataset("folder", tmp_path, "trainval")
    assert [both.name_of(index) for index in range(len(both))] == ["train_a", "val_a"]
    assert not both.problems


def test_a_test_folder_is_a_split_with_or_without_masks(tmp_path):
    folder(tmp_path, NAMES, [0, 1])
    with pytest.raises(UserError, match="images/test"):
        create_dataset("folder", tmp_path, "test")
    save(tmp_path / "images" / "test" / "new.jpg", picture())
    test = create_dataset("folder", tmp_path, "test")
    assert (len(test), test.labeled) == (1, False)
    assert test.read(0)[1].unique().tolist() == [255]
    save(tmp_path / "masks" / "test" / "new.png", stripes([1, 0]))
    test = create_dataset("folder", tmp_path, "test")
    assert test.labeled
    assert test.read(0)[1][0, ::8].tolist() == [1, 0]
    assert len(create_dataset("folder", tmp_path, "train")) == 15


def test_a_folder_may_have_one_part_only(tmp_path):
    folder(tmp_path / "all", NAMES, [0, 1])
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        (tmp_path / "all" / kind).rename(tmp_path / kind / "val")
    assert len(create_dataset("folder", tmp_path, "val")) == len(NAMES)
    with pytest.raises(UserError, match="images/train"):
        create_dataset("folder", tmp_path, "train")


def test_classes_yaml_names_classes_folders_and_the_ignored_value(tmp_path):
    for name in NAMES:
        save(tmp_path / "photos" / f"{name}.webp", picture())
        save(tmp_path / "labels" / f"{name}.png", stripes([0, 1, 2, 255]))
    (tmp_path / "classes.yaml").write_text("names: [road, sky]\nignore: 0\nimages: photos\nmasks: labels\n")
    dataset = create_dataset("folder", tmp_path, "train")
    assert dataset.classes == ("road", "sky")
    assert dataset.read(0)[1][0, ::4].tolist() == [255, 0, 1, 255]


def test_classes_may_have_any_mask_values(tmp_path):
    folder(tmp_path, NAMES, [0, 255])
    (tmp_path / "classes.yaml").write_text("names: [background, leaf]\nvalues: [0, 255]\n")
    dataset = create_dataset("folder", tmp_path, "train")
    assert dataset.classes == ("background", "leaf")
    assert dataset.read(0)[1][0, ::8].tolist() == [0, 1]
    save(tmp_path / "masks" / f"{dataset.name_of(0)}.png", stripes([0, 7]))
    with pytest.raises(UserError, match=r"holds 7 \(96 pixels\); folder has 2 classes, in mask values 0, 255\.$"):
        dataset.read(0)


COLORS = {"names": "[road, sky]", "colors": "[[128, 0, 0], [0, 0, 255]]", "ignore": "[0, 0, 0]"}


def color_folder(root, stripe_colors):
    for i, name in enumerate(NAMES):
        save(root / "images" / f"{name}.jpg", picture(seed=i))
        mask = np.array(stripe_colors, np.uint8)[stripes(list(range(len(stripe_colors))))]
        save(root / "masks" / f"{name}.png", mask)
    (root / "classes.yaml").write_text("\n".join(f"{k}: {v}" for k, v in COLORS.items()))
    return root


def test_color_masks_are_read_by_their_colors(tmp_path):
    root = color_folder(tmp_path, [(0, 0, 255), (128, 0, 0), (0, 0, 0), (0, 0, 255)])
    dataset = create_dataset("folder", root, "train")
    assert dataset.palette == ((128, 0, 0), (0, 0, 255))
    assert dataset.read(0)[1][0, ::4].tolist() == [1, 0, 255, 1]


def test_palette_masks_hold_indices_unless_set_otherwise(tmp_path):
    root = color_folder(tmp_path, [(0, 0, 255), (128, 0, 0)])
    mask = Image.fromarray(stripes([0, 1])).convert("P")
    mask.putpalette([0, 0, 255, 128, 0, 0])
    for name in NAMES:
        mask.save(root / "masks" / f"{name}.png")
    assert create_dataset("folder", root, "train").read(0)[1][0, ::8].tolist() == [0, 1]
    with (root / "classes.yaml").open("a") as file:
        file.write("\ncolor_masks: true\n")
    assert create_dataset("folder", root, "train").read(0)[1][0, ::8].tolist() == [1, 0]


def test_a_color_without_a_class_is_reported(tmp_path):
    dataset = create_dataset("folder", color_folder(tmp_path, [(1, 2, 3), (128, 0, 0)]), "train")
    with pytest.raises(UserError, match=r"holds the colors #010203 \(96 pixels\), which classes.yaml does not name"):
        dataset.read(0)


def test_color_masks_without_colors_say_what_to_do(tmp_path):
    root = color_folder(tmp_path, [(0, 0, 255), (128, 0, 0)])
    (root / "classes.yaml").unlink()
    with pytest.raises(UserError, match=r"photo 0.png' is a color \(RGB\) picture .* 'colors' in classes.yaml"):
        create_dataset("folder", root, "train")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("namse: [a]", "does not list the 'names'"),
        ("names: [a]\ncolours: [[1, 2, 3]]", "unknown setting .* 'colours'. Did you mean 'colors'"),
        ("names: [a, a]", "two classes have the same name"),
        ("names: []", "there must be 1 to 32768 classes, not 0"),
        ("names: [yes, no]", "is not of type"),
        ("names: [a, b]\ncolors: [[1, 2, 3]]", "2 names but 1 colors"),
        ("names: [a, b]\ncolors: [[1, 2, 3], [1, 2, 3]]", "one color to two classes"),
        ("names: [a, b]\nvalues: [1]", "2 names but 1 values"),
        ("names: [a, b]\nvalues: [1, 1]", "one mask value to two classes"),
        ("names: [a, b]\nvalues: [0, 1]\nignore: 1", "or to a class and 'ignore'"),
        ("names: [a]\nvalues: [256]", "outside 0..255"),
        ("names: [a]\ncolors: [[1, 2, 300]]", "outside 0..255"),
        ("names: [a]\nignore: 256", "outside 0..255"),
        ("names: [a]\nmasks: ../../elsewhere", "not inside"),
        ("names: [a]\ncolor_masks: true", "gives no 'colors'"),
        ("names: [a", "not valid YAML"),
        (f"names: [{'n' * 100_000}]", "the class name 'n+...' has 100000 characters, more than 200"),
        ('names: ["a\\nb"]', "holds control characters or line breaks"),
    ],
)
def test_a_wrong_classes_file_is_explained_in_one_line(tmp_path, text, complaint):
    folder(tmp_path, NAMES[:2], [0])
    (tmp_path / "classes.yaml").write_text(text)
    with pytest.raises(UserError, match=complaint) as caught:
        create_dataset("folder", tmp_path, "train")
    assert "classes.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_image_cannot_be_split(tmp_path):
    with pytest.raises(UserError, match="no val images"):
        create_dataset("folder", folder(tmp_path, ["only"], [0, 1]), "val")
