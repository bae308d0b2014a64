"""Data sets by name.

To add one, write a module like `camvid.py` (`dataset.py` says what it needs) and enter it in `DATASETS`. Importing this
package does not import torch: a data set's module is imported when it is opened, torch when an image is read.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from depict.errors import UserError, unknown

if TYPE_CHECKING:
    from depict.data.dataset import Dataset

DATASETS = {
    "scenes": "depict.data.scenes.dataset:Scenes",
    "folder": "depict.data.folder:Folder",
    "coco": "depict.data.coco:Coco",
    "ade20k": "depict.data.ade20k:ADE20K",
    "cityscapes": "depict.data.cityscapes:Cityscapes",
    "pascal_context": "depict.data.pascal_context:PascalContext",
    "pascal_context_59": "depict.data.pascal_context:PascalContext59",
    "camvid": "depict.data.camvid:CamVid",
}
"""Name on the command line -> module:class."""
SPLITS = ("train", "val", "trainval", "test")


def dataset_class(name: str) -> type[Dataset]:
    """The class of a data set; its `recipe` (and mostly its `classes`) are known without any files."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    module, attribute = DATASETS[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def create_dataset(name: str, root: str | Path | None = None, split: str = "train") -> Dataset:
    """Open one split (of `SPLITS`) of the data set `name` in the folder `root`."""
    cls = dataset_class(name)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if split not in cls.splits:
        raise UserError(f"{name} has no {split} split, only {', '.join(cls.splits)}.")
    return cls(None if root is None else Path(root), split)
