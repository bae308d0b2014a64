"""Data sets of files: each image has a mask of the same name. Nothing about the files is trusted.

Images are decoded by `io/images.py` and rotated by their EXIF tag, as viewers and labeling tools show them; a mask must
have the size of the rotated image.
"""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from depict.data.dataset import IGNORE, Dataset
from depict.errors import UserError
from depict.io.images import file_to_rgb, open_image, orientation

if TYPE_CHECKING:
    import torch

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".pgm", ".ppm"}
INVALID = 254
"""Marks mask values without a class in lookup tables; therefore at most 254 classes are supported."""

NamedPath = tuple[str, Path]
"""A file and the name under which image and mask are paired."""
Found = tuple[Iterable[NamedPath], Iterable[NamedPath] | None]
"""Images and masks of a part; masks are None where there is no ground truth."""


class DataError(UserError):
    """A problem with one file. `kind`: missing, extra, duplicate, unreadable, format, size or labels."""

    def __init__(self, message: str, kind: str = "unreadable") -> None:
        super().__init__(message)
        self.kind = kind


class FileDataset(Dataset):
    """Pairs of files. A subclass says where they are (`find`) and what mask values mean (`label_of_value`)."""

    layout: str
    """What the root folder must contain, for error messages."""
    label_of_value: tuple[int, ...]
    """The label of mask value 0, 1, 2, ...; other values are errors, except 255, which is ignored."""

    def __init__(self, root: Path | None, split: str) -> None:
        super().__init__(root, split)
        if root is None:
            raise UserError(f"{self.name} needs --root DIR, a folder with {self.layout}.")
        images, masks = self._find_split(root)
        if len(self.classes) > INVALID:
            raise UserError(f"{self.name} has {len(self.classes)} classes; at most {INVALID} are supported.")
        self.problems: list[DataError] = []
        """Missing, extra and duplicate files; `extra` ones do not prevent training."""
        self.labeled = masks is not None
        self._images, self._masks = self._without_duplicates(images), self._without_duplicates(masks or ())
        if not self._images:
            raise UserError(f"no {split} images of {self.name} in '{root}': it needs {self.layout}.")
        self._names = sorted(self._images)
        if self.labeled:
            self.problems += [self._missing(name) for name in self._names if name not in self._masks]
        for name in sorted(self._masks.keys() - self._images.keys()):
            self.problems.append(DataError(f"no image for the mask '{self._masks[name]}'.", "extra"))

    def find(self, root: Path, part: str) -> Found:
        """The images and masks of `train`, `val` or `test`, each under the name that pairs them."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._names)

    def name_of(self, index: int) -> str:
        """The name that image and mask share."""
        return self._names[index]

    def file_name(self, index: int) -> str:
        """The name of the image file without its suffix."""
        return self._images[self._names[index]].stem

    def paths(self, index: int) -> tuple[Path, Path | None]:
        """Image and mask of a sample; the mask is None in a split without ground truth."""
        name = self._names[index]
        if self.labeled and name not in self._masks:
            raise self._missing(name)
        return self._images[name], self._masks.get(name)

    def files(self, index: int) -> list[Path]:
        """Image and mask of a sample."""
        return [path for path in self.paths(index) if path is not None]

    def label_rules(self) -> list[object]:
        """How mask values become labels, as plain values."""
        return [self.label_of_value]

    def identity(self) -> Iterator[object]:
        """The meaning of mask values, and name, size and time of every file."""
        yield self.label_rules()
        for index, name in enumerate(self._names):
            for path in self.files(index):
                try:
                    status = path.stat()
                except OSError as error:
                    raise DataError(f"cannot read '{path}': {error.strerror}.") from error
                yield name, path.name, status.st_size, status.st_mtime_ns

    def read(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Image uint8 (3, H, W) and labels uint8 (H, W), 255 = ignored; all are 255 without ground truth."""
        import torch

        image_path, mask_path = self.paths(index)
        image = read_image(image_path)
        if mask_path is None:
            return image, torch.full(image.shape[1:], IGNORE, dtype=torch.uint8)
        labels = self.read_labels(mask_path)
        if image.shape[1:] != labels.shape:
            raise size_error(image_path, image.shape[:0:-1], mask_path, labels.shape[::-1])
        return image, torch.from_numpy(labels)

    def read_labels(self, path: Path) -> np.ndarray:
        """A mask file as labels uint8 (H, W)."""
        return self.values_to_labels(read_mask(path), self.label_of_value, path)

    def values_to_labels(self, mask: np.ndarray, label_of_value: tuple[int, ...], path: Path) -> np.ndarray:
        """Mask values uint8 (H, W) as labels uint8 (H, W); `path` is for error messages."""
        if mask.ndim == 3:
            raise color_error(path)
        table = np.full(256, INVALID, np.uint8)
        table[IGNORE] = IGNORE
        table[: len(label_of_value)] = label_of_value
        labels = np.take(table, mask)
        if (labels == INVALID).any():
            known = [value for value, label in enumerate(label_of_value) if label < INVALID]
            is_range = known == list(range(known[0], known[-1] + 1))
            allowed = f"{known[0]} to {known[-1]}" if is_range else ", ".join(map(str, known))
            ignored = f", and {IGNORE} for ignored pixels" if table[IGNORE] == IGNORE else ""
            raise DataError(
                f"the mask '{path}' holds {count_values(mask[labels == INVALID])}; {self.name} has "
                f"{len(self.classes)} classes, in mask values {allowed}{ignored}.",
                "labels",
            )
        return labels

    def _find_split(self, root: Path) -> Found:
        if self.split != "trainval":
            return self.find(root, self.split)
        images: list[NamedPath] = []
        masks: list[NamedPath] = []
        for part in ("train", "val"):
            for files, found in zip((images, masks), self.find(root, part), strict=True):
                # Both parts may have a file of the same name.
                files += [(f"{part}_{name}", path) for name, path in found or ()]
        return images, masks

    def _missing(self, name: str) -> DataError:
        path = self._images[name]
        return DataError(f"no mask for '{path}': add one of the same name, or remove the image.", "missing")

    def _without_duplicates(self, files: Iterable[NamedPath]) -> dict[str, Path]:
        chosen: dict[str, Path] = {}
        for name, path in files:
            if name in chosen:
                text = f"'{chosen[name]}' and '{path}' have the same name: keep one of them."
                self.problems.append(DataError(text, "duplicate"))
            else:
                chosen[name] = path
        return chosen


