"""Annotations in COCO's format: masks as run lengths (RLE) or polygons, by pycocotools (the extra `coco`).

A file has `images`, `categories` and `annotations`; each annotation is a region of one category in one image.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from depict.errors import UserError, one_line
from depict.io.polygons import label_polygons

Annotation = dict[str, Any]


def need_pycocotools(what: str) -> None:
    """Raise if pycocotools is missing."""
    try:
        import pycocotools  # noqa: F401
    except ImportError as error:
        raise UserError(f"{what} needs pycocotools: pip install pycocotools.") from error


def read_coco(path: Path) -> dict[str, Any]:
    """Read an annotation file and check that it has COCO's lists; their entries are checked when they are used."""
    need_pycocotools(f"reading '{path}'")
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{path}' is not a JSON file: {one_line(error)}.") from error
    for key in ("images", "categories", "annotations"):
        entries = content.get(key) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise UserError(f"'{path}' is not in COCO's format: it has no list '{key}'.")
    return content


def paint_annotations(
    annotations: Sequence[Annotation], labels: Mapping[Any, int], height: int, width: int, empty: int
) -> np.ndarray:
    """The label uint8 (H, W) of each pixel: that of the smallest region on it, or `empty`.

    `labels` gives the label of each category id.
    """
    from pycocotools import mask

    regions = [(encoded(annotation, height, width), labels[annotation["category_id"]]) for annotation in annotations]
    painted = np.full((height, width), empty, np.uint8)
    for rle, label in sorted(regions, key=lambda region: -int(mask.area(region[0]))):
        try:
            painted[mask.decode(rle).astype(bool)] = label
        except ValueError as error:
            raise UserError(f"an annotation has an invalid 'segmentation': {one_line(error)}.") from error
    return painted


def encoded(annotation: Annotation, height: int, width: int) -> dict[str, Any]:
    """The region of an annotation as a compressed RLE, whatever it is stored as."""
    from pycocotools import mask

    segmentation = annotation.get("segmentation")
    if not segmentation:
        raise UserError("an annotation has no 'segmentation': masks are needed, not boxes.")
    try:
        if isinstance(segmentation, list):  # polygons, whose union is the region
            return mask.merge(mask.frPyObjects(segmentation, height, width))
        if list(segmentation["size"]) != [height, width]:
            raise UserError(f"an annotation is for {segmentation['size']} pixels, its image has {[height, width]}.")
        if isinstance(segmentation["counts"], list):
            return mask.frPyObjects(segmentation, height, width)
        return {"size": [height, width], "counts": segmentation["counts"]}
    except UserError:
        raise
    except Exception as error:  # pycocotools raises plain Exceptions
        raise UserError(f"an annotation has an invalid 'segmentation': {one_line(error)}.") from error


def annotate(
    labels: np.ndarray, names: Sequence[str], chosen: Sequence[int], polygons: bool = False
) -> Iterator[Annotation]:
    """The classes `chosen` in labels (H, W) as annotations, with their index plus 1 as category; ids are left out.

    As RLE there is one annotation per class. As polygons there is one per connected region; COCO's polygons have no
    holes, so regions with holes stay RLE.
    """
    need_pycocotools("writing annotations")
    if polygons:
        yield from _regions(labels, names, chosen)
        return
    for index in chosen:
        if (region := labels == index).any():
            yield _annotation(region, index)


def categories(names: Sequence[str], chosen: Sequence[int]) -> list[dict[str, Any]]:
    """The list of categories that `annotate` refers to."""
    return [{"id": index + 1, "name": names[index]} for index in chosen]


def _regions(labels: np.ndarray, names: Sequence[str], chosen: Sequence[int]) -> Iterator[Annotation]:
    for feature in label_polygons(labels, names, chosen):
        from rasterio.features import rasterize

        geometry, facts = feature["geometry"], feature["properties"]
        [ring, *holes] = geometry["coordinates"]
        if holes:
            region = rasterize([geometry], labels.shape, dtype=np.uint8)
            yield _annotation(region, facts["label"])
            continue
        x, y = np.array(ring).T
        box = [float(value) for value in (x.min(), y.min(), np.ptp(x), np.ptp(y))]
        points = [float(value) for point in ring[:-1] for value in point]
        yield _entry(facts["label"], [points], facts["pixels"], box)


def _annotation(region: np.ndarray, index: int) -> Annotation:
    from pycocotools import mask

    rle = mask.encode(np.asfortranarray(region, np.uint8))
    area, box = int(mask.area(rle)), [float(value) for value in mask.toBbox(rle)]
    return _entry(index, rle | {"counts": rle["counts"].decode("ascii")}, area, box)


def _entry(index: int, segmentation: Any, area: int, box: list[float]) -> Annotation:
    return {"category_id": index + 1, "segmentation": segmentation, "area": area, "bbox": box, "iscrowd": 0}
