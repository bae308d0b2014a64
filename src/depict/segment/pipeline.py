"""Inputs → predictor → outputs: pictures are read ahead and written behind while the network runs.

Threads decode and encode (Pillow releases the interpreter lock) while the calling thread predicts. The pixels that wait
on either side are bounded, so memory does not grow with the number of pictures. Needs no torch.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from depict.errors import UserError
from depict.inference.predictors import Predictor
from depict.io.images import read_image
from depict.segment.inputs import Input
from depict.segment.outputs import Outputs
from depict.segment.summary import Row, printable
from depict.segment.video import video_frames
from depict.viz.overlays import label_shares

AHEAD_PIXELS = 48 << 20
"""Most pixels of the pictures that wait for the network, and of those that wait to be written: 144 MB each."""


def segment_all(
    predictor: Predictor,
    inputs: Sequence[Input],
    outputs: Outputs,
    workers: int,
    rank: int = 0,
    world: int = 1,
    sources: dict[str, str] | None = None,
) -> Iterator[Row]:
    """Segment this process's share of the inputs and write the outputs; yields a row of the summary for each picture.

    A picture that cannot be read or predicted yields a row with status "failed" and its error. `sources` are the files
    that existing outputs were made from; a picture whose name is taken by another file fails.
    """
    with _threads(workers) as readers, _threads(workers) as writers:
        pending: deque[_Write] = deque()
        for job, picture in _read_ahead(_jobs(inputs, rank, world), outputs, sources or {}, readers, workers):
            row: Row = {"name": printable(job.name), "source": job.source, "order": job.order}
            if picture.error is not None:
                yield row | {"status": "failed", "error": printable(picture.error)}
            elif picture.labels is not None:
                shares = label_shares(picture.labels, outputs.shown)
                yield row | {"status": "kept"} | outputs.describe(picture.labels, shares)
            elif picture.image is not None:
                try:
                    labels = _predict(predictor, picture.image, outputs, job.name)
                except PredictionError as error:
                    yield row | {"status": "failed", "error": f"'{job.source}': {printable(str(error))}"}
                    continue
                shares = label_shares(labels, outputs.shown)
                row |= {"status": "written"} | outputs.describe(labels, shares)
                while pending and (len(pending) > workers or _pixels(pending) + labels.size > AHEAD_PIXELS):
                    yield pending.popleft().wait()
                done = writers.submit(outputs.write, job.name, picture.image, labels, shares)
                pending.append(_Write(row, labels.size, done))
                del picture, labels, done  # or they stay in memory while the next picture is awaited
        while pending:
            yield pending.popleft().wait()


class PredictionError(UserError):
    """The predictor refuses a picture. Unlike a full disk, this concerns only that picture."""


class _Job(NamedTuple):
    """A picture to be read: a file or a frame of a video."""

    name: str
    source: str
    order: tuple[int, int]
    """Index of the input, and number of the frame."""
    pixels: int = 0
    read: Callable[[], np.ndarray] | None = None
    error: str | None = None
    """Why there is nothing to read."""


class _Picture(NamedTuple):
    """What reading gave: the image (H, W, 3), the labels (H, W) of an earlier call, or an error."""

    image: np.ndarray | None = None
    labels: np.ndarray | None = None
    error: str | None = None


class _Write(NamedTuple):
    """A picture that is being written."""

    row: Row
    pixels: int
    done: Future[None]

    def wait(self) -> Row:
        """The row of the summary, once the files are written."""
        self.done.result()
        return self.row


def _jobs(inputs: Sequence[Input], rank: int, world: int) -> Iterator[_Job]:
    """Every world-th picture, and every world-th frame of each video."""
    turn = 0
    for index, entry in enumerate(inputs):
        if entry.video:
            yield from _frames(entry, index, rank, world)
            continue
        if turn % world == rank:
            job = _Job(entry.name, printable(entry.path), (index, 0), error=entry.error)
            if entry.error is None:
                job = job._replace(pixels=_header_pixels(entry.path), read=partial(read_image, entry.path))
            yield job
        turn += 1


def _frames(video: Input, index: int, rank: int, world: int) -> Iterator[_Job]:
    """The frames of a video as jobs, then the error that ended it, if any."""
    source, number = printable(video.path), 0
    try:
        for number, image in video_frames(video.path, rank, world):
            pixels = image.shape[0] * image.shape[1]
            yield _Job(f"{video.name}/{number:06d}", source, (index, number), pixels, partial(np.asarray, image))
    except UserError as error:
        if rank == 0:
            yield _Job(f"{video.name}/{number + 1:06d}", source, (index, number + 1), error=str(error))


def _header_pixels(path: Path) -> int:
    """The size of a picture from its header; 0 if it cannot be read, which is reported later."""
    if not path.is_file():
        return 0
    try:
        with Image.open(path) as picture:
            return picture.width * picture.height
    except Exception:  # a broken file can raise almost anything
        return 0


def _read_ahead(
    jobs: Iterable[_Job], outputs: Outputs, sources: dict[str, str], pool: ThreadPoolExecutor, workers: int
) -> Iterator[tuple[_Job, _Picture]]:
    """Read pictures in threads, in order, as far ahead as workers and pixels allow."""
    waiting: deque[tuple[_Job, Future[_Picture]]] = deque()
    for job in jobs:
        while waiting and (
            len(waiting) > 2 * workers or job.pixels + sum(one.pixels for one, _ in waiting) > AHEAD_PIXELS
        ):
            first, future = waiting.popleft()
            yield first, future.result()
            del future
        waiting.append((job, pool.submit(_read, job, outputs, sources)))
    while waiting:
        first, future = waiting.popleft()
        yield first, future.result()
        del future


def _read(job: _Job, outputs: Outputs, sources: dict[str, str]) -> _Picture:
    """Read a picture, or the labels that are kept from an earlier call."""
    if job.read is None:
        return _Picture(error=job.error)
    try:
        labels = outputs.existing_labels(job.name)
        if labels is None:
            return _Picture(image=job.read())
    except UserError as error:
        return _Picture(error=str(error))
    other = sources.get(printable(job.name), job.source)
    if other != job.source:
        return _Picture(
            error=f"'{job.source}' would overwrite the outputs of '{other}': choose another --out, or give --overwrite."
        )
    return _Picture(labels=labels)


def _predict(predictor: Predictor, image: np.ndarray, outputs: Outputs, name: str) -> np.ndarray:
    """The label values (H, W) of an image; its probabilities are written on the way, if they are requested."""
    if outputs.probabilities:
        return outputs.label_values[outputs.write_probabilities(name, _bands(predictor, image), *image.shape[:2])]
    with _prediction_errors():
        return outputs.label_values[predictor.labels(image)]


def _bands(predictor: Predictor, image: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    with _prediction_errors():
        yield from predictor.probabilities(image)


@contextlib.contextmanager
def _prediction_errors() -> Iterator[None]:
    """Raise the errors of the predictor as `PredictionError`, unlike those of writing."""
    try:
        yield
    except UserError as error:
        raise PredictionError(str(error)) from error


@contextlib.contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A thread pool that at the end finishes what it has begun, and after an error begins nothing else."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _pixels(pending: Iterable[_Write]) -> int:
    return sum(write.pixels for write in pending)
