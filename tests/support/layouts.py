"""Small data sets on disk, in the layouts of the real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def picture(height: int = 12, width: int = 16, seed: int = 0) -> np.ndarray:
    """Noise, so that no two images are alike."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def stripes(values: list[int], height: int = 12, width: int = 16) -> np.ndarray:
    """A mask with one vertical stripe per value."""
    return np.tile(np.array(values, np.uint8)[np.arange(width) * len(values) // width], (height, 1))


def save(path: Path, array: np.ndarray, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


def ade20k(root: Path, values: list[int], names: tuple[str, ...] = ("ADE_x_1", "ADE_x_2")) -> Path:
    for part in ("training", "validation"):
        for seed, name in enumerate(names):
            save(root / "ADEChallengeData2016/images" / part / f"{name}.jpg", picture(seed=seed))
            save(root / "ADEChallengeData2016/annotations" / part / f"{name}.png", stripes(values))
    save(root / "release_test/testing/ADE_test_1.jpg", picture())
    return root


def cityscapes(root: Path, masks: dict[str, list[int]]) -> Path:
    """`masks`: the ending of each mask file -> its values."""
    for part, city in (("train", "aachen"), ("val", "lindau")):
        name = f"{city}_000000_000019"
        save(root / "leftImg8bit" / part / city / f"{name}_leftImg8bit.png", picture())
        for ending, values in masks.items():
            save(root / "gtFine" / part / city / f"{name}_gtFine_{ending}.png", stripes(values))
    save(root / "leftImg8bit/test/berlin/berlin_000000_000019_leftImg8bit.png", picture())
    save(root / "gtFine/test/berlin/berlin_000000_000019_gtFine_labelIds.png", stripes([0]))
    return root


def pascal_context(root: Path, values: list[int]) -> Path:
    base = root / "VOCdevkit/VOC2010"
    for part, names in (("train", ["2008_000002", "2008_000003"]), ("val", ["2008_000009"])):
        lists = base / "ImageSets/SegmentationContext" / f"{part}.txt"
        lists.parent.mkdir(parents=True, exist_ok=True)
        lists.write_text("\n".join(names) + "\n")
        for name in names:
            save(base / "JPEGImages" / f"{name}.jpg", picture())
            save(base / "SegmentationClassContext" / f"{name}.png", stripes(values))
    return root


def camvid(root: Path, values: list[int], count: int = 3) -> Path:
    for part in ("train", "val", "test"):
        for index in range(count):
            save(root / part / f"0001TP_{index:06}.png", picture(seed=index))
            save(root / f"{part}annot" / f"0001TP_{index:06}.png", stripes(values))
    return root


def folder(root: Path, names: list[str], values: list[int]) -> Path:
    """A `folder` data set without a split of its own: noise, with the same striped mask for every picture."""
    for seed, name in enumerate(names):
        save(root / "images" / f"{name}.jpg", picture(seed=seed))
        save(root / "masks" / f"{name}.png", stripes(values))
    return root


def rectangles(root: Path, train: int = 10, val: int = 4, size: tuple[int, int] = (40, 48)) -> Path:
    """A `folder` data set with a split, learnable in seconds: a gray rectangle and a bright corner on dark ground.

    Three classes; `size` is height and width.
    """
    generator = np.random.default_rng(0)
    height, width = size
    for split, count in (("train", train), ("val", val)):
        for index in range(count):
            labels = np.zeros(size, np.uint8)
            top, left = generator.integers(0, height // 2, 2)
            labels[top : top + height // 2, left : left + width // 2] = 1
            labels[height * 3 // 4 :, : height // 4] = 2
            image = labels[..., None] * 80 + generator.integers(0, 60, (*size, 3))
            save(root / "images" / split / f"{split}{index}.png", image.astype(np.uint8))
            save(root / "masks" / split / f"{split}{index}.png", labels)
    return root
