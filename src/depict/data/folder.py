"""`folder`: your own images and masks in two folders, matched by name.

```
DIR/images/*.jpg   DIR/masks/*.png          a fifth is held out for validation, or
DIR/images/train   DIR/images/val   ...     your own split, the same in both folders
DIR/images/test                             optional test images, with or without DIR/masks/test
DIR/classes.yaml                            optional, see `ClassesFile`
```
"""

from __future__ import annotations

import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from depict.data.dataset import IGNORE, Recipe
from depict.data.pairs import INVALID, DataError, FileDataset, Found, color_error, count_values, named_files, read_mask
from depict.data.palette import Color, palette_for
from depict.errors import UserError
from depict.io.classes import check_classes
from depict.io.yaml import from_dict, read_yaml
from depict.terminal import progress_bar

CLASSES = "classes.yaml"
HELD_OUT = 0.2
"""Share of the images held out for validation where there is no split."""
FEW, MOST_OF_FEW = 10, 0.25
"""If that is fewer than this many: this many, but no more than this share."""
GIVE_COLORS = f", or give the color of each class under 'colors' in {CLASSES}"


@dataclass
class ClassesFile:
    """The settings in `classes.yaml`."""

    names: tuple[str, ...]
    """Class names; the first is mask value 0, the next 1, and so on, unless `values` says otherwise."""
    values: tuple[int, ...] | None = None
    """Mask value of each class, such as 0 and 255 for black-and-white masks."""
    colors: tuple[tuple[int, int, int], ...] | None = None
    """RGB of each class in overlays; with it, masks may be RGB pictures in these colors."""
    ignore: int | tuple[int, int, int] | None = None
    """Another mask value (or color) to ignore, in addition to 255; `names` skip it."""
    color_masks: bool = False
    """Read palette PNGs by their colors instead of their indices (RGB pictures need no setting)."""
    images: str = "images"
    """Folder of the images."""
    masks: str = "masks"
    """Folder of the masks."""


class Folder(FileDataset):
    """Classes come from `classes.yaml`; without it they are the values found in the masks.

    Then 255 is ignored, unless the masks hold only 0 and 255: these are two classes.
    """

    name = "folder"
    layout = "the folders 'images' and 'masks' (or others named in classes.yaml)"
    splits = ("train", "val", "trainval", "test")
    recipe = Recipe(short_edge=512, max_aspect=4, crop=512, epochs=64, batch=8, lr=1e-3)

    def __init__(self, root: Path | None, split: str) -> None:
        if root is not None:
            self._learn_classes(root)
        super().__init__(root, split)

    def find(self, root: Path, part: str) -> Found:
        """The part's subfolders; without any, the held-out images or the others."""
        images, masks = self._image_folder, self._mask_folder
        if part == "test" and not (images / part).is_dir():
            raise UserError(f"there are no test images: put them into '{images / part}', masks into '{masks / part}'.")
        if part == "test" and not (masks / part).is_dir():
            return named_files(images / part, self.layout), None
        if part == "test" or self._parts(images):
            return named_files(images / part, self.layout), named_files(masks / part, self.layout)
        image_files, mask_files = named_files(images, self.layout), named_files(masks, self.layout)
        held_out = held_out_names({name for name, _ in image_files})

        def belongs(name: str) -> bool:
            return (name in held_out) == (part == "val")

        return [pair for pair in image_files if belongs(pair[0])], [pair for pair in mask_files if belongs(pair[0])]

    def label_rules(self) -> list[object]:
        """As for any files, and how colors are read."""
        return [self.label_of_value, self._color_masks, sorted(self._label_of_code.items())]

    def read_labels(self, path: Path) -> np.ndarray:
        """Mask indices, or colors if classes.yaml gives them, as labels."""
        mask = read_mask(path, colors=self._color_masks)
        if mask.ndim == 2:
            return self.values_to_labels(mask, self.label_of_value, path)
        if not self._label_of_code:
            raise color_error(path, GIVE_COLORS)
        red, green, blue = mask.astype(np.int32).transpose(2, 0, 1)
        codes = red << 16 | green << 8 | blue
        labels = np.take(self._label_of_color, codes)
        if (unknown := labels == INVALID).any():
            colors = count_values(codes[unknown], "#{:06x}")
            raise DataError(f"the mask '{path}' holds the colors {colors}, which {CLASSES} does not name.", "labels")
        return labels

    @functools.cached_property
    def _label_of_color(self) -> np.ndarray:
        """The label of each of the 2^24 colors: 16 MB, twice as fast as a search among the few that have one."""
        table = np.full(1 << 24, INVALID, np.uint8)
        table[list(self._label_of_code.keys())] = list(self._label_of_code.values())
        return table

    def _learn_classes(self, root: Path) -> None:
        if not root.is_dir():
            raise UserError(f"'{root}' is not a folder; it needs {self.layout}.")
        given = read_classes(root / CLASSES) if (root / CLASSES).exists() else None
        self._image_folder = root / (given.images if given else "images")
        self._mask_folder = root / (given.masks if given else "masks")
        if given:
            self._take_classes(given)
        else:
            self._find_classes()

    def _take_classes(self, given: ClassesFile) -> None:
        self.classes = given.names
        self.palette = given.colors or palette_for(given.names)
        self._color_masks = given.color_masks
        self._label_of_code = {_code(color): label for label, color in enumerate(given.colors or ())}
        if isinstance(given.ignore, tuple):
            self._label_of_code[_code(given.ignore)] = IGNORE
        counted = [value for value in range(256) if value != given.ignore][: len(given.names)]
        ignore = given.ignore if isinstance(given.ignore, int) else IGNORE
        self.label_of_value = _label_of_value(list(given.values or counted), ignore)

    def _find_classes(self) -> None:
        """Read all masks for the values in them."""
        named_files(self._image_folder, self.layout)  # a missing folder of images is reported first
        folders = [self._mask_folder / part for part in self._parts(self._image_folder)] or [self._mask_folder]
        if (test := self._mask_folder / "test").is_dir():
            folders.append(test)
        masks = [path for folder in folders for _, path in named_files(folder, self.layout)]
        with ThreadPoolExecutor() as pool:
            values_of = pool.map(_mask_values, masks)
            found = list(progress_bar(values_of, "finding classes", total=len(masks), delay=2, unit="mask"))
        values = sorted(set[int]().union(*(item for item in found if isinstance(item, set))))
        if values != [0, IGNORE]:
            values = [value for value in values if value != IGNORE]
        if not values:
            reason = (
                f"every pixel of the {len(masks)} masks is {IGNORE}, which means not labeled" if masks else "no masks"
            )
            nothing = UserError(f"'{self._mask_folder}' needs class indices as 8-bit PNGs: {reason}.")
            raise next((item for item in found if isinstance(item, DataError)), nothing)
        self.classes = tuple(map(str, values))
        self.palette = palette_for(self.classes)
        self._color_masks, self._label_of_code = False, {}
        self.label_of_value = _label_of_value(values)

    @staticmethod
    def _parts(folder: Path) -> list[str]:
        """The subfolders that make a split; none: it is made here."""
        return [part for part in ("train", "val") if (folder / part).is_dir()]


