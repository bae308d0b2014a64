import pytest

from depict.config.resolve import resolve
from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, TrainConfig
from depict.data import create_dataset
from depict.data.check import check_dataset, quick_check
from depict.data.dataset import hold_out, random_subset
from depict.errors import UserError
from depict.training.loop import train
from support.layouts import ade20k, camvid, picture, save, stripes


def spoil(root):
    """A CamVid with one fault of every kind. Returns the file that each is about."""
    camvid(root, [0, 1, 11], count=8)
    image = [root / "train" / f"0001TP_{i:06}.png" for i in range(8)]
    mask = [root / "trainannot" / path.name for path in image]
    mask[0].unlink()
    save(mask[1], stripes([0], 5, 5))
    save(mask[2], stripes([3, 77, 99]))
    save(mask[3], picture())
    image[4].write_bytes(image[4].read_bytes()[:100])
    save(image[5].with_suffix(".jpg"), picture())
    save(root / "trainannot" / "left over.png", stripes([0]))
    files = {"missing": image[0], "size": mask[1], "labels": mask[2], "format": mask[3], "unreadable": image[4]}
    return {**files, "duplicate": image[5], "extra": root / "trainannot" / "left over.png"}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_problem_is_found_and_named(tmp_path, workers):
    files = spoil(tmp_path)
    report = check_dataset(create_dataset("camvid", tmp_path, "train"), workers)
    assert sorted(problem.kind for problem in report.problems) == sorted(files)
    for problem in report.problems:
        assert str(files[problem.kind]) in str(problem)
        assert "\n" not in str(problem)
    assert not report.usable
    assert "77 (60 pixels), 99 (60 pixels)" in next(str(p) for p in report.problems if p.kind == "labels")
    text = str(report)
    assert "3 of 8 images readable with their masks" in text
    assert "training would fail" in text


def test_pixels_and_images_are_counted_per_class(tmp_path):
    report = check_dataset(create_dataset("camvid", camvid(tmp_path, [0, 0, 1, 11]), "val"))
    assert report.usable
    assert report.pixels[[0, 1, 2, 255]].tolist() == [3 * 96, 3 * 48, 0, 3 * 48]
    assert report.images[[0, 1, 2, 255]].tolist() == [3, 3, 0, 3]
    values = report.to_dict()
    assert values["classes"][0] == {"name": "sky", "pixels": 288, "share": 2 / 3, "images": 3}
    assert values["sizes"] == [{"width": 16, "height": 12, "images": 3}]
    assert (values["read"], values["ignored_pixels"], values["usable"]) == (3, 144, True)
    assert "without a single pixel: pole, road" in str(report)


def test_extra_files_do_not_prevent_training(tmp_path):
    save(camvid(tmp_path, [0, 1]) / "trainannot" / "left over.png", stripes([0]))
    report = check_dataset(create_dataset("camvid", tmp_path, "train"))
    assert report.usable
    assert "extra: 1 (harmless)" in str(report)


def test_images_without_ground_truth_are_checked_for_prediction(tmp_path):
    dataset = create_dataset("ade20k", ade20k(tmp_path, [1]), "test")
    quick_check(dataset)
    assert check_dataset(dataset).usable
    assert "ready for prediction" in str(check_dataset(dataset))
    (tmp_path / "release_test/testing/ADE_test_1.jpg").write_bytes(b"")
    assert not check_dataset(dataset).usable
    with pytest.raises(UserError, match="is empty"):
        quick_check(dataset)


def test_masks_without_any_label_are_no_training_set(tmp_path):
    assert not check_dataset(create_dataset("camvid", camvid(tmp_path, [11]), "train")).usable


def test_the_quick_check_accepts_a_good_set_and_names_the_first_problem(tmp_path):
    dataset = create_dataset("camvid", camvid(tmp_path, [0, 1, 11]), "train")
    quick_check(dataset)
    save(tmp_path / "trainannot" / "0001TP_000002.png", stripes([0], 5, 5))
    with pytest.raises(UserError, match=r"0001TP_000002.png' is 5x5"):
        quick_check(dataset)


def test_the_quick_check_of_a_subset_checks_only_its_own_samples(tmp_path):
    dataset = create_dataset("camvid", camvid(tmp_path, [0, 1, 11], count=8), "train")
    earlier, later = hold_out(dataset, 0.5)
    drawn = random_subset(later, 2, seed=0)
    inside, outside = drawn.name_of(1), (set(map(later.name_of, range(4))) - {drawn.name_of(0), drawn.name_of(1)}).pop()
    save(tmp_path / "trainannot" / f"{outside}.png", stripes([0], 5, 5))
    quick_check(earlier)
    quick_check(drawn)
    with pytest.raises(UserError, match=rf"{outside}.png' is 5x5"):
        quick_check(later)
    save(tmp_path / "trainannot" / f"{inside}.png", stripes([0], 7, 7))
    quick_check(earlier)
    with pytest.raises(UserError, match=rf"{inside}.png' is 7x7"):
        quick_check(drawn)


def test_the_quick_check_of_a_subset_names_its_missing_masks_and_every_duplicate(tmp_path):
    camvid(tmp_path, [0, 1, 11], count=4)
    (tmp_path / "trainannot" / "0001TP_000003.png").unlink()
    earlier, later = hold_out(create_dataset("camvid", tmp_path, "train"), 0.5)
    quick_check(earlier)
    with pytest.raises(UserError, match=r"no mask for '.*0001TP_000003.png'"):
        quick_check(later)
    save(tmp_path / "train" / "0001TP_000003.bmp", picture())
    earlier, _ = hold_out(create_dataset("camvid", tmp_path, "train"), 0.5)
    with pytest.raises(UserError, match="have the same name"):
        quick_check(earlier)


@pytest.mark.parametrize("part", [{"limit": 7}, {"holdout": 0.5}, {"holdout": 0.25, "limit": 6}])
def test_a_training_on_a_part_of_the_images_names_a_wrong_mask_before_it_starts(tmp_path, part):
    camvid(tmp_path / "data", [0, 1, 11], count=8)
    config = Config(
        encoder=EncoderConfig("vit_tiny_patch16_224", pretrained=False, depth=1, dim=48),
        decoder=DecoderConfig("linear"),
        data=DataConfig("camvid", tmp_path / "data", workers=0, **part),
        train=TrainConfig(epochs=1, batch=1, device="cpu"),
        image_size=16,
    )
    _, training, validation = resolve(config)
    spoilt = (validation if "limit" not in part else training).name_of(3)
    save(tmp_path / "data" / "trainannot" / f"{spoilt}.png", stripes([0], 5, 5))
    with pytest.raises(UserError, match=rf"{spoilt}.png' is 5x5"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_the_quick_check_needs_no_files_where_there_are_none():
    quick_check(create_dataset("scenes", None, "val"))
