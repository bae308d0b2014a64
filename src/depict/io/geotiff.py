"""TIFFs of any size, georeferenced or not: read and written in windows by rasterio (the extra `geo`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import TiffImagePlugin

from depict.errors import UserError, one_line
from depict.io.files import atomic_path
from depict.io.images import CHANNELS, to_rgb
from depict.io.polygons import Feature, need_rasterio

if TYPE_CHECKING:
    from rasterio.io import DatasetReader, DatasetWriter
    from rasterio.windows import Window

SUFFIXES = {".tif", ".tiff"}
GEO_TAGS = {33550, 33922, 34264, 34735}
"""TIFF tags of the pixel scale, the tie points, the transformation and the coordinate system."""
BLOCK = 512
"""Side in pixels of the tiles in the files that are written."""


def is_georeferenced(path: Path) -> bool:
    """Whether a file is a TIFF with coordinates; known from its header, without rasterio."""
    tags = _header(path)
    return tags is not None and not GEO_TAGS.isdisjoint(tags)


def tiff_pixels(path: Path) -> int:
    """The number of pixels of a TIFF, from its header; 0 if it is none."""
    tags = _header(path)
    return 0 if tags is None else int(tags.get(256, 0)) * int(tags.get(257, 0))


def _header(path: Path) -> TiffImagePlugin.ImageFileDirectory_v2 | None:
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return None
    try:
        # Not Image.open, which refuses large pictures.
        with TiffImagePlugin.TiffImageFile(path) as file:
            return file.tag_v2
    except Exception:  # a damaged file can raise almost anything; it is reported when it is read
        return None


@contextlib.contextmanager
def open_raster(path: Path) -> Iterator[DatasetReader]:
    """Open a TIFF with rasterio; errors inside the block become one line with its name."""
    need_rasterio(f"'{path}' is a georeferenced or very large TIFF: reading it")
    import rasterio
    from rasterio.errors import RasterioError

    try:
        with rasterio.open(path, driver="GTiff") as raster:
            yield raster
    except RasterioError as error:
        raise UserError(f"cannot read '{path}': {one_line(error)}.") from error


def read_rgb(
    raster: DatasetReader, window: Window | None = None, size: tuple[int, int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """uint8 RGB (H, W, 3) of a window, by default all, and where there is data, bool (H, W).

    `size` (H, W) scales it down on the way, which takes little memory.
    The bands are those that the file calls red, green and blue, otherwise the first three, or the first of one or two.
    """
    from rasterio.enums import ColorInterp

    colors = [ColorInterp.red, ColorInterp.green, ColorInterp.blue]
    if all(color in raster.colorinterp for color in colors):
        bands = [raster.colorinterp.index(color) + 1 for color in colors]
    elif raster.count in CHANNELS:
        bands = [1, 2, 3] if raster.count >= 3 else [1]
    else:
        raise UserError(f"'{raster.name}' has {raster.count} bands and does not say which are red, green and blue.")
    shape = None if size is None else (len(bands), *size)
    values = np.moveaxis(raster.read(bands, window=window, out_shape=shape), 0, -1)
    valid = raster.dataset_mask(window=window, out_shape=size) > 0
    try:
        return to_rgb(np.where(valid[..., None], values, 0) if values.dtype.kind == "f" else values), valid
    except UserError as error:
        raise UserError(f"'{raster.name}': {error}") from error


@contextlib.contextmanager
def create_raster(
    path: Path, like: DatasetReader, dtype: Any, nodata: int | None = None, palette: Sequence[Any] = ()
) -> Iterator[DatasetWriter]:
    """A TIFF with one band, of the size and at the place of `like`, in compressed tiles; it appears when complete."""
    import rasterio
    from rasterio.errors import RasterioError

    options = {
        "driver": "GTiff",
        "width": like.width,
        "height": like.height,
        "count": 1,
        "dtype": dtype,
        "nodata": nodata,
        "crs": like.crs,
        "tiled": True,
        "blockxsize": BLOCK,
        "blockysize": BLOCK,
        "compress": "deflate",
        "bigtiff": "if_safer",
    }
    if not like.transform.is_identity:
        options["transform"] = like.transform
    try:
        with atomic_path(path) as temporary, rasterio.open(temporary, "w", **options) as raster:
            if like.gcps[0]:
                raster.gcps = like.gcps
            if palette and np.dtype(dtype) == np.uint8:
                raster.write_colormap(1, {index: (*color, 255) for index, color in enumerate(palette)})
            yield raster
    except RasterioError as error:
        raise UserError(f"cannot write '{path}': {one_line(error)}.") from error


def on_earth(features: Iterator[Feature], raster: DatasetReader) -> Iterator[Feature]:
    """Features in pixels of the raster as features in longitude and latitude, as GeoJSON requires.

    Without a coordinate system they stay in pixels.
    """
    from rasterio.warp import transform_geom

    a, b, c, d, e, f = raster.transform[:6]
    matrix, offset = np.array([(a, d), (b, e)]), np.array((c, f))
    for each in features:
        if raster.crs is not None:
            rings = [(np.array(ring) @ matrix + offset).tolist() for ring in each["geometry"]["coordinates"]]
            geometry = transform_geom(raster.crs, "EPSG:4326", {"type": "Polygon", "coordinates": rings}, precision=9)
            each = each | {"geometry": geometry}
        yield each
