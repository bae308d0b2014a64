"""Label maps as polygons in GeoJSON, traced along the edges of pixels by rasterio (the extra `geo`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depict.errors import UserError
from depict.io.files import atomic_path

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

Feature = dict[str, Any]
"""A GeoJSON feature: `geometry` is a polygon, with holes; `properties` are class, label and pixels."""


def need_rasterio(what: str) -> None:
    """Raise if rasterio is missing."""
    try:
        import rasterio  # noqa: F401
    except ImportError as error:
        raise UserError(f"{what} needs rasterio: pip install rasterio.") from error


def label_polygons(
    labels: np.ndarray, names: Sequence[str], chosen: Sequence[int] | None = None, smallest: int = 0
) -> Iterator[Feature]:
    """The connected regions of the classes `chosen` (by default all) in labels (H, W), in pixels: x right, y down.

    Regions of less than `smallest` pixels first become part of their largest neighbor. Labels without a name have no
    polygon.
    """
    need_rasterio("tracing polygons")
    from rasterio import features

    labels = labels if labels.dtype in (np.uint8, np.int16) else labels.astype(np.int32)
    if smallest > 1:
        labels = features.sieve(labels, smallest, connectivity=4)
    wanted = np.isin(labels, list(range(len(names)) if chosen is None else chosen))
    for geometry, value in features.shapes(labels, mask=wanted, connectivity=4):
        yield feature(geometry, int(value), names)


def raster_polygons(raster: DatasetReader, names: Sequence[str], chosen: Sequence[int]) -> Iterator[Feature]:
    """The regions of the classes `chosen` in a raster of labels of any size, in pixels.

    It is read row by row: memory grows with the number and length of the polygons, not with the pixels.
    """
    import rasterio
    from rasterio import features

    a, b, c, d, e, f = raster.transform[:6]
    to_pixels, corner = np.linalg.inv([(a, d), (b, e)]), (c, f)
    for geometry, value in features.shapes(rasterio.band(raster, 1), connectivity=4):
        if int(value) in chosen:  # traced in the raster's coordinates
            rings = [np.rint((np.array(ring) - corner) @ to_pixels).tolist() for ring in geometry["coordinates"]]
            yield feature(geometry | {"coordinates": rings}, int(value), names)


def feature(geometry: dict[str, Any], label: int, names: Sequence[str]) -> Feature:
    """A region of a class; `geometry` is in pixels."""
    outer, *holes = (ring_area(ring) for ring in geometry["coordinates"])
    properties = {"class": names[label], "label": label, "pixels": round(outer - sum(holes))}
    return {"type": "Feature", "properties": properties, "geometry": geometry}


def ring_area(ring: Sequence[tuple[float, float]]) -> float:
    """The area inside a closed ring of points (x, y)."""
    x, y = np.asarray(ring, float).T
    return float(abs(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1])) / 2)


def write_geojson(path: Path, features: Iterable[Feature]) -> int:
    """Write features as they come, atomically; returns their number."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"type": "FeatureCollection", "features": [')
        for count, each in enumerate(features, 1):
            file.write((",\n" if count > 1 else "\n") + json.dumps(each, ensure_ascii=False))
        file.write("\n]}\n")
    return count
