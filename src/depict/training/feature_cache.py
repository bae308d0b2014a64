"""The features of a frozen encoder, computed once: decoders then train from disk, in minutes on a CPU.

Every image is brought whole into the model's window (ratio kept, zeros right and below) and encoded as it is and
mirrored. The cache is a folder of plain .npy files under a name that is a hash of all they depend on: other weights,
other data or another size make another cache. It appears by one rename when it is whole, so a killed process leaves
nothing that could be mistaken for it; what was damaged afterwards is noticed by its sizes and built anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import secrets
import shutil
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor
from tqdm import tqdm

from depict.data.dataset import IGNORE, Dataset, Subset
from depict.data.transforms import resize_labels, sample_generator
from depict.errors import UserError
from depict.inference.preprocess import resize_image
from depict.inference.sliding import padded_size
from depict.io.files import need_space, write_json

if TYPE_CHECKING:
    from depict.data.loading import Schedule
    from depict.model import SegmentationModel

FORMAT = 1
"""Part of every cache's name; raised when what is stored, or how the encoder computes it, changes."""
META = "meta.json"
READERS = 4
"""Threads that read images while the encoder works."""
WAY_OUT = "set DEPICT_CACHE to a folder with more room, or delete old caches"

T = TypeVar("T")
R = TypeVar("R")
Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Name -> numpy's name of the type, and shape."""


class FeatureBatch(NamedTuple):
    """One process's share of a step; it may be empty in the last step of an epoch."""

    tokens: Tensor
    """float32 (B, N, D): Z0, mirrored or not."""
    labels: Tensor
    """uint8 (B, H, W), 255 = ignored; (H, W) is the model's window, or the part of it that `grid` covers."""
    indices: Tensor
    """int64 (B,): which samples of the data set."""
    grid: tuple[int, int]
    """(h, w): tokens are its cells row by row, N = h * w."""


class View(NamedTuple):
    """How a sample is seen: as it is or mirrored, from which cell of the grid on."""

    mirrored: bool = False
    top: int = 0
    left: int = 0


