"""Data sets by name. Free of torch: a class is imported when it is asked for, torch when an image is read."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from depict.errors import unknown

if TYPE_CHECKING:
    from depict.data.dataset import Dataset

DATASETS = {
    "scenes": "depict.data.scenes.dataset:Scenes",
    "folder": "depict.data.folder:Folder",
    "ade20k": "depict.data.ade20k:ADE20K",
    "cityscapes": "depict.data.cityscapes:Cityscapes",
    "pascal_context": "depict.data.pascal_context:PascalContext",
    "pascal_context_59": "depict.data.pascal_context:PascalContext59",
    "camvid": "depict.data.camvid:CamVid",
}
SPLITS = ("train", "val")


def dataset_class(name: str) -> type[Dataset]:
    """The class of a data set, whose `recipe` (and mostly `classes`) can be asked without any files."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    module, attribute = DATASETS[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def create_dataset(name: str, root: str | Path | None = None, split: str = "train") -> Dataset:
    """Open one split (`train` or `val`) of the data set `name` that lies at `root`."""
    kind = dataset_class(name)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    return kind(None if root is None else Path(root), split)
