"""Files that are not what they should be: each is reported in one line that names it."""

import os
import pickle
import unicodedata
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from depict.data import create_dataset
from depict.data.check import quick_check
from depict.errors import UserError
from support.layouts import camvid, cityscapes, folder, picture, save, stripes


def spoiled(root, **options):
    """A CamVid-like training set and the paths of its first image and mask, to be spoiled."""
    camvid(root, [0, 1, 11], **options)
    return root / "train" / "0001TP_000000.png", root / "trainannot" / "0001TP_000000.png"


def complaint(root, quick: bool = True) -> str:
    """The error about the first sample, from the quick check before training or from reading it."""
    dataset = create_dataset("camvid", root, "train")
    with pytest.raises(UserError) as caught:
        quick_check(dataset) if quick else dataset.read(0)
    text = str(caught.value)
    assert "\n" not in text
    assert str(root) in text
    return text


BOTH = pytest.mark.parametrize("quick", [True, False])


@BOTH
def test_a_missing_mask_is_named_by_its_image(tmp_path, quick):
    image, mask = spoiled(tmp_path)
    mask.unlink()
    assert complaint(tmp_path, quick) == f"no mask for '{image}': add one of the same name, or remove the image."


@BOTH
def test_a_mask_of_another_size_is_named(tmp_path, quick):
    image, mask = spoiled(tmp_path)
    save(mask, stripes([0, 1], 6, 8))
    assert complaint(tmp_path, quick) == f"the mask '{mask}' is 8x6 but its image '{image}' is 16x12."


def test_a_label_outside_the_classes_is_counted(tmp_path):
    cityscapes(tmp_path, {"labelTrainIds": [0, 18, 200, 255]})
    with pytest.raises(UserError) as caught:
        create_dataset("cityscapes", tmp_path, "train").read(0)
    mask = tmp_path / "gtFine/train/aachen/aachen_000000_000019_gtFine_labelTrainIds.png"
    assert str(caught.value) == (
        f"the mask '{mask}' holds 200 (48 pixels); cityscapes has 19 classes, in mask values 0 to 18, "
        "and 255 for ignored pixels."
    )


@BOTH
def test_a_16_bit_mask_is_refused(tmp_path, quick):
    _, mask = spoiled(tmp_path)
    Image.fromarray(stripes([0, 1]).astype(np.uint16)).save(mask)
    assert complaint(tmp_path, quick).startswith(f"the mask '{mask}' has 16 or more bits per pixel")


@BOTH
def test_a_color_mask_is_refused_where_indices_were_expected(tmp_path, quick):
    _, mask = spoiled(tmp_path)
    save(mask, picture())
    assert complaint(tmp_path, quick).startswith(f"the mask '{mask}' is a color (RGB) picture where class indices")


@BOTH
def test_a_jpeg_mask_is_refused_whatever_its_suffix(tmp_path, quick):
    _, mask = spoiled(tmp_path)
    save(mask, stripes([0, 1]), format="JPEG")
    assert complaint(tmp_path, quick) == f"the mask '{mask}' is a JPEG, which blurs labels: save masks as PNG."


@BOTH
@pytest.mark.parametrize("which", [0, 1])
def test_an_empty_file_is_named(tmp_path, quick, which):
    path = spoiled(tmp_path)[which]
    path.write_bytes(b"")
    assert complaint(tmp_path, quick) == f"'{path}' is empty (0 bytes)."


