"""Georeferenced and very large TIFFs, in windows."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from depict.errors import UserError
from depict.io.geotiff import create_raster, is_georeferenced, on_earth, open_raster, read_rgb, tiff_pixels
from depict.io.polygons import label_polygons
from support.geotiff import make_geotiff

rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed")


def picture(height: int = 40, width: int = 60, bands: int = 3, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 256, (bands, height, width)).astype(dtype)


def test_a_tiff_with_coordinates_is_told_from_one_without(tmp_path):
    make_geotiff(tmp_path / "a.tif", picture())
    Image.new("RGB", (5, 4)).save(tmp_path / "plain.tif")
    Image.new("RGB", (5, 4)).save(tmp_path / "b.png")
    (tmp_path / "broken.tif").write_bytes(b"II*\0broken")
    assert is_georeferenced(tmp_path / "a.tif")
    assert tiff_pixels(tmp_path / "a.tif") == 2400
    for name in ("plain.tif", "b.png", "broken.tif", "missing.tif"):
        assert not is_georeferenced(tmp_path / name)
    assert [tiff_pixels(tmp_path / name) for name in ("plain.tif", "broken.tif")] == [20, 0]


@pytest.mark.parametrize(
    ("bands", "dtype", "expected"),
    [
        (3, np.uint8, lambda values: values),
        (4, np.uint8, lambda values: values[:3]),
        (1, np.uint8, lambda values: values[[0, 0, 0]]),
        (3, np.uint16, lambda values: values * 0),
    ],
)
def test_any_bands_are_read_as_rgb(tmp_path, bands, dtype, expected):
    values = picture(bands=bands, dtype=dtype)
    make_geotiff(tmp_path / "a.tif", values)
    with open_raster(tmp_path / "a.tif") as raster:
        rgb, valid = read_rgb(raster, rasterio.windows.Window(10, 5, 20, 15))
    np.testing.assert_array_equal(rgb, expected(values)[:, 5:20, 10:30].transpose(1, 2, 0))
    assert valid.all()


def test_bands_are_chosen_by_their_colors(tmp_path):
    values = picture(bands=5)
    make_geotiff(tmp_path / "a.tif", values, colors=("blue", "green", "red", "undefined", "undefined"))
    make_geotiff(tmp_path / "b.tif", values)
    with open_raster(tmp_path / "a.tif") as raster:
        np.testing.assert_array_equal(read_rgb(raster)[0], values[[2, 1, 0]].transpose(1, 2, 0))
    with open_raster(tmp_path / "b.tif") as raster, pytest.raises(UserError, match="has 5 bands and does not say"):
        read_rgb(raster)


def test_pixels_without_data_are_known(tmp_path):
    values = picture()
    values[:, 10:20] = 0
    make_geotiff(tmp_path / "a.tif", values, nodata=0)
    with open_raster(tmp_path / "a.tif") as raster:
        valid = read_rgb(raster)[1]
    assert not valid[10:20].any()
    assert valid[:10].all() and valid[20:].all()


def test_a_new_raster_is_at_the_place_of_the_old_one_and_appears_when_it_is_complete(tmp_path):
    make_geotiff(tmp_path / "a.tif", picture())
    labels = np.random.default_rng(1).integers(0, 3, (40, 60), np.uint8)
    palette = ((1, 2, 3), (4, 5, 6), (7, 8, 9))
    with open_raster(tmp_path / "a.tif") as source:
        with create_raster(tmp_path / "out/b.tif", source, np.uint8, 255, palette) as target:
            for row in range(0, 40, 20):
                target.write(labels[row : row + 20], 1, window=rasterio.windows.Window(0, row, 60, 20))
            assert not (tmp_path / "out/b.tif").exists()
        with rasterio.open(tmp_path / "out/b.tif") as written:
            assert (written.crs, written.transform, written.nodata) == (source.crs, source.transform, 255)
            assert written.colormap(1)[2] == (7, 8, 9, 255)
            assert written.profile["tiled"] and written.compression.name == "deflate"
            np.testing.assert_array_equal(written.read(1), labels)
        with pytest.raises(ZeroDivisionError), create_raster(tmp_path / "out/c.tif", source, np.uint8):
            _ = 1 / 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["b.tif"]


def test_polygons_are_in_longitude_and_latitude(tmp_path):
    make_geotiff(tmp_path / "a.tif", picture())  # UTM zone 32, 500 km east is 9 degrees
    labels = np.zeros((40, 60), np.uint8)
    with open_raster(tmp_path / "a.tif") as raster:
        [sky] = on_earth(label_polygons(labels, ["sky"]), raster)
    x, y = np.array(sky["geometry"]["coordinates"][0]).T
    assert sky["properties"]["pixels"] == 2400
    assert x.min() == pytest.approx(9, abs=1e-6)
    assert 9 < x.max() < 9.001
    assert (y > 45).all() and (y < 46).all()


def test_a_damaged_file_is_one_line(tmp_path):
    make_geotiff(tmp_path / "a.tif", picture(300, 300))
    content = (tmp_path / "a.tif").read_bytes()
    (tmp_path / "a.tif").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"cannot read '.*a.tif'") as caught, open_raster(tmp_path / "a.tif") as raster:
        read_rgb(raster)
    assert "\n" not in str(caught.value)
