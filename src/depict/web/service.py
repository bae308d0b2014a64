"""What the routes do: analyze a picture once, answer questions about it, or segment it and forget it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from fastapi import Request

from depict.errors import UserError
from depict.terminal import say
from depict.web.jobs import BusyError, GivenUpError, Job, Jobs
from depict.web.runs import Run
from depict.web.segmentation import Segmentation, overlay_png, probabilities_npz, segment, summary
from depict.web.store import Picture, Store
from depict.web.uploads import RefusedError, Uploads, decode

Output = Literal["json", "labels", "overlay", "probabilities"]
WAIT = 60.0
"""Seconds that a request waits for its turn and its result."""
EXPIRED = "the server has forgotten this picture: send it again."


class UnreadableError(Exception):
    """A picture that cannot be decoded; the message is for the client."""


class Service:
    """The state of one server."""

    def __init__(self, runs: Sequence[Run], workers: int):
        self.runs = list(runs)
        self.jobs, self.store, self.uploads = Jobs(workers), Store(), Uploads()

    def add(self, upload: bytes) -> Picture:
        """Queue the analysis of a picture by all runs. Raises BusyError."""
        picture = Picture(upload)
        picture.job = self.jobs.submit(partial(self._analyze, picture), len(upload))
        self.store.add(picture)
        return picture

    def picture(self, id: str) -> Picture:
        """The picture with this name."""
        picture = self.store.get(id)
        if picture is None:
            raise RefusedError(404, EXPIRED)
        return picture

    def forget(self, id: str) -> None:
        """Drop a picture and its analysis."""
        picture = self.store.remove(id)
        if picture is not None:
            self.jobs.drop(picture.job)

    def segmentation(self, picture: Picture, index: int) -> tuple[Run, Segmentation]:
        """A run and its result."""
        if index not in picture.segmentations:
            raise RefusedError(404, "this picture has no result of that run (yet).")
        return self.runs[index], picture.segmentations[index]

    def _analyze(self, picture: Picture, job: Job) -> None:
        """Segment a picture with every run, then unroll the decoders: labels come first. Runs in a thread."""
        job.proceed("reading the picture")
        image = _decoded(picture.upload)
        for index, run in enumerate(self.runs):
            job.proceed("finding the classes")
            picture.segmentations[index] = segment(run.predictor, image, job.proceed)
        for index, run in enumerate(self.runs):
            if run.model is not None and run.has_steps:
                from depict.web.unrolled import unroll

                job.proceed("following the steps")
                picture.unrolled[index] = unroll(run.model, image, job.proceed)
        job.stage = "done"

    async def segment(self, request: Request, upload: bytes, run: Run, output: Output) -> Any:
        """Segment a picture and keep nothing: JSON values, or the bytes of a file."""

        def work(job: Job) -> Any:
            job.proceed("finding the classes")
            image = _decoded(upload)
            if output == "probabilities":
                return probabilities_npz(run.predictor, image)
            return make_output(run, segment(run.predictor, image, job.proceed), output, lambda: image)

        return await self.finish(request, self.jobs.submit(work, len(upload)))

    async def file(self, request: Request, picture: Picture, index: int, output: Output) -> Any:
        """A file of a kept picture to download."""
        run, result = self.segmentation(picture, index)

        def work(job: Job) -> Any:
            job.proceed("writing the file")
            if output == "probabilities":
                return probabilities_npz(run.predictor, _decoded(picture.upload))
            return make_output(run, result, output, lambda: _decoded(picture.upload))

        return await self.finish(request, self.jobs.submit(work))

    async def finish(self, request: Request, job: Job) -> Any:
        """The result of a job, unless its client leaves first. Raises RefusedError or BusyError."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + WAIT
        while not job.done.done():
            job.touch()
            await asyncio.wait([job.done], timeout=0.5)
            if not job.done.done() and (await request.is_disconnected() or loop.time() > latest):
                self.jobs.drop(job)
                raise BusyError(self.jobs.retry_after())
        if job.done.cancelled():
            raise BusyError(self.jobs.retry_after())
        problem = failure(job)
        if problem is not None:
            raise problem
        return job.done.result()


def make_output(run: Run, result: Segmentation, output: Output, image: Callable[[], np.ndarray]) -> Any:
    """JSON values, or the bytes of a PNG; `image` gives the picture where it is needed."""
    if output == "json":
        return {"run": run.name} | summary(run.predictor, result)
    return result.labels if output == "labels" else overlay_png(run.predictor, image(), result)


def failure(job: Job) -> RefusedError | None:
    """What a failed job answers. Only messages about the picture are shown: others may name files of the server."""
    error = None if job.done.cancelled() else job.done.exception()
    if error is None:
        return None
    if isinstance(error, UnreadableError):
        return RefusedError(422, str(error))
    if isinstance(error, GivenUpError):
        return RefusedError(503, str(error))
    say(*"".join(traceback.format_exception(error)).split("\n"), error=True)
    return RefusedError(500, "the model failed on this picture; the reason is in the server's log.")


def _decoded(upload: bytes) -> np.ndarray:
    try:
        return decode(upload)
    except UserError as error:
        raise UnreadableError(str(error)) from error
