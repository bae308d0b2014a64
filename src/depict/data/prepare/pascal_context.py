"""Converting Pascal Context's annotations (run-length codes in one large JSON file) to PNG masks for VOC 2010's images.

The JSON (`trainval_merged.json` of PASCAL in Detail) holds `images` (file_name, image_id, phase, height, width) and
`annos_segmentation` (image_id, category_id, segmentation as COCO's run-length code). Later annotations overwrite
earlier ones, as in the public tools. Masks hold 0 for the background and 1..59 in the order of the original ids.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from depict.errors import UserError, one_line
from depict.terminal import progress_bar

# The original ids (of 459) of the 59 classes, sorted; label k is the k-th, 0 the background.
IDS = (
    *(0, 2, 9, 18, 19, 22, 23, 25, 31, 33, 34, 44, 45, 46, 59, 65, 68, 72, 80, 85),
    *(98, 104, 105, 113, 115, 144, 158, 159, 162, 187, 189, 207, 220, 232, 258, 259, 260, 284, 295, 296),
    *(308, 324, 326, 347, 349, 354, 355, 360, 366, 368, 397, 415, 416, 420, 424, 427, 440, 445, 454, 458),
)
LABEL_OF_ID = {original: label for label, original in enumerate(IDS)}
MASKS, LISTS = "SegmentationClassContext", "ImageSets/SegmentationContext"
LARGEST_SIDE = 4096


def decode_runs(counts: str | list[int], height: int, width: int) -> NDArray[np.bool_]:
    """The mask (height, width) of a COCO run-length code: runs of 0, 1, 0, ... down the columns.

    As text, each number is little-endian in characters of 5 bits (from '0', bit 6 = more follow, the last one signed),
    and from the fourth on it is the difference to the one two before.
    """
    runs = list(counts) if isinstance(counts, list) else _decode_text(counts)
    if any(run < 0 for run in runs) or sum(runs) != height * width:
        raise ValueError(f"runs of {sum(runs)} pixels for a mask of {height * width}")
    values = np.arange(len(runs)) % 2 == 1
    return np.repeat(values, runs).reshape(width, height).T


def _decode_text(text: str) -> list[int]:
    runs: list[int] = []
    value = shift = 0
    for character in text.encode("ascii"):
        bits = character - 48
        if not 0 <= bits < 64:
            raise ValueError(f"character {chr(character)!r} in a run-length code")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = shift = 0
    if shift:
        raise ValueError("a truncated run-length code")
    return runs


def convert_annotations(annotations: Path, voc: Path) -> None:
    """Write masks and lists for `trainval_merged.json` into the folder VOC2010."""
    try:
        with annotations.open(encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        raise UserError(f"cannot read '{annotations}': {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{annotations}' is not valid JSON: {error}. Remove it and run again.") from error
    try:
        annotations_of: dict[Any, list[dict[str, Any]]] = {image["image_id"]: [] for image in data["images"]}
        for annotation in data["annos_segmentation"]:
            annotations_of.get(annotation["image_id"], []).append(annotation)
        images = [image for image in data["images"] if image["phase"] in ("train", "val")]
        masks = ((i["phase"], i["file_name"], _render_mask(i, annotations_of[i["image_id"]])) for i in images)
        _write(voc, masks, len(images))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        reason = f"key {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"'{annotations}' is not Pascal Context's annotation file: {reason}.") from error


def convert_pickles(train: Path, val: Path, voc: Path) -> None:
    """Write masks and lists for PyTorch-Encoding's {image number: PIL mask} files, whose values are already labels.

    They are pickles, which can run code when loaded; only the types of tensors and PIL images are allowed here.
    """
    import torch

    def masks() -> Iterable[tuple[str, str, NDArray[np.uint8]]]:
        for phase, loaded in stored.items():
            for number, mask in sorted(loaded.items()):
                labels = np.asarray(mask)
                if labels.ndim != 2 or labels.max(initial=0) >= len(IDS):
                    raise UserError(
                        f"the mask of image {number} in '{phase}.pth' does not hold labels 0..{len(IDS) - 1}."
                    )
                yield phase, f"{number // 10**6}_{number % 10**6:06d}.jpg", labels.astype(np.uint8)

    stored: dict[str, dict[int, Image.Image]] = {}
    for phase, path in (("train", train), ("val", val)):
        try:
            with torch.serialization.safe_globals([Image.Image]):
                stored[phase] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle can fail in any way
            text = f"cannot read '{path}' safely: {one_line(error)}. Leave out --trust-pickle to use the JSON."
            raise UserError(text) from error
        if not isinstance(stored[phase], dict) or not all(
            isinstance(number, int) and isinstance(mask, Image.Image) for number, mask in stored[phase].items()
        ):
            raise UserError(f"'{path}' does not hold masks by image number. Leave out --trust-pickle to use the JSON.")
    _write(voc, masks(), sum(map(len, stored.values())))


def _render_mask(image: dict[str, Any], annotations: list[dict[str, Any]]) -> NDArray[np.uint8]:
    """The labels (H, W) of one image."""
    height, width = image["height"], image["width"]
    if not (0 < height <= LARGEST_SIDE and 0 < width <= LARGEST_SIDE):
        raise ValueError(f"'{image['file_name']}' has size {width}x{height}")
    labels = np.zeros((height, width), np.uint8)
    for annotation in annotations:
        if annotation["category_id"] not in LABEL_OF_ID:
            raise ValueError(f"'{image['file_name']}' has the unknown category {annotation['category_id']}")
        try:
            mask = decode_runs(annotation["segmentation"]["counts"], height, width)
        except ValueError as error:
            raise ValueError(f"'{image['file_name']}' has {error}") from error
        labels[mask] = LABEL_OF_ID[annotation["category_id"]]
    return labels


def _write(voc: Path, masks: Iterable[tuple[str, str, NDArray[np.uint8]]], count: int) -> None:
    """Write (phase, image file, labels) as PNG files and lists of names, in a temporary folder that is then renamed."""
    lists: dict[str, list[str]] = {"train": [], "val": []}
    work = voc / ".context-masks"
    shutil.rmtree(work, ignore_errors=True)
    try:
        (work / MASKS).mkdir(parents=True)
        for phase, file_name, labels in progress_bar(masks, total=count, desc="writing masks", unit="mask"):
            stem = Path(file_name).stem
            if file_name != f"{stem}.jpg" or not stem.replace("_", "").isalnum():
                raise UserError(f"refused: the annotations name a file {file_name[:80]!r}, which is not a VOC image.")
            Image.fromarray(labels).save(work / MASKS / f"{stem}.png")
            lists[phase].append(stem)
        (work / LISTS).mkdir(parents=True)
        for phase, stems in lists.items():
            (work / LISTS / f"{phase}.txt").write_text("".join(f"{stem}\n" for stem in sorted(stems)))
        for folder in (MASKS, LISTS):  # the lists last: if they exist, the masks are complete
            target = voc / folder
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            (work / folder).rename(target)
    except OSError as error:
        raise UserError(f"cannot write masks below '{voc}': {error.strerror or error}.") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
