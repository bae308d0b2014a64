"""Anyone's own data: a folder of images and a folder of masks, matched by name.

```
DIR/images/*.jpg   DIR/masks/*.png          split 80:20 by a hash of the name, or
DIR/images/train   DIR/images/val   ...     the split that is there, the same in both folders
DIR/classes.yaml                            optional, see `ClassesFile`
```
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from depict.data import SPLITS
from depict.data.dataset import IGNORE, Recipe
from depict.data.pairs import INVALID, DataError, FileDataset, Named, color_error, named_files, read_mask
from depict.data.palette import Color, palette_for
from depict.errors import UserError
from depict.io.yaml import from_dict, read_yaml

CLASSES = "classes.yaml"
HELD_OUT = 0.2
WAY_OUT = f", or give the color of each class under 'colors' in {CLASSES}"


@dataclass
class ClassesFile:
    """What `classes.yaml` may say."""

    names: tuple[str, ...]
    """Class names; the first is mask value 0, the next 1, and so on, unless `values` says otherwise."""
    values: tuple[int, ...] | None = None
    """Mask value of each class, such as 0 and 255 for masks in black and white."""
    colors: tuple[tuple[int, int, int], ...] | None = None
    """RGB of each class, for pictures; with it masks may be color pictures (RGB) in these colors."""
    ignore: int | tuple[int, int, int] | None = None
    """A further mask value (or color) that is not to be learned, besides 255; `names` pass over it."""
    color_masks: bool = False
    """Palette PNGs hold their colors too, not indices (RGB pictures are recognized without this)."""
    images: str = "images"
    """Folder of the images."""
    masks: str = "masks"
    """Folder of the masks."""


class Folder(FileDataset):
    """Classes come from `classes.yaml`; without it they are the values found in all the masks.

    Then 255 is ignored, unless masks hold 0 and 255 alone: these are two classes.
    """

    name = "folder"
    layout = "the folders 'images' and 'masks' (or others named in classes.yaml)"
    recipe = Recipe(short_edge=512, max_aspect=4, crop=512, epochs=64, batch=8, lr=1e-3)

    def find(self, root: Path) -> tuple[Iterable[Named], Iterable[Named]]:
        """List both folders, learn the classes, and make the split if there is none."""
        if not root.is_dir():
            raise UserError(f"'{root}' is not a folder; it needs {self.layout}.")
        given = read_classes(root / CLASSES) if (root / CLASSES).exists() else None
        images, masks = root / (given.images if given else "images"), root / (given.masks if given else "masks")
        divided = [part for part in SPLITS if (images / part).is_dir()]
        parts = dict.fromkeys([*divided, self.split]) if divided else ("",)  # pictures to test with have only one part
        images_of = {part: named_files(images / part, self.layout) for part in parts}
        masks_of = {part: named_files(masks / part, self.layout) for part in images_of}
        if given:
            self._declare(given)
        else:
            self._discover([path for files in masks_of.values() for _, path in files])
        if divided:
            return images_of[self.split], masks_of[self.split]
        held_out = validation_names({name for name, _ in images_of[""]})
        chosen = [
            [(name, path) for name, path in files if (name in held_out) == (self.split == "val")]
            for files in (images_of[""], masks_of[""])
        ]
        return chosen[0], chosen[1]

    def identity(self) -> Iterator[object]:
        """As for any files; and how colors are read."""
        yield from super().identity()
        yield self._color_masks, sorted(self._coded.items())

    def read_labels(self, path: Path) -> np.ndarray:
        """Indices, or colors where classes.yaml gives them."""
        mask = read_mask(path, colors=self._color_masks)
        if mask.ndim == 2:
            return self.look_up(mask, self.label_of_value, path)
        if not self._coded:
            raise color_error(path, WAY_OUT)
        red, green, blue = mask.astype(np.int32).transpose(2, 0, 1)
        codes = red << 16 | green << 8 | blue
        labels = np.take(self._label_of_color, codes)
        if (strange := labels == INVALID).any():
            found = np.unique(codes[strange], return_counts=True)
            listed = ", ".join(f"#{c:06x} ({n} pixels)" for c, n in list(zip(*found, strict=True))[:5])
            raise DataError(f"the mask '{path}' holds the colors {listed}, which {CLASSES} does not name.", "labels")
        return labels

    @functools.cached_property
    def _label_of_color(self) -> np.ndarray:
        """The label of each of the 2^24 colors: 16 MB, twice as fast as a search among the few that have one."""
        table = np.full(1 << 24, INVALID, np.uint8)
        table[list(self._coded.keys())] = list(self._coded.values())
        return table

    def _declare(self, given: ClassesFile) -> None:
        self.classes = given.names
        self.palette = given.colors or palette_for(given.names)
        self._color_masks = given.color_masks
        self._coded = {_code(color): label for label, color in enumerate(given.colors or ())}
        if isinstance(given.ignore, tuple):
            self._coded[_code(given.ignore)] = IGNORE
        counted = [value for value in range(256) if value != given.ignore][: len(given.names)]
        ignore = given.ignore if isinstance(given.ignore, int) else IGNORE
        self.label_of_value = _label_of_value(list(given.values or counted), ignore)

    def _discover(self, masks: list[Path]) -> None:
        with ThreadPoolExecutor() as pool:
            found = list(tqdm(pool.map(_values, masks), "finding classes", len(masks), delay=2, unit="mask"))
        values = sorted(set[int]().union(*(item for item in found if isinstance(item, set))))
        if values != [0, IGNORE]:
            values = [value for value in values if value != IGNORE]
        if not values:
            raise next((item for item in found if isinstance(item, DataError)), UserError("no masks"))
        self.classes = tuple(map(str, values))
        self.palette = palette_for(self.classes)
        self._color_masks, self._coded = False, {}
        self.label_of_value = _label_of_value(values)


def read_classes(path: Path) -> ClassesFile:
    """Read and check a `classes.yaml`."""
    settings = read_yaml(path)
    if "names" not in settings:
        raise UserError(f"'{path}' does not say the 'names' of the classes.")
    given = from_dict(ClassesFile, settings, f"'{path}'")
    if not 1 <= len(given.names) <= INVALID or len(set(given.names)) < len(given.names):
        raise UserError(f"'{path}' must give 1 to {INVALID} class names, each once, not {len(given.names)}.")
    if given.colors is not None and len(given.colors) != len(given.names):
        raise UserError(f"'{path}' gives {len(given.names)} names but {len(given.colors)} colors.")
    if given.values is not None and len(given.values) != len(given.names):
        raise UserError(f"'{path}' gives {len(given.names)} names but {len(given.values)} values.")
    if given.values is not None and len({*given.values, given.ignore}) <= len(given.values):
        raise UserError(f"'{path}' gives one mask value to two classes, or to a class and 'ignore'.")
    every = [*(given.colors or ()), *([given.ignore] if isinstance(given.ignore, tuple) else [])]
    if len(set(every)) < len(every):
        raise UserError(f"'{path}' gives one color to two classes, or to a class and 'ignore'.")
    numbers = [*(given.values or ()), *([given.ignore] if isinstance(given.ignore, int) else [])]
    every += [(number,) * 3 for number in numbers]
    if any(not 0 <= part <= 255 for color in every for part in color):
        raise UserError(f"'{path}' holds a color or value outside 0..255.")
    if given.color_masks and not given.colors:
        raise UserError(f"'{path}' says color_masks but gives no 'colors'.")
    for folder in (given.images, given.masks):
        if Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise UserError(f"'{path}' names the folder '{folder}', which is not inside '{path.parent}'.")
    return given


def validation_names(names: set[str]) -> set[str]:
    """A fifth of the names, chosen by their hash: the same on every machine, and stable when files are added.

    Both parts have at least one name if there are two.
    """
    rank = {name: int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64 for name in names}
    if len(names) < 2:
        return set()
    ordered = sorted(names, key=lambda name: rank[name])
    count = sum(value < HELD_OUT for value in rank.values())
    return set(ordered[: min(max(count, 1), len(names) - 1)])


def _values(path: Path) -> set[int] | DataError:
    """The values in one mask; a broken one is left to be reported when it is read or checked."""
    try:
        mask = read_mask(path)
    except DataError as error:
        return error
    if mask.ndim == 3:
        return color_error(path, WAY_OUT)
    return set(np.flatnonzero(np.bincount(mask.ravel())).tolist())


def _label_of_value(values: list[int], ignore: int = IGNORE) -> tuple[int, ...]:
    """The label of every mask value: they count up along `values`."""
    labels = {IGNORE: IGNORE, ignore: IGNORE, **{value: label for label, value in enumerate(values)}}
    return tuple(labels.get(value, INVALID) for value in range(256))


def _code(color: Color) -> int:
    return color[0] << 16 | color[1] << 8 | color[2]
