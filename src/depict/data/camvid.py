"""CamVid in the SegNet split: road scenes from a driving car, 480x360, 11 classes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from depict.data.dataset import IGNORE, Recipe
from depict.data.pairs import FileDataset, Named, inner, named_files


class CamVid(FileDataset):
    """Folders `train`, `trainannot`, `val`, `valannot`; mask value 11 is void."""

    name = "camvid"
    layout = "train, trainannot, val and valannot (`depict prepare camvid` gets them)"
    classes = (
        *("sky", "building", "pole", "road", "pavement", "tree"),
        *("sign", "fence", "car", "pedestrian", "bicyclist"),
    )
    palette = (
        *((128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222), (128, 128, 0)),
        *((192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192)),
    )
    label_of_value = (*range(11), IGNORE)
    # The paper does not train on CamVid: the edges follow its images, the rest is ADE20K's.
    recipe = Recipe(short_edge=360, max_aspect=2, crop=352, epochs=64, batch=8, lr=1e-3)

    def find(self, root: Path) -> tuple[Iterable[Named], Iterable[Named]]:
        """Images and masks lie in two folders per split."""
        folder = inner(root, "CamVid")
        images, masks = folder / self.split, folder / f"{self.split}annot"
        return named_files(images, self.layout), named_files(masks, self.layout)
