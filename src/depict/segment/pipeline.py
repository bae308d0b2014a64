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
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from depict.errors import UserError
from depict.inference.predictors import Predictor
from depict.io.checksums import checksum, file_checksum
from depict.io.images import read_image
from depict.prediction import record_bands
from depict.segment.inputs import Input
from depict.segment.journal import Journal
from depict.segment.outputs import Kind, Outputs, confidence_levels, confidence_score, read_picture
from depict.segment.raster import is_raster, predict_labels, raster_facts, segment_raster
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
) -> Iterator[Row]:
    """Segment this process's share of the inputs and write the outputs; yields a row of the summary for each picture.

    A picture that cannot be read or predicted yields a row with status "failed" and its error, and so does one whose
    name is taken by the outputs of another. Outputs that the journal proves to be those of the picture are kept.
    """
    journal = Journal(outputs.folder, outputs.settings, rank)
    with _threads(workers) as readers, _threads(workers) as writers:
        pending: deque[_Write] = deque()
        for job, picture in _read_ahead(_jobs(inputs, rank, world), outputs, journal, readers, workers):
            row: Row = {"name": printable(job.name), "source": job.source, "order": job.order}
            if picture.error is not None:
                yield row | {"status": "failed", "error": printable(picture.error)}
            elif picture.labels is not None:
                shares = label_shares(picture.labels, outputs.shown)
                score = outputs.existing_score(job.name, job.kind)
                yield row | {"status": "kept"} | outputs.describe(picture.labels.shape, shares) | score
            elif picture.facts is not None:
                yield row | {"status": "kept"} | picture.facts
            elif job.kind == "raster":
                journal.begin(job.name, job.source)
                try:
                    facts = segment_raster(predictor, job.path, outputs, job.name)
                except UserError as error:
                    yield row | {"status": "failed", "error": f"'{job.source}': {printable(str(error))}"}
                    continue
                journal.finish(job.name, job.source, picture.content, outputs.files(job.name, job.kind).values())
                yield row | {"status": "written"} | facts
            elif picture.image is not None:
                journal.begin(job.name, job.source)
                try:
                    labels, levels = _predict(predictor, picture.image, outputs, job.name)
                except PredictionError as error:
                    yield row | {"status": "failed", "error": f"'{job.source}': {printable(str(error))}"}
                    continue
                shares = label_shares(labels, outputs.shown)
                row |= {"status": "written"} | outputs.describe(labels.shape, shares)
                if levels is not None:
                    row["confidence"] = confidence_score(levels)
                while pending and (len(pending) > workers or _pixels(pending) + labels.size > AHEAD_PIXELS):
                    yield pending.popleft().wait()
                done = writers.submit(_write, outputs, journal, job, picture, labels, shares, levels)
                pending.append(_Write(row, labels.size, done))
                del picture, labels, levels, done  # or they stay in memory while the next picture is awaited
        while pending:
            yield pending.popleft().wait()


class PredictionError(UserError):
    """The predictor refuses a picture. Unlike a full disk, this concerns only that picture."""


class _Job(NamedTuple):
    """A picture to be read: a file or a frame of a video."""

    name: str
    path: Path
    source: str
    order: tuple[int, int]
    """Index of the input, and number of the frame."""
    kind: Kind = "picture"
    pixels: int = 0
    read: Callable[[], np.ndarray] | None = None
    content: Callable[[], str] = str
    """Gives the checksum of the file or frame."""
    error: str | None = None
    """Why there is nothing to read."""


