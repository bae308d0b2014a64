"""Images of any kind to uint8 RGB arrays (H, W, 3). Files may be untrusted or damaged."""

from __future__ import annotations

import contextlib
import io
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

    ImageLike = Image.Image | np.ndarray | torch.Tensor

MAX_PIXELS = 178_956_970
"""Larger files are refused before decoding: a few kilobytes can decompress to any size."""
MAX_SIDE = 100_000
"""Longer images are refused, too: a row of scores for every class must fit into memory."""
EXTERNAL_FORMATS = ("EPS", "WMF")
"""Formats that Pillow passes to other programs."""
CHANNELS = (1, 2, 3, 4)
NOT_FINITE = "the image contains NaN or infinite values."


def read_image(path: str | Path) -> np.ndarray:
    """Read an image file as RGB uint8 (H, W, 3), rotated by its EXIF orientation."""
    with open_image(Path(path)) as image:
        return file_to_rgb(path, image)


def file_to_rgb(path: str | Path, image: Image.Image) -> np.ndarray:
    """`to_rgb` of an open file; errors name the file.

    Ordinary JPEGs are decoded by simplejpeg, which is faster than Pillow and gives the same pixels.
    """
    if image.format == "JPEG" and image.mode == "RGB" and orientation(image) == 1:
        # simplejpeg refuses damaged files and those of another size than the header says: Pillow then decides.
        buffer = np.empty((image.height, image.width, 3), np.uint8)
        with contextlib.suppress(ValueError):
            return simplejpeg.decode_jpeg(Path(path).read_bytes(), buffer=buffer)
    try:
        return to_rgb(image)
    except UserError as error:
        raise UserError(f"'{path}': {error}") from error


@contextlib.contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image file and check its format and size; any error inside the block becomes one line with its name."""
    with _one_line(f"'{path}'"):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"'{path}' is not a file.")
        if not status.st_size:
            raise UserError(f"'{path}' is empty (0 bytes).")
        with _open(path) as image:
            if image.format in EXTERNAL_FORMATS:
                raise UserError(f"'{path}': {image.format} files are not supported: convert it to PNG.")
            if problem := _size_problem(*image.size):
                raise UserError(f"'{path}': {problem}")
            yield image


def decode_image(data: bytes, formats: tuple[str, ...], max_pixels: int) -> np.ndarray:
    """RGB uint8 (H, W, 3) of an encoded picture in memory, of one of Pillow's `formats`, as from `read_image`."""
    with _one_line("the picture", max_pixels), _open(io.BytesIO(data), formats) as image:
        if problem := _size_problem(*image.size, max_pixels):
            raise UserError(problem)
        return to_rgb(image)


def _open(file: Path | io.BytesIO, formats: tuple[str, ...] | None = None) -> Image.Image:
    """Read the header of an image; the size is checked by the caller, without Pillow's warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(file, formats=formats)


@contextlib.contextmanager
def _one_line(name: str, most: int = MAX_PIXELS) -> Iterator[None]:
    """Turn any error of a decoder into one line that names the picture."""
    try:
        yield
    except UserError:
        raise
    except UnidentifiedImageError as error:
        raise UserError(f"{name} is not a readable image.") from error
    except Image.DecompressionBombError as error:
        raise UserError(f"{name} has more than {most} pixels, the limit: scale it down.") from error
    except Exception as error:  # a damaged file can raise almost anything in a decoder
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"cannot read {name}: {' '.join(text.split()).rstrip('.')}.") from error


def to_rgb(image: ImageLike) -> np.ndarray:
    """RGB uint8 (H, W, 3) of a PIL image, an array (H, W) or (H, W, C), or a tensor (H, W) or (C, H, W).

    C is 1, 2, 3 or 4; alpha is dropped. 16-bit values lose their lower byte. Floats must be in
    0..1.
    """
    if isinstance(image, Image.Image):
        return _from_pil(image)
    if isinstance(image, np.ndarray):
        return _from_array(image)
    if hasattr(image, "detach"):
        return _from_tensor(image)
    raise UserError(f"an image must be a PIL image, an array or a tensor, not a {type(image).__name__}.")


def _from_tensor(image: torch.Tensor) -> np.ndarray:
    tensor = image.detach().cpu()
    if tensor.ndim == 3 and tensor.shape[0] not in CHANNELS:
        hint = ": use tensor.permute(2, 0, 1)" if tensor.shape[2] in CHANNELS else ""
        raise UserError(
            f"an image tensor must be (H, W) or (1 to 4, H, W), channels first{hint}; "
            f"this one has shape {tuple(tensor.shape)}."
        )
    if 0 in tensor.shape:
        raise UserError(f"an image of shape {tuple(tensor.shape)} is empty.")
    array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return _from_array(array.transpose(1, 2, 0) if array.ndim == 3 else array)


def _from_pil(image: Image.Image) -> np.ndarray:
    if problem := _size_problem(*image.size):
        raise UserError(problem)
    if orientation(image) != 1:  # exif_transpose always copies, which takes memory for large images
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return _from_array(np.asarray(image).astype(np.uint16))
    if image.mode in ("I", "F"):
        return _from_wide(np.asarray(image))
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # directly to RGB, Pillow warns about transparency in bytes
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def orientation(image: Image.Image) -> int:
    """The orientation in EXIF, TIFF or XMP: 1 is upright, 5 to 8 swap width and height."""
    return image.getexif().get(0x0112, 1)


def _size_problem(width: int, height: int, most: int | None = None) -> str | None:
    """Why an image of this size is refused; None if it is not."""
    most = most or MAX_PIXELS
    if width < 1 or height < 1:
        return f"an image of {width} x {height} pixels is empty."
    if width * height > most:
        return f"{width} x {height} pixels are more than the limit of {most}: scale it down."
    if max(width, height) > MAX_SIDE:
        return f"{width} x {height} pixels are longer than the limit of {MAX_SIDE}: cut it into pieces."
    return None


def _from_wide(values: np.ndarray) -> np.ndarray:
    """Gray values in 32 bits or floats. Files do not record their range, so it is guessed from the values."""
    # In bands, since float64 takes eight times the memory of uint8.
    rows = range(0, len(values), max(1, (1 << 20) // values.shape[1]))
    parts = [values[row : row + rows.step] for row in rows]
    if not all(np.isfinite(part).all() for part in parts):
        raise UserError(NOT_FINITE)
    largest = float(values.max())
    white = next(white for white in (1.0, 255.0, 65535.0, largest) if largest <= white)
    gray = [np.round(part.astype(np.float64).clip(0) * (255.0 / white)).astype(np.uint8) for part in parts]
    return np.repeat(np.concatenate(gray)[..., None], 3, axis=2)


def _from_array(array: np.ndarray) -> np.ndarray:
    shape = array.shape
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] not in CHANNELS:
        raise UserError(
            f"an image array must be (H, W) or (H, W, 1 to 4), a tensor (H, W) or (1 to 4, H, W); "
            f"this one has shape {shape}."
        )
    if 0 in array.shape:
        raise UserError(f"an image of shape {shape} is empty.")
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
                f"a float image must be in 0..1, this one is in {array.min():.3g} to {array.max():.3g}; "
                "use uint8 for 0..255."
            )
        return np.round(array * 255).astype(np.uint8)
    if array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255:
        return array.astype(np.uint8)
    raise UserError(f"an image of dtype {array.dtype} must be uint8, uint16, or a float in 0..1.")
