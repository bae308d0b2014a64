"""CamVid in the SegNet split: road scenes from a driving car, 480x360, 11 classes."""

from __future__ import annotations

from pathlib import Path

from depict.data.dataset import IGNORE, Recipe
from depict.data.pairs import FileDataset, Found, named_files, subfolder_or_root


class CamVid(FileDataset):
    """Folders `train`, `trainannot`, `val`, ...; mask value 11 is void. The test split has ground truth."""

    name = "camvid"
    layout = "train, trainannot, val, valannot, test and testannot (`depict prepare camvid` downloads them)"
    splits = ("train", "val", "trainval", "test")
    classes = (
        *("sky", "building", "pole", "road", "pavement", "tree"),
        *("sign", "fence", "car", "pedestrian", "bicyclist"),
    )
    palette = (
        *((128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222), (128, 128, 0)),
        *((192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192)),
    )
    label_of_value = (*range(11), IGNORE)
    # The paper does not train on CamVid: sizes follow its images, the rest is as for ADE20K.
    recipe = Recipe(short_edge=360, max_aspect=2, crop=352, epochs=64, batch=8, lr=1e-3)

    def find(self, root: Path, part: str) -> Found:
        """Images are in the folder named after the part, masks in PARTannot."""
        folder = subfolder_or_root(root, "CamVid")
        images, masks = folder / part, folder / f"{part}annot"
        return named_files(images, self.layout), named_files(masks, self.layout)
