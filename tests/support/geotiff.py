"""A small georeferenced TIFF for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest


def make_geotiff(path: Path, values: np.ndarray, colors: Sequence[str] = (), nodata: int | None = None) -> None:
    """Write bands (B, H, W) with pixels of half a meter, the upper left corner at 500 km east in UTM zone 32."""
    rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed")
    bands, height, width = values.shape
    transform = rasterio.transform.from_origin(500_000, 5_000_000, 0.5, 0.5)
    options = {"count": bands, "height": height, "width": width, "dtype": values.dtype, "nodata": nodata}
    options |= {"tiled": True, "blockxsize": 256, "blockysize": 256}
    with rasterio.open(path, "w", driver="GTiff", crs="EPSG:32632", transform=transform, **options) as raster:
        raster.write(values)
        raster.colorinterp = [getattr(rasterio.enums.ColorInterp, color) for color in colors or ["undefined"] * bands]