@BOTH
def test_a_text_file_with_a_picture_s_name_is_named(tmp_path, quick):
    image, _ = spoiled(tmp_path)
    image.write_text("no picture")
    assert complaint(tmp_path, quick) == f"'{image}' is not a readable image."


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_truncated_image_is_named_when_it_is_read(tmp_path, suffix):
    image, mask = spoiled(tmp_path)
    image.unlink()
    save(mask, stripes([0, 1], 120, 160))
    image = save(image.with_suffix(f".{suffix}"), picture(120, 160))
    image.write_bytes(image.read_bytes()[: image.stat().st_size // 2])
    assert complaint(tmp_path, quick=False).startswith(f"cannot read '{image}': image file is truncated")


def test_an_image_with_nan_is_named_when_it_is_read(tmp_path):
    image, mask = spoiled(tmp_path)
    image.unlink()
    save(mask, stripes([0, 1], 120, 160))
    Image.fromarray(np.full((120, 160), np.nan, np.float32)).save(image.with_suffix(".tiff"))
    expected = f"'{image.with_suffix('.tiff')}': the image contains NaN or infinite values."
    assert complaint(tmp_path, quick=False) == expected


def test_a_damaged_picture_is_an_error_never_a_crash(tmp_path):
    image, _ = spoiled(tmp_path)
    whole = np.frombuffer(image.read_bytes(), np.uint8)
    dataset, generator, failures = create_dataset("camvid", tmp_path, "train"), np.random.default_rng(0), 0
    for _ in range(200):
        damaged = whole.copy()
        damaged[generator.integers(0, len(whole), 4)] = generator.integers(0, 256, 4)
        image.write_bytes(damaged.tobytes())
        try:
            dataset.read(0)
        except UserError as error:
            failures += 1
            assert str(image) in str(error)
            assert "\n" not in str(error)
    assert failures > 20


@contextmanager
def ordinary_user():
    """Root may read everything: be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@BOTH
def test_a_file_without_permission_is_named(tmp_path, quick):
    image, _ = spoiled(tmp_path)
    image.chmod(0)
    dataset = create_dataset("camvid", tmp_path, "train")
    with ordinary_user(), pytest.raises(UserError) as caught:
        quick_check(dataset) if quick else dataset.read(0)
    assert str(caught.value) == f"cannot read '{image}': Permission denied."


@BOTH
def test_a_link_to_itself_is_named(tmp_path, quick):
    image, _ = spoiled(tmp_path)
    image.unlink()
    image.symlink_to(image)
    assert complaint(tmp_path, quick) == f"cannot read '{image}': Too many levels of symbolic links."


@BOTH
def test_only_regular_files_are_opened(tmp_path, quick):
    image, _ = spoiled(tmp_path)
    image.unlink()
    os.mkfifo(image)  # opening it would wait for ever
    assert complaint(tmp_path, quick) == f"'{image}' is not a file."
    image.unlink()
    image.mkdir()
    assert complaint(tmp_path, quick) == f"'{image}' is not a file."


def test_folders_that_contain_themselves_are_not_followed(tmp_path):
    spoiled(tmp_path)
    (tmp_path / "train" / "again").symlink_to(tmp_path / "train", target_is_directory=True)
    assert len(create_dataset("camvid", tmp_path, "train")) == 3
    cityscapes(tmp_path, {"labelIds": [7]})
    (tmp_path / "leftImg8bit/train/again").symlink_to(tmp_path / "leftImg8bit/train", target_is_directory=True)
    assert len(create_dataset("cityscapes", tmp_path, "train")) == 1


def test_two_files_of_one_name_are_both_named(tmp_path):
    image, _ = spoiled(tmp_path)
    save(image.with_suffix(".jpg"), picture())
    text = f"'{image.with_suffix('.jpg')}' and '{image}' have the same name: keep one of them."
    assert complaint(tmp_path) == text


def test_a_mask_without_an_image_is_reported_and_harmless(tmp_path):
    image, mask = spoiled(tmp_path)
    image.unlink()
    dataset = create_dataset("camvid", tmp_path, "train")
    assert [str(problem) for problem in dataset.problems] == [f"no image for the mask '{mask}'."]
    quick_check(dataset)


def test_an_empty_folder_is_named_with_the_layout_it_needs(tmp_path):
    for name in ("train", "trainannot"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=r"no train images of camvid in '.*': it needs train, trainannot, val"):
        create_dataset("camvid", tmp_path, "train")


@pytest.mark.parametrize("name", ["ade20k", "cityscapes", "pascal_context", "camvid", "folder"])
def test_a_folder_without_the_layout_says_what_it_needs(tmp_path, name):
    with pytest.raises(UserError, match=r"needs .*") as caught:
        create_dataset(name, tmp_path, "train")
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=f"{name} needs --root DIR, a folder with"):
        create_dataset(name, None, "train")


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'cityscapes'"):
        create_dataset("cityscape", ".", "train")
    with pytest.raises(
        UserError, match=r"unknown split 'tset'. Did you mean 'test'\? Known: train, val, trainval, test"
    ):
        create_dataset("camvid", ".", "tset")
    with pytest.raises(UserError, match="pascal_context has no test split, only train, val, trainval"):
        create_dataset("pascal_context", ".", "test")


def test_names_with_spaces_and_accents_pair_whatever_their_unicode_form(tmp_path):
    folder(tmp_path, ["un été à Łódź", "日本 語", "plain"], [0, 1])
    composed = tmp_path / "masks" / unicodedata.normalize("NFC", "un été à Łódź.png")
    composed.rename(tmp_path / "masks" / unicodedata.normalize("NFD", "un été à Łódź.png"))
    for split in ("train", "val"):
        dataset = create_dataset("folder", tmp_path, split)
        quick_check(dataset)
        for index in range(len(dataset)):
            dataset.read(index)


def test_hidden_and_other_files_are_skipped(tmp_path):
    spoiled(tmp_path)
    for name in (".DS_Store", "._0001TP_000000.png", "Thumbs.db", "notes.txt"):
        (tmp_path / "train" / name).write_text("x")
    assert len(create_dataset("camvid", tmp_path, "train")) == 3


def test_a_photograph_is_rotated_by_its_exif_tag(tmp_path):
    image, mask = spoiled(tmp_path)
    image.unlink()
    tag = Image.Exif()
    tag[0x0112] = 6
    pixels = np.zeros((12, 16, 3), np.uint8)
    pixels[:, 8:] = 255
    turned = save(image.with_suffix(".jpg"), pixels, exif=tag.tobytes())
    assert "is 16x12 but its image" in complaint(tmp_path)
    assert complaint(tmp_path, quick=False).endswith("is 12x16 (rotated by its EXIF tag).")
    save(mask, stripes([0, 1], 16, 12))
    dataset = create_dataset("camvid", tmp_path, "train")
    quick_check(dataset)
    read = dataset.read(0)[0]
    assert turned.suffix == ".jpg"
    assert read.shape == (3, 16, 12)
    assert read[:, 8:].float().mean() > 200 > 55 > read[:, :8].float().mean()


def test_gray_palette_and_transparent_images_become_rgb(tmp_path):
    image, _ = spoiled(tmp_path)
    original = Image.fromarray(picture())
    for mode in ("L", "P", "RGBA", "1", "CMYK"):
        suffix = ".tif" if mode == "CMYK" else ".png"
        image.unlink()
        image = image.with_suffix(suffix)
        original.convert(mode).save(image)
        read = create_dataset("camvid", tmp_path, "train").read(0)[0]
        assert np.array_equal(read.permute(1, 2, 0).numpy(), np.array(original.convert(mode).convert("RGB")))


def test_a_picture_too_large_to_decode_is_refused_by_its_header(tmp_path, monkeypatch):
    image, _ = spoiled(tmp_path)
    monkeypatch.setattr("depict.io.images.MAX_PIXELS", 100)
    assert complaint(tmp_path).startswith(f"'{image}': 16 x 12 pixels are more than the limit of 100")


def test_errors_can_be_pickled(tmp_path):
    spoiled(tmp_path)[1].unlink()
    problem = create_dataset("camvid", tmp_path, "train").problems[0]
    copy = pickle.loads(pickle.dumps(problem))
    assert (str(copy), copy.kind) == (str(problem), "missing")