def read_classes(path: Path) -> ClassesFile:
    """Read and check a `classes.yaml`."""
    settings = read_yaml(path)
    if "names" not in settings:
        raise UserError(f"'{path}' does not list the 'names' of the classes.")
    given = from_dict(ClassesFile, settings, f"'{path}'")
    check_classes(given.names, f"'{path}'")
    if len(given.names) > INVALID:
        raise UserError(f"'{path}' names {len(given.names)} classes; at most {INVALID} are supported.")
    if given.colors is not None and len(given.colors) != len(given.names):
        raise UserError(f"'{path}' gives {len(given.names)} names but {len(given.colors)} colors.")
    if given.values is not None and len(given.values) != len(given.names):
        raise UserError(f"'{path}' gives {len(given.names)} names but {len(given.values)} values.")
    if given.values is not None and len({*given.values, given.ignore}) <= len(given.values):
        raise UserError(f"'{path}' gives one mask value to two classes, or to a class and 'ignore'.")
    colors = [*(given.colors or ()), *([given.ignore] if isinstance(given.ignore, tuple) else [])]
    if len(set(colors)) < len(colors):
        raise UserError(f"'{path}' gives one color to two classes, or to a class and 'ignore'.")
    values = [*(given.values or ()), *([given.ignore] if isinstance(given.ignore, int) else [])]
    if not all(0 <= number <= 255 for number in [*values, *(channel for color in colors for channel in color)]):
        raise UserError(f"'{path}' holds a color or value outside 0..255.")
    if given.color_masks and not given.colors:
        raise UserError(f"'{path}' sets color_masks but gives no 'colors'.")
    for folder in (given.images, given.masks):
        if Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise UserError(f"'{path}' names the folder '{folder}', which is not inside '{path.parent}'.")
    return given


def held_out_names(names: set[str]) -> set[str]:
    """The names to validate on: exactly a fifth; of fewer than 50, up to a quarter in order to have ten.

    Chosen by a hash of the name: the same on every machine, in any order, and adding an image moves at most one other
    to the other side. Both sides have at least one name if there are two.
    """
    count = max(round(HELD_OUT * len(names)), min(FEW, int(MOST_OF_FEW * len(names))))
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode(errors="surrogateescape")).digest())
    return set(ordered[: min(max(count, 1), len(names) - 1)])


def _mask_values(path: Path) -> set[int] | DataError:
    """The values in one mask; a broken mask is reported when it is read or checked."""
    try:
        mask = read_mask(path)
    except DataError as error:
        return error
    if mask.ndim == 3:
        return color_error(path, GIVE_COLORS)
    return set(np.flatnonzero(np.bincount(mask.ravel())).tolist())


def _label_of_value(values: list[int], ignore: int = IGNORE) -> tuple[int, ...]:
    """The label of each of the 256 mask values: `values` are labels 0, 1, 2, ..."""
    labels = {IGNORE: IGNORE, ignore: IGNORE, **{value: label for label, value in enumerate(values)}}
    return tuple(labels.get(value, INVALID) for value in range(256))


def _code(color: Color) -> int:
    return color[0] << 16 | color[1] << 8 | color[2]