class _Picture(NamedTuple):
    """What reading gave: the image (H, W, 3), what an earlier call wrote, or an error; nothing for a raster."""

    image: np.ndarray | None = None
    content: str = ""
    """The checksum of what it was read from."""
    labels: np.ndarray | None = None
    """Labels (H, W) that are kept."""
    facts: dict[str, Any] | None = None
    """Entries in the summary of a raster that is kept."""
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
            job = _Job(entry.name, entry.path, printable(entry.path), (index, 0), error=entry.error)
            if entry.error is None:
                job = job._replace(content=partial(_file_content, entry.path))
            if entry.error is None and is_raster(entry.path):
                job = job._replace(kind="raster")
            elif entry.error is None:
                job = job._replace(pixels=_header_pixels(entry.path), read=partial(read_image, entry.path))
            yield job
        turn += 1


def _frames(video: Input, index: int, rank: int, world: int) -> Iterator[_Job]:
    """The frames of a video as jobs, then the error that ended it, if any."""
    source, number = printable(video.path), 0
    try:
        for number, image in video_frames(video.path, rank, world):
            pixels = image.shape[0] * image.shape[1]
            name, order = f"{video.name}/{number:06d}", (index, number)
            read, content = partial(np.asarray, image), partial(_frame_content, image)
            yield _Job(name, video.path, source, order, "frame", pixels, read, content)
    except UserError as error:
        if rank == 0:
            name, order = f"{video.name}/{number + 1:06d}", (index, number + 1)
            yield _Job(name, video.path, source, order, "frame", error=str(error))


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
    jobs: Iterable[_Job], outputs: Outputs, journal: Journal, pool: ThreadPoolExecutor, workers: int
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
        waiting.append((job, pool.submit(_read, job, outputs, journal)))
    while waiting:
        first, future = waiting.popleft()
        yield first, future.result()
        del future


def _read(job: _Job, outputs: Outputs, journal: Journal) -> _Picture:
    """Read a picture, or what is kept of it from an earlier call."""
    if job.error is not None:
        return _Picture(error=job.error)
    files = outputs.files(job.name, job.kind)
    try:
        content = job.content()  # before it is read: if it is changed in between, the next call notices
        kept = not outputs.overwrite and journal.keeps(job.name, job.source, content, files.values())
        if job.read is None:
            return _Picture(content=content, facts=raster_facts(job.path, outputs, job.name)[0] if kept else None)
        if kept and (labels := read_picture(files["labels"], ("P", "I;16"))) is not None:
            return _Picture(labels=labels)
        return _Picture(image=job.read(), content=content)
    except UserError as error:
        return _Picture(error=str(error))


def _file_content(path: Path) -> str:
    """The checksum of a file; that of anything else is not needed, since reading it fails."""
    try:
        return file_checksum(path) if path.is_file() else ""
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}.") from error


def _frame_content(image: np.ndarray) -> str:
    """The checksum of an image (H, W, 3)."""
    return checksum(str(image.shape).encode(), np.ascontiguousarray(image).data)


def _write(
    outputs: Outputs,
    journal: Journal,
    job: _Job,
    picture: _Picture,
    labels: np.ndarray,
    shares: dict[int, float],
    levels: np.ndarray | None,
) -> None:
    """Write the outputs of a picture, and note in the journal that they are complete."""
    assert picture.image is not None
    outputs.write(job.name, job.kind, picture.image, labels, shares, levels)
    journal.finish(job.name, job.source, picture.content, outputs.files(job.name, job.kind).values())


def _predict(
    predictor: Predictor, image: np.ndarray, outputs: Outputs, name: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """The label values (H, W) of an image, and its confidence levels uint8 (H, W), if they are requested.

    Its probabilities are written on the way, if they are requested.
    """
    if not outputs.probabilities:
        with _prediction_errors():
            labels, certain = predict_labels(predictor, image, outputs.confidence)
    else:
        labels, certain = np.empty(image.shape[:2], np.uint16), np.empty(image.shape[:2], np.float32)
        bands = record_bands(_bands(predictor, image), labels, certain)
        outputs.write_probabilities(name, bands, *image.shape[:2])
    levels = confidence_levels(certain) if outputs.confidence and certain is not None else None
    return outputs.label_values[labels], levels


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
