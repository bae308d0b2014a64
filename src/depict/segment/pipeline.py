"""From picture files to label maps, overlays, probabilities and a summary, a few pictures ahead of the network.

Threads decode and encode (Pillow lets others run meanwhile) while the calling thread predicts. The pixels that wait on
either side are bounded, so memory stays flat however many and however large the pictures are. Needs no torch.
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
from depict.segment.inputs import Input, video_frames
from depict.segment.outputs import Outputs, Row, readable
from depict.viz.overlays import label_shares

AHEAD_PIXELS = 48 << 20
"""Pixels of the pictures that wait for the network, and of those that wait to be written: 144 MB each."""


class PredictionError(UserError):
    """The predictor refuses a picture; unlike a full disk, that concerns this picture only."""


class Job(NamedTuple):
    """A picture to be read: a file, or a frame of a video."""

    name: str
    source: str
    order: tuple[int, int]
    """Number of the input, and of the frame."""
    pixels: int
    read: Callable[[], np.ndarray]


def segment_all(
    predictor: Predictor,
    inputs: Sequence[Input],
    outputs: Outputs,
    workers: int,
    rank: int = 0,
    world: int = 1,
    sources: dict[str, str] | None = None,
) -> Iterator[Row]:
    """Segment this process's share of the inputs and write the outputs; gives one row of the summary for each picture.

    A picture that cannot be read or predicted gives a row with status "failed" and its error. `sources` tells which
    file the outputs that exist were made of: those of another file are not taken for this one's.
    """
    table = outputs.table
    jobs = _jobs(inputs, rank, world)
    with contextlib.ExitStack() as stack:
        reader, writer = (stack.enter_context(_threads(workers)) for _ in range(2))
        writing: deque[tuple[Row, int, Future[None]]] = deque()
        for job, found in _ahead(jobs, lambda job: _prepare(job, outputs, sources or {}), reader, workers):
            row: Row = {"name": readable(job.name), "source": job.source, "order": job.order}
            if isinstance(found, UserError):
                yield row | {"status": "failed", "error": readable(str(found))}
                continue
            if found.ndim == 2:
                yield row | {"status": "kept"} | outputs.describe(found, label_shares(found, outputs.shown))
                continue
            try:
                if outputs.probabilities:
                    bands = _bands(predictor, found)
                    labels = table[outputs.write_probabilities(job.name, bands, *found.shape[:2])]
                else:
                    labels = table[_labels(predictor, found)]
            except PredictionError as error:
                yield row | {"status": "failed", "error": f"'{job.source}': {readable(str(error))}"}
                continue
            shares = label_shares(labels, outputs.shown)
            row |= {"status": "written"} | outputs.describe(labels, shares)
            while writing and (len(writing) > workers or sum(w[1] for w in writing) + labels.size > AHEAD_PIXELS):
                yield _written(writing)
            writing.append((row, labels.size, writer.submit(outputs.write, job.name, found, labels, shares)))
            del found, labels
        while writing:
            yield _written(writing)


def _jobs(inputs: Sequence[Input], rank: int, world: int) -> Iterator[Job]:
    """Every world-th picture, and every world-th frame of each video."""
    turn = 0
    for number, one in enumerate(inputs):
        source = readable(one.path)
        if one.video:
            yield from _frames(one, source, number, rank, world)
        else:
            if turn % world == rank:
                yield Job(one.name, source, (number, 0), _pixels(one.path), partial(read_image, one.path))
            turn += 1


def _frames(video: Input, source: str, number: int, rank: int, world: int) -> Iterator[Job]:
    last = 0
    try:
        for last, image in video_frames(video.path, rank, world):
            name = f"{video.name}/{last:06d}"
            yield Job(name, source, (number, last), image.size // 3, partial(_same, image))
    except UserError as error:
        if rank == 0:
            yield Job(f"{video.name}/{last + 1:06d}", source, (number, last + 1), 0, partial(_refuse, error))


def _same(image: np.ndarray) -> np.ndarray:
    return image


def _refuse(error: UserError) -> np.ndarray:
    raise error


def _pixels(path: Path) -> int:
    """From the header alone; 0 if it cannot be read, which is told later."""
    if not path.is_file():
        return 0
    try:
        with Image.open(path) as picture:
            return picture.width * picture.height
    except Exception:  # a broken file can raise almost anything
        return 0


def _prepare(job: Job, outputs: Outputs, sources: dict[str, str]) -> np.ndarray | UserError:
    """The picture (H, W, 3); or the labels (H, W) that are kept; or why there is neither."""
    try:
        kept = outputs.existing(job.name)
        other = sources.get(readable(job.name), job.source)
        if kept is not None and other != job.source:
            return UserError(
                f"'{job.source}' would go where the outputs of '{other}' are: give another --out, or --overwrite."
            )
        return job.read() if kept is None else kept
    except UserError as error:
        return error


def _ahead(
    jobs: Iterable[Job],
    prepare: Callable[[Job], np.ndarray | UserError],
    pool: ThreadPoolExecutor,
    workers: int,
) -> Iterator[tuple[Job, np.ndarray | UserError]]:
    """Prepare jobs in threads, in order, so far ahead as workers and pixels allow."""
    waiting: deque[tuple[Job, Future[np.ndarray | UserError]]] = deque()
    for job in jobs:
        while waiting and (
            len(waiting) > 2 * workers or job.pixels + sum(one.pixels for one, _ in waiting) > AHEAD_PIXELS
        ):
            first, future = waiting.popleft()
            yield first, future.result()
            del future
        waiting.append((job, pool.submit(prepare, job)))
    while waiting:
        first, future = waiting.popleft()
        yield first, future.result()


@contextlib.contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that finish what they are at when the block ends, and start nothing else if it ended badly."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _written(writing: deque[tuple[Row, int, Future[None]]]) -> Row:
    row, _, future = writing.popleft()
    future.result()
    return row


def _labels(predictor: Predictor, image: np.ndarray) -> np.ndarray:
    try:
        return predictor.labels(image)
    except UserError as error:
        raise PredictionError(str(error)) from error


def _bands(predictor: Predictor, image: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    try:
        yield from predictor.probabilities(image)
    except UserError as error:
        raise PredictionError(str(error)) from error