def named_files(folder: Path, layout: str, ending: str = "") -> list[NamedPath]:
    """The picture files directly in a folder, sorted, under their names without `ending` and suffix.

    No file is opened: a broken link is listed here and reported when it is read. Names are compared in Unicode's
    composed form, because some systems store the decomposed one.
    """
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"cannot list '{folder}': {error.strerror}. It needs {layout}.") from error
    names = []
    for path in paths:
        stem = unicodedata.normalize("NFC", path.stem)
        if path.suffix.lower() in SUFFIXES and not stem.startswith(".") and stem.endswith(ending):
            names.append((stem.removesuffix(ending), path))
    return names


def subfolder_or_root(root: Path, name: str) -> Path:
    """The folder `name` in `root`, or `root` itself if the user gave that folder as the root."""
    return root / name if (root / name).is_dir() else root


def read_image(path: Path) -> torch.Tensor:
    """An image file as uint8 (3, H, W) RGB, upright."""
    import torch

    with opened(path) as image:
        return torch.from_numpy(np.require(file_to_rgb(path, image), requirements="W")).permute(2, 0, 1)


def read_mask(path: Path, colors: bool = False) -> np.ndarray:
    """A mask file: indices uint8 (H, W), or colors uint8 (H, W, 3) for RGB (with `colors` also palette) files."""
    with opened(path) as image:
        check_mask_format(path, image)
        if image.mode in ("1", "L", "P") and not (colors and image.mode == "P"):
            return np.array(image, np.uint8)
        return np.array(image.convert("RGB"))


def count_values(values: np.ndarray, template: str = "{}") -> str:
    """The first five different values and how often each occurs: "77 (60 pixels), 99 (3 pixels)"."""
    counted = list(zip(*np.unique(values, return_counts=True), strict=True))[:5]
    return ", ".join(f"{template.format(value)} ({count} pixels)" for value, count in counted)


def color_error(path: Path, alternative: str = "") -> DataError:
    """The mask has colors where class indices were expected."""
    text = f"the mask '{path}' is a color (RGB) picture where class indices were expected: save it as an 8-bit PNG"
    return DataError(f"{text} of class indices{alternative}.", "format")


def check_mask_format(path: Path, image: Image.Image) -> None:
    """Refuse a mask whose header shows that it cannot hold labels."""
    if image.format in ("JPEG", "MPO"):
        text = f"the mask '{path}' is a JPEG, which blurs labels: save masks as PNG."
    elif image.mode[0] in "IF":
        text = f"the mask '{path}' has 16 or more bits per pixel: save it as an 8-bit PNG of class indices."
    else:
        return
    raise DataError(text, "format")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """`io.images.open_image` whose errors are `DataError`s."""
    try:
        with open_image(path) as image:
            yield image
    except DataError:
        raise
    except UserError as error:
        raise DataError(str(error)) from error


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height after rotation by the EXIF tag, from the header alone."""
    return (image.height, image.width) if orientation(image) >= 5 else image.size


def size_error(image: Path, image_size: Iterable[int], mask: Path, mask_size: Iterable[int]) -> DataError:
    """The mask does not have the size of its image; sizes are (width, height)."""
    mask_text, image_text = "x".join(map(str, mask_size)), "x".join(map(str, image_size))
    text = f"the mask '{mask}' is {mask_text} but its image '{image}' is {image_text}"
    with opened(image) as header:
        if upright_size(header) != header.size:
            text += " (rotated by its EXIF tag)"
    return DataError(f"{text}.", "size")
