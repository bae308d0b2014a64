"""Building caches of features: run a frozen encoder once per image and mirror image.

A cache's name is a hash of everything it depends on, so other weights, images or sizes make another
cache. It is built in a temporary folder and appears by one rename. A killed process leaves nothing
that could be read as a cache; one that is damaged later is noticed and built again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import secrets
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from depict.data.dataset import IGNORE, Dataset, Subset
from depict.data.transforms import resize_labels
from depict.errors import UserError
from depict.inference.preprocess import resize_image
from depict.inference.torch_backend import eval_mode
from depict.io.checksums import tensors_checksum
from depict.io.files import need_space, write_json
from depict.terminal import progress_bar, say
from depict.training.feature_cache import META, Arrays, FeatureCache, cache_arrays, feature_grid, read_cache

if TYPE_CHECKING:
    from depict.model import SegmentationModel

FORMAT = 2
"""Part of every cache's name; raised when the content of caches, or how the encoder computes it, changes."""
READERS = 4
"""Threads that read images while the encoder runs."""
MAKE_ROOM = "set DEPICT_CACHE to a folder with more room, or delete old caches"

T = TypeVar("T")
R = TypeVar("R")


def open_cache(
    model: SegmentationModel,
    dataset: Dataset,
    folder: Path | None = None,
    mirrored: bool = True,
    batch: int = 8,
    progress: bool = True,
) -> FeatureCache:
    """The features of `dataset` from the encoder of `model`, read from `folder` or built there first.

    `folder` holds many caches (default: `default_folder`). `mirrored` caches hold mirror images,
    too, and also serve those who need none. For a subset, the cache of its full data set is used if
    it exists. Among several processes, one builds, `batch` images at a time; the others wait.
    """
    parent = default_folder() if folder is None else Path(folder)
    for kind in (True,) if mirrored else (True, False):
        if (cache := _find(model, dataset, parent, kind)) is not None:
            return cache
    return _build(model, dataset, parent, mirrored, batch, progress)


def default_folder() -> Path:
    """`features` in $DEPICT_CACHE, or in `depict` of the user's cache folder."""
    if chosen := os.environ.get("DEPICT_CACHE"):
        return Path(chosen).expanduser() / "features"
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(user).expanduser() / "depict" / "features"


def cache_key(model: SegmentationModel, dataset: Dataset, mirrored: bool = True) -> str:
    """A hash of everything that features and labels depend on."""
    digest = hashlib.sha256(encoder_key(model).encode())
    data = (dataset.name, dataset.split, dataset.classes, len(dataset), mirrored)
    for value in (FORMAT, model.image_size, data, *dataset.identity()):
        digest.update(f"{value!r}\n".encode())
    return digest.hexdigest()[:32]


def encoder_key(model: SegmentationModel) -> str:
    """A hash of an encoder with its weights and of the values that its inputs are normalized with."""
    encoder = dataclasses.asdict(model.config.encoder)
    for irrelevant in ("pretrained", "drop_path", "freeze"):  # the weights themselves are hashed below
        encoder.pop(irrelevant)
    settings = (sorted(encoder.items()), model.encoder.strides, model.multiple, model.mean, model.std)
    digest = hashlib.sha256(f"{settings!r}\n".encode())
    digest.update(tensors_checksum(model.encoder.state_dict()).encode())
    return digest.hexdigest()


def encoder_sketch(model: SegmentationModel) -> Tensor:
    """Two numbers for each tensor of the encoder (T, 2): a random projection of it, always the same, and its length.

    They tell encoders apart, yet not the rounding of two kinds of CPU, which resize position embeddings differently.
    """
    generator = torch.Generator().manual_seed(0)
    rows = []
    for tensor in model.encoder.state_dict().values():
        values = tensor.detach().cpu().double().flatten()
        direction = torch.randn(values.shape, generator=generator, dtype=torch.float64)
        rows.append(torch.stack([values @ direction, values.norm()]))
    return torch.stack(rows)


def same_encoder(sketch: Tensor, other: Tensor) -> bool:
    """Whether two sketches are of the same encoder, up to rounding."""
    if sketch.shape != other.shape:
        return False
    return bool(((sketch - other)[:, 0].abs() <= 1e-5 * (1 + other[:, 1])).all())


def fitted_size(height: int, width: int, box: tuple[int, int]) -> tuple[int, int]:
    """The largest size of the same aspect ratio that fits into `box`, to the nearest pixel; at least one pixel."""
    scale = min(box[0] / height, box[1] / width)
    return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))


def _find(model: SegmentationModel, dataset: Dataset, parent: Path, mirrored: bool) -> FeatureCache | None:
    """The cache of a data set; that of a subset may be part of the cache of the full data set."""
    cache = read_cache(parent / cache_key(model, dataset, mirrored), model, len(dataset), mirrored)
    if cache is None and isinstance(dataset, Subset):
        full = _find(model, dataset.dataset, parent, mirrored)
        return full and dataclasses.replace(full, rows=[full.rows[index] for index in dataset.indices])
    return cache


