"""A bounded queue: at most k jobs at once in threads, a limited number waiting, none for clients that are gone.

All methods run on the event loop; only `Job.work` runs in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

WAITING = 32
"""Jobs that may wait."""
WAITING_BYTES = 256 << 20
"""Bytes of uploads that may wait or be worked on."""
GONE = 15.0
"""Seconds without a sign of the client after which it is forgotten."""
LONGEST = 120.0
"""Seconds after which a job is given up."""


class BusyError(Exception):
    """The queue is full; `retry_after` seconds from now there is probably room."""

    def __init__(self, retry_after: int):
        super().__init__(f"the server is busy: try again in {retry_after} s.")
        self.retry_after = retry_after


class GivenUpError(Exception):
    """The client of a job is gone, or the job takes too long."""


class Job:
    """One piece of work and what is known about it. `done` is a future of its result."""

    def __init__(self, work: Callable[[Job], Any], size: int):
        self.work, self.size = work, size
        self.stage = "waiting"
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_retrieve)
        self.seen = time.monotonic()
        """When the client last polled."""
        self.started: float | None = None
        self.dropped = False

    def touch(self) -> None:
        """The client still wants the result."""
        self.seen = time.monotonic()

    def gone(self) -> bool:
        """Whether nobody wants the result anymore."""
        return self.dropped or time.monotonic() - self.seen > GONE

    def proceed(self, stage: str | None = None) -> None:
        """Called by the work: names what comes next, and raises if there is no point in continuing."""
        if self.gone():
            raise GivenUpError("nobody waits for this picture anymore.")
        if self.started is not None and time.monotonic() - self.started > LONGEST:
            raise GivenUpError(f"this picture took more than {LONGEST:.0f} s: use a smaller one.")
        self.stage = stage or self.stage


class Jobs:
    """The queue."""

    def __init__(self, workers: int):
        self.workers = workers
        self.waiting: list[Job] = []
        self.running: set[Job] = set()
        self.seconds = 1.0
        """A job takes about this long: a moving average."""
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="depict")
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, work: Callable[[Job], Any], size: int = 0) -> Job:
        """Queue `work`, which holds `size` bytes of an upload. Raises BusyError if too many wait."""
        self._forget_gone()
        held = sum(job.size for job in (*self.waiting, *self.running))
        if len(self.waiting) >= WAITING or held + size > WAITING_BYTES:
            raise BusyError(self.retry_after())
        job = Job(work, size)
        self.waiting.append(job)
        self._start()
        return job

    def position(self, job: Job) -> int:
        """How many jobs are before this one; 0 if it is being worked on or done."""
        return self.waiting.index(job) + 1 if job in self.waiting else 0

    def drop(self, job: Job) -> None:
        """Nobody wants the result: a waiting job is removed, a running one stops at its next stage."""
        job.dropped = True
        self._forget_gone()

    def retry_after(self) -> int:
        """Seconds until the jobs that wait now are done, roughly; between 1 and 60."""
        expected = self.seconds * (len(self.waiting) + 1) / self.workers
        return int(min(60, max(1, round(expected))))

    def close(self) -> None:
        """Drop everything and wait for the threads."""
        for job in (*self.waiting, *self.running):
            job.dropped = True
        self._forget_gone()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _forget_gone(self) -> None:
        for job in self.waiting:
            if job.gone():
                job.done.cancel()
        self.waiting = [job for job in self.waiting if not job.done.cancelled()]

    def _start(self) -> None:
        self._forget_gone()
        while self.waiting and len(self.running) < self.workers:
            job = self.waiting.pop(0)
            self.running.add(job)
            task = asyncio.get_running_loop().create_task(self._run(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Job) -> None:
        job.started = time.monotonic()
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._pool, job.work, job)
        except Exception as error:
            job.done.set_exception(error)
        else:
            self.seconds += 0.2 * (time.monotonic() - job.started - self.seconds)
            job.done.set_result(result)
        finally:
            self.running.discard(job)
            self._start()


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Mark an error as seen: whoever waits gets it, and if nobody does, it does not matter."""
    if not done.cancelled():
        done.exception()
