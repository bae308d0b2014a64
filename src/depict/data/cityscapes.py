"""Cityscapes: street scenes of 50 cities, 2048x1024, 19 classes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from depict.data.dataset import IGNORE, Recipe
from depict.data.pairs import FileDataset, Named, inner, named_files, read_mask
from depict.errors import UserError

IMAGE, TRAIN_IDS, IDS = "_leftImg8bit", "_gtFine_labelTrainIds", "_gtFine_labelIds"

EVALUATED = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""labelIds of the 19 classes in the order of labels; the other ids up to 33 are ignored."""
LABEL_OF_ID = tuple(EVALUATED.index(i) if i in EVALUATED else IGNORE for i in range(34))


class Cityscapes(FileDataset):
    """`labelTrainIds` masks where they are, otherwise `labelIds` mapped while reading."""

    name = "cityscapes"
    layout = "leftImg8bit/SPLIT/CITY and gtFine/SPLIT/CITY (`depict prepare cityscapes` says how to get them)"
    classes = (
        *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign"),
        *("vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "train"),
        *("motorcycle", "bicycle"),
    )
    palette = (
        *((128, 64, 128), (244, 35, 232), (70, 70, 70), (102, 102, 156), (190, 153, 153), (153, 153, 153)),
        *((250, 170, 30), (220, 220, 0), (107, 142, 35), (152, 251, 152), (70, 130, 180), (220, 20, 60)),
        *((255, 0, 0), (0, 0, 142), (0, 0, 70), (0, 60, 100), (0, 80, 100), (0, 0, 230), (119, 11, 32)),
    )
    label_of_value = tuple(range(19))
    recipe = Recipe(short_edge=1024, max_aspect=2, crop=768, epochs=216, batch=8, lr=1e-2, stride=512)

    def find(self, root: Path) -> tuple[Iterable[Named], Iterable[Named]]:
        """One folder per city, below images and below masks."""
        root = inner(root, "cityscapes")
        images = self._cities(root / "leftImg8bit" / self.split, IMAGE)
        masks = dict(self._cities(root / "gtFine" / self.split, IDS))
        masks.update(self._cities(root / "gtFine" / self.split, TRAIN_IDS))
        return images, masks.items()

    def _cities(self, folder: Path, ending: str) -> list[Named]:
        try:
            cities = sorted(city for city in folder.iterdir() if city.is_dir())
        except OSError as error:
            raise UserError(f"cannot list '{folder}': {error.strerror}. It needs {self.layout}.") from error
        return [pair for city in cities for pair in named_files(city, self.layout, ending)]

    def read_labels(self, path: Path) -> np.ndarray:
        """The file's name tells which of the two codes it is in."""
        return self.look_up(read_mask(path), LABEL_OF_ID if path.stem.endswith(IDS) else self.label_of_value, path)
