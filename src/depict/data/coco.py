"""`coco`: images with annotations in COCO's format, as labeling tools export them (RLE or polygons).

```
DIR/annotations/instances_train2017.json   DIR/train2017/*.jpg     as published, or
DIR/train/_annotations.coco.json           DIR/train/*.jpg         each part in a folder, or
DIR/result.json                            DIR/images/*.jpg        one file: a fifth is held out for validation
```

Classes are the categories, in the order of their ids. Pixels without an annotation are the class `background`; where
regions overlap, the smaller one is on top.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from depict.data.dataset import Dataset, Recipe
from depict.data.folder import held_out_names
from depict.data.pairs import INVALID, DataError, read_image
from depict.data.palette import palette_for
from depict.errors import UserError
from depict.io.coco import Annotation, paint_annotations, read_coco

if TYPE_CHECKING:
    import torch

BACKGROUND = "background"
PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Words in the name of a file or its folder, and the part that they mean."""
LAYOUT = "a JSON file with annotations in it, in 'annotations', or in a folder for each part"


class Sample(NamedTuple):
    """An image and its annotations."""

    name: str
    path: Path
    size: tuple[Any, Any]
    """Height and width that the annotations state; None if they do not."""
    annotations: list[Annotation]


class Coco(Dataset):
    """One part of an annotated set of images."""

    name = "coco"
    splits = ("train", "val", "trainval", "test")
    recipe = Recipe(short_edge=512, max_aspect=4, crop=512, epochs=64, batch=8, lr=1e-3)

    def __init__(self, root: Path | None, split: str) -> None:
        super().__init__(root, split)
        if root is None:
            raise UserError(f"coco needs --root DIR, a folder with {LAYOUT}.")
        files = annotation_files(root)
        self._samples: list[Sample] = []
        parts = ("train", "val") if split == "trainval" else (split,)
        known: tuple[Path, dict[str, Any]] | None = None
        for part in parts:
            path = files.get(part, files.get(""))
            if path is None:
                raise UserError(f"no {part} annotations in '{root}': it needs {LAYOUT}.")
            content = known[1] if known and known[0] == path else read_coco(path)
            known = (path, content)
            self._take_classes(path, content)
            self._samples += self._read_samples(root, path, content, part, whole=part in files)
        if not self._samples:
            raise UserError(f"no {split} images in the annotations of '{root}'.")
        self._files = sorted({path for part in parts if (path := files.get(part, files.get("")))})

    def __len__(self) -> int:
        return len(self._samples)

    def name_of(self, index: int) -> str:
        """The path of the image in its folder, without the suffix."""
        return self._samples[index].name.replace("/", "_")

    def file_name(self, index: int) -> str:
        """The name of the image file without its suffix."""
        return self._samples[index].path.stem

    def files(self, index: int) -> list[Path]:
        """The annotations and the image."""
        return [*self._files, self._samples[index].path]

    def identity(self) -> Iterator[object]:
        """The classes, and name, size and time of every file."""
        yield self.classes
        for path in (*self._files, *(sample.path for sample in self._samples)):
            try:
                status = path.stat()
            except OSError as error:
                raise DataError(f"cannot read '{path}': {error.strerror}.") from error
            yield path.name, status.st_size, status.st_mtime_ns

    def read(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Image uint8 (3, H, W) and labels uint8 (H, W)."""
        import torch

        _, path, stated, annotations = self._samples[index]
        image = read_image(path)
        height, width = image.shape[1:]
        if stated not in ((None, None), (height, width)):
            text = f"'{path}' is {width}x{height}, but {stated[1]}x{stated[0]} in the annotations."
            raise DataError(text, "size")
        try:
            labels = paint_annotations(annotations, self._labels, height, width, self.classes.index(BACKGROUND))
        except UserError as error:
            raise DataError(f"'{path}': {error}", "labels") from error
        return image, torch.from_numpy(labels)

    def _take_classes(self, path: Path, content: dict[str, Any]) -> None:
        try:
            named = sorted((entry["id"], str(entry["name"])) for entry in content["categories"])
        except (KeyError, TypeError) as error:
            raise UserError(f"a category in '{path}' has no 'id' or no 'name'.") from error
        names = [name for _, name in named]
        if len(set(names)) < len(names) or len({identifier for identifier, _ in named}) < len(names):
            raise UserError(f"two categories in '{path}' have the same name or id.")
        classes = tuple(names if BACKGROUND in names else [BACKGROUND, *names])
        if not names or len(classes) > INVALID:
            raise UserError(f"'{path}' has {len(names)} categories; 1 to {INVALID - 1} are supported.")
        if getattr(self, "classes", classes) != classes:
            raise UserError(f"'{path}' has other categories than the training annotations.")
        self.classes, self.palette = classes, palette_for(classes)
        self._labels = {identifier: classes.index(name) for identifier, name in named}

    def _read_samples(self, root: Path, path: Path, content: dict[str, Any], part: str, whole: bool) -> list[Sample]:
        """The samples of a file; if it is for all parts, only those that belong to `part`."""
        try:
            images = {entry["id"]: str(entry["file_name"]) for entry in content["images"]}
            sizes = {entry["id"]: (entry.get("height"), entry.get("width")) for entry in content["images"]}
        except (KeyError, TypeError) as error:
            raise UserError(f"an image in '{path}' has no 'id' or no 'file_name'.") from error
        for name in images.values():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise UserError(f"'{path}' names the image '{name}', which is not inside '{root}'.")
        if len(set(images.values())) < len(images):
            raise UserError(f"'{path}' lists an image twice.")
        regions: dict[Any, list[Annotation]] = {identifier: [] for identifier in images}
        for annotation in content["annotations"]:
            image, category = annotation.get("image_id"), annotation.get("category_id")
            hashable = isinstance(image, int | str) and isinstance(category, int | str)
            if not (hashable and image in regions and category in self._labels):
                raise UserError(
                    f"annotation {annotation.get('id')} in '{path}' is of image {image} and category {category}, "
                    "which the file does not list."
                )
            regions[image].append(annotation)
        held_out = held_out_names({*images.values()})
        kept = {key: name for key, name in images.items() if whole or (name in held_out) == (part == "val")}
        folder = image_folder(root, path, part, next(iter(kept.values()), ""))
        prefix = f"{part}_" if self.split == "trainval" else ""  # both parts may have a file of the same name
        samples = [
            Sample(prefix + str(PurePosixPath(name).with_suffix("")), folder / name, sizes[key], regions[key])
            for key, name in kept.items()
        ]
        return sorted(samples, key=lambda sample: sample.name)


def annotation_files(root: Path) -> dict[str, Path]:
    """The annotation file of each part; under "" one file for all parts."""
    if not root.is_dir():
        raise UserError(f"'{root}' is not a folder; it needs {LAYOUT}.")
    folders = [root, root / "annotations", *(root / word for word in PARTS)]
    found: dict[str, list[Path]] = {}
    for path in sorted(path for folder in folders for path in folder.glob("*.json")):
        words = re.findall("[a-z]+", path.relative_to(root).as_posix().lower())
        part = next((PARTS[word] for word in words if word in PARTS), "")
        found.setdefault(part, []).append(path)
    chosen = {}
    for part, paths in found.items():
        instances = [path for path in paths if path.name.startswith("instances")]
        if len(candidates := instances or paths) > 1:
            names = ", ".join(f"'{path.relative_to(root)}'" for path in candidates[:3])
            raise UserError(f"'{root}' has several annotation files for the same images, such as {names}: keep one.")
        chosen[part] = candidates[0]
    if not chosen:
        raise UserError(f"no annotations in '{root}': it needs {LAYOUT}.")
    return chosen


def image_folder(root: Path, path: Path, part: str, example: str) -> Path:
    """The folder that the names of the images refer to: the first of the usual ones in which `example` is."""
    named = path.stem.rpartition("_")[2]  # train2017 of instances_train2017
    folders = [path.parent, root, root / "images", *(root / name for name in (part, named))]
    folders += [root / "images" / name for name in (part, named)]
    for folder in folders:
        if (folder / example).is_file():
            return folder
    tried = ", ".join(dict.fromkeys(str(folder) for folder in folders))
    raise UserError(f"the image '{example}' of '{path}' is in none of the folders {tried}.")
