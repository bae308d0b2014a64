"""Pascal Context: VOC 2010 photographs with every pixel labeled, 59 classes and background."""

from __future__ import annotations

from pathlib import Path

from depict.data.dataset import IGNORE, Recipe
from depict.data.pairs import FileDataset, Found, named_files, subfolder_or_root
from depict.data.palette import voc_palette
from depict.errors import UserError

LISTS = "ImageSets/SegmentationContext"


class PascalContext(FileDataset):
    """60 classes, including background, in the colors of VOC. There is no test split.

    Classes are in the order of the original 459 ids, which is alphabetical by the names used there ("table", "cloth"
    and "bedclothes", not VOC's "diningtable").
    """

    name = "pascal_context"
    layout = f"VOCdevkit/VOC2010 with JPEGImages, SegmentationClassContext and {LISTS} (`depict prepare` makes them)"
    classes: tuple[str, ...] = (
        *("background", "aeroplane", "bag", "bed", "bedclothes", "bench", "bicycle", "bird", "boat", "book"),
        *("bottle", "building", "bus", "cabinet", "car", "cat", "ceiling", "chair", "cloth", "computer"),
        *("cow", "cup", "curtain", "dog", "door", "fence", "floor", "flower", "food", "grass"),
        *("ground", "horse", "keyboard", "light", "motorbike", "mountain", "mouse", "person", "plate"),
        *("platform", "pottedplant", "road", "rock", "sheep", "shelves", "sidewalk", "sign", "sky", "snow"),
        *("sofa", "table", "track", "train", "tree", "truck", "tvmonitor", "wall", "water", "window", "wood"),
    )
    palette = voc_palette(60)
    label_of_value: tuple[int, ...] = tuple(range(60))
    recipe = Recipe(short_edge=520, max_aspect=8, crop=480, epochs=256, batch=16, lr=1e-3, stride=320)
    sequential = False

    def find(self, root: Path, part: str) -> Found:
        """A text file lists the images of each part."""
        folder = subfolder_or_root(subfolder_or_root(root, "VOCdevkit"), "VOC2010")
        names = self._names_in(folder / LISTS / f"{part}.txt")
        masks = dict(named_files(folder / "SegmentationClassContext", self.layout))
        images = [(name, folder / "JPEGImages" / f"{name}.jpg") for name in names]
        return images, [(name, masks[name]) for name in dict.fromkeys(names) if name in masks]

    def _names_in(self, path: Path) -> list[str]:
        try:
            names = path.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read '{path}': {error}. It needs {self.layout}.") from error
        for name in names:
            if Path(name).name != name:
                raise UserError(f"'{path}' lists '{name[:80]}', which is not the plain name of an image.")
        return names


class PascalContext59(PascalContext):
    """The 59 classes without background, which is ignored."""

    name = "pascal_context_59"
    classes = PascalContext.classes[1:]
    palette = PascalContext.palette[1:]
    label_of_value = (IGNORE, *range(59))