def _build(
    model: SegmentationModel, dataset: Dataset, parent: Path, mirrored: bool, batch: int, progress: bool
) -> FeatureCache:
    """Build the cache of a data set under its lock, unless another process has just done so."""
    key = cache_key(model, dataset, mirrored)
    folder = parent / key
    arrays = cache_arrays(model, len(dataset), mirrored)
    size = sum(math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in arrays.values())
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(parent)
        with _locked(folder, progress):
            if (cache := read_cache(folder, model, len(dataset), mirrored)) is not None:
                return cache
            if folder.exists():
                _say(f"'{folder}' is damaged and is built again.", progress)
                shutil.rmtree(folder)
            need_space(parent, size, f"keeping the features of {len(dataset)} images", MAKE_ROOM)
            temporary = parent / f"{key}.{secrets.token_hex(4)}.part"
            try:
                temporary.mkdir()
                checksums = _write_arrays(model, dataset, temporary, arrays, batch, progress)
                files = {name: [dtype, list(shape), checksums[name]] for name, (dtype, shape) in arrays.items()}
                write_json(temporary / META, _description(model, dataset) | {"files": files})
                temporary.rename(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot keep features in '{parent}': {error.strerror or error}: {MAKE_ROOM}.") from error
    built = read_cache(folder, model, len(dataset), mirrored)
    if built is None:
        raise UserError(f"'{folder}' was damaged right after it was built: {MAKE_ROOM}.")
    _say(f"features of {len(dataset)} images: {size / 1e9:.2f} GB in '{folder}', which you may delete.", progress)
    return built


def _description(model: SegmentationModel, dataset: Dataset) -> dict[str, Any]:
    """What is in a cache, for people."""
    return {
        "encoder": model.config.encoder.name,
        "data": dataset.name,
        "split": dataset.split,
        "images": len(dataset),
        "grid": feature_grid(model),
    }


def _write_arrays(
    model: SegmentationModel, dataset: Dataset, folder: Path, arrays: Arrays, batch: int, progress: bool
) -> dict[str, str]:
    """Write the arrays of a cache, one image after the other, and return their checksums.

    Not through a memory map: there a full disk is a signal that kills the process, here it is an
    OSError.
    """
    images = len(dataset)
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(_npy(folder / f"{name}.npy", dtype, shape))
            for name, (dtype, shape) in arrays.items()
        }
        digests = {name: hashlib.sha256() for name in arrays}

        def write(name: str, values: np.ndarray) -> None:
            files[name].write(values.data)
            digests[name].update(values.data)

        views = arrays["tokens"][1][1]
        pool = stack.enter_context(ThreadPoolExecutor(READERS))
        bar = stack.enter_context(progress_bar(total=images, desc="encoding", unit="image", disable=not progress))
        stack.enter_context(eval_mode(model.encoder))
        stack.enter_context(torch.inference_mode())
        read_ahead = _map_ahead(pool, lambda index: _fitted(dataset, index, model.image_size), range(images), 2 * batch)
        samples = stack.enter_context(contextlib.closing(read_ahead))
        for start in range(0, images, batch):
            count = min(batch, images - start)
            pixels = torch.zeros(count, views, 3, *model.image_size)  # each image, and its mirror image
            for row, (image, labels) in zip(range(count), samples, strict=False):
                height, width = labels.shape
                pixels[row, 0, :, :height, :width] = model.normalize(image)
                if views == 2:
                    pixels[row, 1, :, :height, :width] = pixels[row, 0, :, :height, :width].flip(-1)
                padded = np.full(model.image_size, IGNORE, np.uint8)
                padded[:height, :width] = labels.numpy()
                write("labels", padded)
                write("sizes", np.array([height, width], np.int32))
            tokens = model.features(pixels.flatten(0, 1).to(model.device))[0].half().cpu()
            if not tokens.isfinite().all():
                names = f"'{dataset.name_of(start)}' to '{dataset.name_of(start + count - 1)}'"
                raise UserError(f"the encoder gives infinite or undefined features for {names}: check its weights.")
            write("tokens", tokens.numpy())
            bar.update(count)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    return {name: digest.hexdigest() for name, digest in digests.items()}


def _fitted(dataset: Dataset, index: int, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Image uint8 (3, h, w) and labels uint8 (h, w) of a sample, resized to fit into the window."""
    image, labels = dataset.read(index)
    size = fitted_size(labels.shape[0], labels.shape[1], window)
    return resize_image(image, size), resize_labels(labels, size)


def _map_ahead(
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], count: int
) -> Generator[R, None, None]:
    """`pool.map`, at most `count` items ahead of the consumer (`Executor.map` submits all of them at once)."""
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


@contextlib.contextmanager
def _npy(path: Path, dtype: str, shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """A new .npy file with its header written, open for the values, first index slowest."""
    with path.open("wb") as file:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        yield file


@contextlib.contextmanager
def _locked(folder: Path, progress: bool) -> Iterator[None]:
    """Hold the lock of a cache; the system releases it when the process ends for any reason."""
    lock = FileLock(_lock_path(folder))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        _say("waiting for another process that encodes the same images.", progress)
        lock.acquire(poll_interval=0.2)
    try:
        yield
    finally:
        lock.release()


def _remove_unfinished(parent: Path) -> None:
    """Remove the temporary folders of killed processes; a running one holds the lock of its cache."""
    for part in parent.glob("*.part"):
        with contextlib.suppress(Timeout), FileLock(_lock_path(parent / part.name.split(".")[0]), blocking=False):
            shutil.rmtree(part, ignore_errors=True)


def _lock_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _say(message: str, progress: bool) -> None:
    if progress:
        say(message, error=True)