@dataclass(frozen=True)
class FeatureCache:
    """Features and labels of a whole split. The tensors are files mapped into memory: nothing is read before use."""

    folder: Path
    grid: tuple[int, int]
    """(h, w): tokens are its cells row by row, N = h * w."""
    patch_size: tuple[int, int]
    """(height, width) of a cell in pixels."""
    tokens: Tensor
    """float16 (n, 2, N, D): of the image, and of its mirror image."""
    labels: Tensor
    """uint8 (n, H, W) of the image."""
    sizes: Tensor
    """int32 (n, 2): height and width that the image takes up in the window, the rest is padding."""
    rows: Sequence[int]
    """Which of the n are meant, in order: all, or those of a part of the data set."""

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: list[int], views: list[View], grid: tuple[int, int] | None = None) -> FeatureBatch:
        """These samples, each in its view; of `grid`, by default the whole one."""
        h, w = grid = grid or self.grid
        size = [
            min(most, n * patch) for most, n, patch in zip(self.labels.shape[1:], grid, self.patch_size, strict=True)
        ]
        tokens = torch.empty(len(indices), h, w, self.tokens.shape[-1])
        labels = torch.full((len(indices), *size), IGNORE, dtype=torch.uint8)
        for place, (index, (mirrored, top, left)) in enumerate(zip(indices, views, strict=True)):
            row = self.rows[index]
            cells = self.tokens[row, int(mirrored)].view(*self.grid, -1)
            tokens[place] = cells[top : top + h, left : left + w]
            whole = self.labels[row]
            if mirrored:  # the image alone: its padding stays on the right
                width = int(self.sizes[row, 1])
                whole = torch.cat([whole[:, :width].flip(-1), whole[:, width:]], 1)
            y, x = top * self.patch_size[0], left * self.patch_size[1]
            part = whole[y : y + size[0], x : x + size[1]]
            labels[place, : part.shape[0], : part.shape[1]] = part
        return FeatureBatch(tokens.flatten(1, 2), labels, torch.tensor(indices, dtype=torch.int64), grid)

    def view(self, index: int, grid: tuple[int, int], mirror: bool, generator: np.random.Generator) -> View:
        """A random view of a sample: mirrored with even odds if `mirror`, `grid` anywhere on the image."""
        mirrored = bool(generator.random() < 0.5) and mirror
        corner = []
        for n, size, patch in zip(grid, self.sizes[self.rows[index]].tolist(), self.patch_size, strict=True):
            corner.append(int(generator.integers(0, max(0, -(-size // patch) - n), endpoint=True)))
        return View(mirrored, *corner)


def feature_batches(
    cache: FeatureCache, schedule: Schedule, mirror: bool = True, crop: float | None = None
) -> Iterator[FeatureBatch]:
    """Every batch of `schedule`; how a sample is seen is decided by (seed, epoch, index) alone.

    `mirror`: as its mirror image with even odds. `crop`: a random part of it, this share of its height and width.
    """
    if schedule.images != len(cache):
        raise UserError(f"a schedule of {schedule.images} images does not fit the {len(cache)} of '{cache.folder}'.")
    h, w = (max(1, round((crop or 1.0) * n)) for n in cache.grid)
    for share in schedule:
        views = [
            cache.view(index, (h, w), mirror, sample_generator(schedule.seed, epoch, index)) for epoch, index in share
        ]
        yield cache.batch([index for _, index in share], views, (h, w))


def open_cache(
    model: SegmentationModel,
    dataset: Dataset,
    folder: Path | None = None,
    device: torch.device | str | None = None,
    batch: int = 8,
    progress: bool = True,
) -> FeatureCache:
    """The features of `dataset` under the encoder of `model` as it is now; built first where they are not in `folder`.

    `folder` holds many caches (default: see `default_folder`); for a part of a data set, that of the whole serves, too.
    Of several processes one builds, on `device` (default: where the model is), `batch` images and their mirror images
    at a time; the others wait.
    """
    folder = default_folder() if folder is None else Path(folder)
    key, shapes = cache_key(model, dataset), _shapes(model, len(dataset))
    place = folder / key
    if (cache := _read(place, model, shapes) or _of_the_whole(model, dataset, folder)) is not None:
        return cache
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with _alone(_lock_of(place), progress):
            if (cache := _read(place, model, shapes)) is not None:
                return cache  # another process has built it meanwhile
            if place.exists():
                _say(f"'{place}' is damaged and built anew.", progress)
                shutil.rmtree(place)
            work = folder / f"{key}.{secrets.token_hex(4)}.part"
            size = sum(math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in shapes.values())
            need_space(folder, size, f"keeping the features of {len(dataset)} images", WAY_OUT)
            try:
                work.mkdir()
                _build(model, dataset, work, shapes, device, batch, progress)
                work.rename(place)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot keep features in '{folder}': {error.strerror or error}: {WAY_OUT}.") from error
    cache = _read(place, model, shapes)
    if cache is None:
        raise UserError(f"'{place}' was damaged right after it was built: {WAY_OUT}.")
    _say(f"features of {len(dataset)} images: {size / 1e9:.2f} GB in '{place}', to be deleted at will.", progress)
    return cache


def _of_the_whole(model: SegmentationModel, dataset: Dataset, folder: Path) -> FeatureCache | None:
    """The features of a part of a data set from a cache of all of it, where there is one."""
    if not isinstance(dataset, Subset):
        return None
    whole = dataset.dataset
    found = _read(folder / cache_key(model, whole), model, _shapes(model, len(whole)))
    found = found or _of_the_whole(model, whole, folder)
    return found and dataclasses.replace(found, rows=[found.rows[index] for index in dataset.indices])


def default_folder() -> Path:
    """`features` in $DEPICT_CACHE, or else in `depict` of the user's cache folder."""
    if chosen := os.environ.get("DEPICT_CACHE"):
        return Path(chosen).expanduser() / "features"
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(user).expanduser() / "depict" / "features"


def cache_key(model: SegmentationModel, dataset: Dataset) -> str:
    """A hash of all that features and labels depend on."""
    encoder = dataclasses.asdict(model.config.encoder)
    for irrelevant in ("pretrained", "drop_path", "freeze"):  # weights are hashed themselves; the others only train
        encoder.pop(irrelevant)
    digest = hashlib.sha256()
    settings = (FORMAT, sorted(encoder.items()), model.image_size, model.mean, model.std)
    data = (dataset.name, dataset.split, dataset.classes, len(dataset))
    for value in (settings, data, *dataset.identity()):
        digest.update(f"{value!r}\n".encode())
    for name, tensor in sorted(model.encoder.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def fitted_size(height: int, width: int, box: tuple[int, int]) -> tuple[int, int]:
    """The largest size of the same ratio, to the nearest pixel, that fits into `box`; never below one pixel."""
    scale = min(box[0] / height, box[1] / width)
    return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))


def _build(
    model: SegmentationModel,
    dataset: Dataset,
    work: Path,
    shapes: Shapes,
    device: torch.device | str | None,
    batch: int,
    progress: bool,
) -> None:
    """Write the files of a cache to the folder `work`, one sample after the other.

    Not through a memory map: there a full disk is a signal that kills the process, here it is an OSError.
    """

    def prepared(index: int) -> tuple[Tensor, Tensor]:
        image, labels = dataset.read(index)
        size = fitted_size(labels.shape[0], labels.shape[1], model.image_size)
        return resize_image(image, size), resize_labels(labels, size)

    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(_npy(work / f"{name}.npy", *shapes[name])) for name in shapes}
        pool = stack.enter_context(ThreadPoolExecutor(READERS))
        bar = stack.enter_context(tqdm(total=len(dataset), desc="encoding", unit="image", disable=not progress))
        stack.enter_context(_encoding(model, device))
        samples = stack.enter_context(contextlib.closing(_ahead(pool, prepared, range(len(dataset)), 2 * batch)))
        for start in range(0, len(dataset), batch):
            count = min(batch, len(dataset) - start)
            images = torch.zeros(count, 2, 3, *model.image_size)
            for row, (image, labels) in zip(range(count), samples, strict=False):
                height, width = labels.shape
                images[row, 0, :, :height, :width] = model.normalize(image)
                images[row, 1, :, :height, :width] = images[row, 0, :, :height, :width].flip(-1)
                padded = np.full(model.image_size, IGNORE, np.uint8)
                padded[:height, :width] = labels.numpy()
                files["labels"].write(padded.data)
                files["sizes"].write(np.array([height, width], np.int32).data)
            tokens = model.tokens(images.flatten(0, 1).to(model.device))[0].half().cpu()
            if not tokens.isfinite().all():
                names = f"'{dataset.name_of(start)}' to '{dataset.name_of(start + count - 1)}'"
                raise UserError(f"the encoder gives infinite or undefined features for {names}: check its weights.")
            files["tokens"].write(tokens.numpy().data)
            bar.update(count)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    about = {"encoder": model.config.encoder.name, "data": dataset.name, "split": dataset.split}
    listed = {name: [dtype, list(shape)] for name, (dtype, shape) in shapes.items()}
    write_json(work / META, about | {"images": len(dataset), "grid": _grid(model), "files": listed})


@contextlib.contextmanager
def _encoding(model: SegmentationModel, device: torch.device | str | None) -> Iterator[None]:
    """The model on `device`, its encoder in evaluation mode, no gradients; afterwards everything as it was."""
    home, training = model.device, model.encoder.training
    model.to(device or home)
    model.encoder.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.to(home)
        model.encoder.train(training)


def _ahead(
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], count: int
) -> Generator[R, None, None]:
    """`map` in the threads of `pool`, `count` items ahead of what was taken (Executor.map would run through all)."""
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


def _read(place: Path, model: SegmentationModel, shapes: Shapes) -> FeatureCache | None:
    """The cache at `place`, if it is there and whole."""
    try:
        written = json.loads((place / META).read_text(encoding="utf-8"))["files"]
        tensors = {}
        for name, (dtype, shape) in shapes.items():
            path = place / f"{name}.npy"
            # "c": torch wants memory that may be written to; what would be written stays in memory.
            array = np.lib.format.open_memmap(path, mode="c")
            if [dtype, list(shape)] != written[name] or (array.dtype.name, array.shape) != (dtype, shape):
                return None
            if path.stat().st_size != array.offset + array.nbytes:
                return None
            tensors[name] = torch.from_numpy(array)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return FeatureCache(place, _grid(model), model.patch_size, **tensors, rows=range(len(tensors["tokens"])))


@contextlib.contextmanager
def _npy(path: Path, dtype: str, shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """A new .npy file whose header is written and whose values follow, first index slowest."""
    with path.open("wb") as file:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        yield file


def _grid(model: SegmentationModel) -> tuple[int, int]:
    height, width = padded_size(model.image_size, model.patch_size)
    return height // model.patch_size[0], width // model.patch_size[1]


def _shapes(model: SegmentationModel, images: int) -> Shapes:
    return {
        "tokens": ("float16", (images, 2, math.prod(_grid(model)), model.encoder.dim)),
        "labels": ("uint8", (images, *model.image_size)),
        "sizes": ("int32", (images, 2)),
    }


def _lock_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


@contextlib.contextmanager
def _alone(path: Path, progress: bool) -> Iterator[None]:
    """Hold the lock of a cache; the system gives it back when the process ends in whatever way."""
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        _say("waiting for another process that encodes the same images.", progress)
        lock.acquire(poll_interval=0.2)
    try:
        yield
    finally:
        lock.release()


def _sweep(folder: Path) -> None:
    """Remove what killed builders left behind; a living one holds the lock of its cache."""
    for part in folder.glob("*.part"):
        place = folder / part.name.split(".")[0]
        with contextlib.suppress(Timeout), FileLock(_lock_of(place), blocking=False):
            shutil.rmtree(part, ignore_errors=True)


def _say(message: str, progress: bool) -> None:
    if progress:
        print(message, file=sys.stderr)
