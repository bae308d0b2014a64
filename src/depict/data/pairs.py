"""Data sets made of files: an image and a mask of the same name, read, decoded and never trusted.

Decoding is that of `images.py`. Images are turned as their EXIF tag says, as every viewer and labeling tool shows
them, so that a mask has to fit the turned image.
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
from depict.io.images import file_to_rgb, orientation
from depict.io.images import opened as open_picture

if TYPE_CHECKING:
    import torch

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".pgm", ".ppm"}
INVALID = 254
"""Stands in lookup tables for a mask value that means nothing; so 254 classes are the most."""

Named = tuple[str, Path]


class DataError(UserError):
    """A fault of one file. `kind`: missing, extra, duplicate, unreadable, format, size or labels."""

    def __init__(self, message: str, kind: str = "unreadable") -> None:
        super().__init__(message)
        self.kind = kind


class FileDataset(Dataset):
    """Pairs of files. A subclass says where they lie (`find`) and what the mask values mean (`meaning`)."""

    layout: str
    """What must lie under the root, for error messages."""
    label_of_value: tuple[int, ...]
    """The label that mask value 0, 1, 2, ... stands for. Further values are errors, but for 255, which is ignored."""

    def __init__(self, root: Path | None, split: str) -> None:
        super().__init__(root, split)
        if root is None:
            raise UserError(f"{self.name} needs the folder it lies in: --root DIR with {self.layout}.")
        images, masks = self.find(root)
        if len(self.classes) > INVALID:
            raise UserError(f"{self.name} has {len(self.classes)} classes; at most {INVALID} are supported.")
        self.problems: list[DataError] = []
        """Files that are missing, left over or there twice; `extra` alone does not hinder training."""
        self._images, self._masks = self._unique(images), self._unique(masks)
        if not self._images:
            raise UserError(f"no {split} images of {self.name} in '{root}': it needs {self.layout}.")
        self._names = sorted(self._images)
        for name in self._names:
            if name not in self._masks:
                self.problems.append(self._missing(name))
        for name in sorted(self._masks.keys() - self._images.keys()):
            self.problems.append(DataError(f"no image for the mask '{self._masks[name]}'.", "extra"))

    def find(self, root: Path) -> tuple[Iterable[Named], Iterable[Named]]:
        """The images and the masks of the split, each under the name that pairs them."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._names)

    def name_of(self, index: int) -> str:
        """What image and mask are both called."""
        return self._names[index]

    def paths(self, index: int) -> tuple[Path, Path]:
        """Image and mask of a sample."""
        name = self._names[index]
        if name not in self._masks:
            raise self._missing(name)
        return self._images[name], self._masks[name]

    def identity(self) -> Iterator[object]:
        """What mask values mean; names, sizes and times of all files, so that other files are another data set."""
        yield self.label_of_value
        for index, name in enumerate(self._names):
            for path in self.paths(index):
                try:
                    status = path.stat()
                except OSError as error:
                    raise DataError(f"cannot read '{path}': {error.strerror}.") from error
                yield name, path.name, status.st_size, status.st_mtime_ns

    def read(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Image uint8 (3, H, W) and labels uint8 (H, W), 255 = ignored."""
        import torch

        image_path, mask_path = self.paths(index)
        image, labels = read_image(image_path), self.read_labels(mask_path)
        if image.shape[1:] != labels.shape:
            raise size_error(image_path, image.shape[:0:-1], mask_path, labels.shape[::-1])
        return image, torch.from_numpy(labels)

    def read_labels(self, path: Path) -> np.ndarray:
        """A mask file as labels uint8 (H, W)."""
        return self.look_up(read_mask(path), self.label_of_value, path)

    def look_up(self, mask: np.ndarray, label_of_value: tuple[int, ...], path: Path) -> np.ndarray:
        """Mask values uint8 (H, W) to labels uint8 (H, W); `path` is for errors."""
        if mask.ndim == 3:
            raise color_error(path)
        table = np.full(256, INVALID, np.uint8)
        table[IGNORE] = IGNORE
        table[: len(label_of_value)] = label_of_value
        labels = np.take(table, mask)
        if (labels == INVALID).any():
            found = np.unique(mask[labels == INVALID], return_counts=True)
            listed = ", ".join(f"{value} ({count} pixels)" for value, count in list(zip(*found, strict=True))[:5])
            known = [value for value, label in enumerate(label_of_value) if label < INVALID]
            whole = known == list(range(known[0], known[-1] + 1))
            where = f"{known[0]} to {known[-1]}" if whole else ", ".join(map(str, known))
            void = f", and {IGNORE} for ignored pixels" if table[IGNORE] == IGNORE else ""
            raise DataError(
                f"the mask '{path}' holds {listed}; {self.name} has {len(self.classes)} classes, "
                f"in mask values {where}{void}.",
                "labels",
            )
        return labels

    def _missing(self, name: str) -> DataError:
        path = self._images[name]
        return DataError(f"no mask for '{path}': add one of the same name, or remove the image.", "missing")

    def _unique(self, files: Iterable[Named]) -> dict[str, Path]:
        chosen: dict[str, Path] = {}
        for name, path in files:
            if name in chosen:
                text = f"'{chosen[name]}' and '{path}' have the same name: keep one of them."
                self.problems.append(DataError(text, "duplicate"))
            else:
                chosen[name] = path
        return chosen


def named_files(folder: Path, layout: str, ending: str = "") -> list[Named]:
    """The picture files in a folder (not below it), sorted, under their names without `ending` and suffix.

    Nothing is opened: a dangling or circular link is listed here and named when it is read. Names are compared
    in Unicode's composed form, because some systems store the decomposed one.
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


def inner(root: Path, name: str) -> Path:
    """The folder `name` in `root`, or `root` itself when that is the one."""
    return root / name if (root / name).is_dir() else root


def read_image(path: Path) -> torch.Tensor:
    """An image file as uint8 (3, H, W) RGB, upright."""
    import torch

    with opened(path) as image:
        return torch.from_numpy(np.require(file_to_rgb(path, image), requirements="W")).permute(2, 0, 1)


def read_mask(path: Path, colors: bool = False) -> np.ndarray:
    """A mask file: indices uint8 (H, W), or colors uint8 (H, W, 3) of RGB (with `colors` also palette) files."""
    with opened(path) as image:
        check_mask(path, image)
        if image.mode in ("1", "L", "P") and not (colors and image.mode == "P"):
            return np.array(image, np.uint8)
        return np.array(image.convert("RGB"))


def color_error(path: Path, way_out: str = "") -> DataError:
    """Colors where indices were expected."""
    text = f"the mask '{path}' is a color (RGB) picture where class indices were expected: save it as an 8-bit PNG"
    return DataError(f"{text} of class indices{way_out}.", "format")


def check_mask(path: Path, image: Image.Image) -> None:
    """Refuse what can be told from a mask's header to hold no labels."""
    if image.format in ("JPEG", "MPO"):
        text = f"the mask '{path}' is a JPEG, which blurs labels: save masks as PNG."
    elif image.mode[0] in "IF":
        text = f"the mask '{path}' has 16 or more bits per pixel: save it as an 8-bit PNG of class indices."
    else:
        return
    raise DataError(text, "format")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """As `images.opened`; what it has against a file is a fault of the data."""
    try:
        with open_picture(path) as image:
            yield image
    except DataError:
        raise
    except UserError as error:
        raise DataError(str(error)) from error


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height after turning by the EXIF tag, from the header alone."""
    return (image.height, image.width) if orientation(image) >= 5 else image.size


def size_error(image: Path, image_size: Iterable[int], mask: Path, mask_size: Iterable[int]) -> DataError:
    """The mask does not fit its image; sizes are (width, height)."""
    mask_text, image_text = "x".join(map(str, mask_size)), "x".join(map(str, image_size))
    text = f"the mask '{mask}' is {mask_text} but its image '{image}' is {image_text}"
    with opened(image) as header:
        if upright_size(header) != header.size:
            text += " (turned as its EXIF tag says)"
    return DataError(f"{text}.", "size")
