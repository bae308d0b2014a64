"""Pictures of any kind become uint8 RGB arrays (H, W, 3); what cannot is told in one line."""

from __future__ import annotations

import contextlib
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from depict.errors import UserError

if TYPE_CHECKING:
    import torch

    Picture = Image.Image | np.ndarray | torch.Tensor

MAX_PIXELS = 178_956_970
"""Larger files are refused before they are decoded: a few kilobytes can unpack to any size."""
MAX_SIDE = 100_000
"""Longer ones are refused, too: a row of scores for every class must fit into memory."""
PROGRAMS = ("EPS", "WMF")
"""Formats that Pillow hands to other programs to draw."""
NOT_FINITE = "the image holds NaN or infinite values."


def read_image(path: str | Path) -> np.ndarray:
    """Read a picture file as RGB (H, W, 3), turned upright by its EXIF orientation."""
    with opened(Path(path)) as image:
        return file_to_rgb(path, image)


def file_to_rgb(path: str | Path, image: Image.Image) -> np.ndarray:
    """As `to_rgb`, of an opened file: what is wrong with its values is told with its name.

    Usual JPEGs are decoded by simplejpeg, with the same pixels as Pillow's in less time.
    """
    if image.format == "JPEG" and image.mode == "RGB" and orientation(image) == 1:
        # The room is that of the size that was checked. It refuses what does not fit, and any damage: Pillow says then
        # what can be read.
        room = np.empty((image.height, image.width, 3), np.uint8)
        with contextlib.suppress(ValueError):
            return simplejpeg.decode_jpeg(Path(path).read_bytes(), buffer=room)
    try:
        return to_rgb(image)
    except UserError as error:
        raise UserError(f"'{path}': {error}") from error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """A picture file, header read, of a kind and size to decode; whatever fails inside is one line with its name."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"'{path}' is not a file.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(path)
        with image:
            if image.format in PROGRAMS:
                raise UserError(f"'{path}': {image.format} files are drawn by other programs and not read; convert it.")
            if fault := _size_fault(*image.size):
                raise UserError(f"'{path}': {fault}")
            yield image
    except UserError:
        raise
    except UnidentifiedImageError as error:
        empty = path.stat().st_size == 0
        raise UserError(f"'{path}' {'is empty (0 bytes)' if empty else 'is not a readable picture'}.") from error
    except Image.DecompressionBombError as error:
        raise UserError(f"'{path}' has more than the {MAX_PIXELS} pixels that are read; scale it down.") from error
    except Exception as error:  # a broken file can raise almost anything in a decoder
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"cannot read '{path}': {' '.join(text.split()).rstrip('.')}.") from error


def to_rgb(image: Picture) -> np.ndarray:
    """RGB uint8 (H, W, 3) from a PIL image, an array (H, W), (H, W, C) or a tensor (C, H, W), (H, W).

    C is 1, 2, 3 or 4; alpha is left out. 16-bit values lose their lower byte. Floats are taken as 0..1.
    """
    if isinstance(image, Image.Image):
        return _from_pil(image)
    if isinstance(image, np.ndarray):
        return _from_array(image)
    if hasattr(image, "detach"):
        tensor = image.detach().cpu()
        array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return _from_array(array.transpose(1, 2, 0) if array.ndim == 3 else array)
    raise UserError(f"an image must be a PIL image, an array or a tensor, not a {type(image).__name__}.")


def _from_pil(image: Image.Image) -> np.ndarray:
    if fault := _size_fault(*image.size):
        raise UserError(fault)
    if orientation(image) != 1:  # otherwise it would be a copy, and large ones are read, too
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return _from_array(np.asarray(image).astype(np.uint16))
    if image.mode in ("I", "F"):
        return _from_wide(np.asarray(image))
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # straight to RGB warns about transparency held in bytes
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def orientation(image: Image.Image) -> int:
    """How a camera was held, as EXIF, TIFF and XMP count it: 1 is upright, 5 to 8 are on their side."""
    return image.getexif().get(0x0112, 1)


def _size_fault(width: int, height: int) -> str | None:
    """Why a picture of this size is not read; None if it is."""
    if width < 1 or height < 1:
        return f"an image of {width} x {height} pixels is empty."
    if width * height > MAX_PIXELS:
        return f"{width} x {height} pixels are more than the {MAX_PIXELS} that are read; scale it down."
    if max(width, height) > MAX_SIDE:
        return f"{width} x {height} pixels are longer than the {MAX_SIDE} that are read; cut it into pieces."
    return None


def _from_wide(values: np.ndarray) -> np.ndarray:
    """Gray levels in 32 bits, or floats: files do not say their range, so it is read off the values."""
    # In bands, since doubles take eight times as much.
    rows = range(0, len(values), max(1, (1 << 20) // values.shape[1]))
    parts = [values[row : row + rows.step] for row in rows]
    if not all(np.isfinite(part).all() for part in parts):
        raise UserError(NOT_FINITE)
    top = float(values.max())
    full = next(full for full in (1.0, 255.0, 65535.0, top) if top <= full)
    gray = [np.round(part.astype(np.float64).clip(0) * (255.0 / full)).astype(np.uint8) for part in parts]
    return np.repeat(np.concatenate(gray)[..., None], 3, axis=2)


def _from_array(array: np.ndarray) -> np.ndarray:
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] not in (1, 2, 3, 4):
        raise UserError(
            f"an image array must be (H, W) or (H, W, 1 to 4), a tensor (1 to 4, H, W); this has shape {array.shape}."
        )
    if 0 in array.shape:
        raise UserError(f"an image of shape {array.shape} is empty.")
    array = _to_bytes(array)
    if array.shape[2] in (1, 2):
        return np.repeat(array[..., :1], 3, axis=2)
    return np.ascontiguousarray(array[..., :3])


def _to_bytes(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        return (array >> 8).astype(np.uint8)
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise UserError(NOT_FINITE)
        if array.min() < 0 or array.max() > 1:
            raise UserError(
                f"a float image must lie in 0..1, this one spans {array.min():.3g} to {array.max():.3g}; "
                "give uint8 for 0..255."
            )
        return np.round(array * 255).astype(np.uint8)
    if array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255:
        return array.astype(np.uint8)
    raise UserError(f"an image of dtype {array.dtype} must be uint8, uint16, or a float in 0..1.")
