"""Cityscapes: street scenes of 50 cities, 2048x1024, 19 classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from depict.data.dataset import IGNORE, Recipe
from depict.data.pairs import FileDataset, Found, NamedPath, named_files, read_mask, subfolder_or_root
from depict.errors import UserError

IMAGE, TRAIN_IDS, IDS = "_leftImg8bit", "_gtFine_labelTrainIds", "_gtFine_labelIds"

EVALUATED = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""labelIds of the 19 classes, which the test server expects; the other ids up to 33 are ignored."""
LABEL_OF_ID = tuple(EVALUATED.index(i) if i in EVALUATED else IGNORE for i in range(34))


class Cityscapes(FileDataset):
    """Reads `labelTrainIds` masks if there are any, otherwise maps `labelIds`.

    The published masks of the test split are empty: it counts as unlabeled.
    """

    name = "cityscapes"
    layout = "leftImg8bit/SPLIT/CITY and gtFine/SPLIT/CITY (`depict prepare cityscapes` says how to get them)"
    splits = ("train", "val", "trainval", "test")
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
    submission_values = EVALUATED
    recipe = Recipe(short_edge=1024, max_aspect=2, crop=768, epochs=216, batch=8, lr=1e-2, stride=512)

    def find(self, root: Path, part: str) -> Found:
        """One folder per city, for images and for masks."""
        root = subfolder_or_root(root, "cityscapes")
        images = self._in_cities(root / "leftImg8bit" / part, IMAGE)
        if part == "test":
            return images, None
        masks = dict(self._in_cities(root / "gtFine" / part, IDS))
        masks.update(self._in_cities(root / "gtFine" / part, TRAIN_IDS))
        return images, masks.items()

    def read_labels(self, path: Path) -> np.ndarray:
        """The file's name says which of the two codings it has."""
        label_of_value = LABEL_OF_ID if path.stem.endswith(IDS) else self.label_of_value
        return self.values_to_labels(read_mask(path), label_of_value, path)

    def _in_cities(self, folder: Path, ending: str) -> list[NamedPath]:
        try:
            cities = sorted(city for city in folder.iterdir() if city.is_dir())
        except OSError as error:
            raise UserError(f"cannot list '{folder}': {error.strerror}. It needs {self.layout}.") from error
        return [pair for city in cities for pair in named_files(city, self.layout, ending)]
