"""The queue: bounded, in order, without those who left."""

import asyncio
import threading

import pytest

from depict.web import jobs as module
from depict.web.jobs import BusyError, GivenUpError, Jobs


def run(scenario):
    """Run a coroutine function with a queue of one worker."""

    async def main():
        jobs = Jobs(1)
        try:
            await asyncio.wait_for(scenario(jobs), 30)
        finally:
            await asyncio.to_thread(jobs.close)

    asyncio.run(main())


def test_jobs_run_one_after_the_other_in_order_and_know_their_position():
    async def scenario(jobs):
        gate, order = threading.Event(), []
        first = jobs.submit(lambda job: gate.wait() and order.append(1))
        second = jobs.submit(lambda job: order.append(2))
        third = jobs.submit(lambda job: order.append(3))
        await asyncio.sleep(0)
        assert [jobs.position(job) for job in (first, second, third)] == [0, 1, 2]
        gate.set()
        await asyncio.gather(first.done, second.done, third.done)
        assert order == [1, 2, 3]
        assert jobs.position(third) == 0

    run(scenario)


def test_a_full_queue_says_when_to_come_back(monkeypatch):
    monkeypatch.setattr(module, "WAITING", 2)

    async def scenario(jobs):
        gate = threading.Event()
        submitted = [jobs.submit(lambda job: gate.wait()) for _ in range(3)]  # one runs, two wait
        with pytest.raises(BusyError, match="busy: try again in 3 s") as refused:
            jobs.submit(lambda job: None)
        assert refused.value.retry_after == 3
        gate.set()
        await asyncio.gather(*(job.done for job in submitted))
        await jobs.submit(lambda job: None).done

    run(scenario)


def test_uploads_that_wait_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(module, "WAITING_BYTES", 100)

    async def scenario(jobs):
        gate = threading.Event()
        first = jobs.submit(lambda job: gate.wait(), size=60)
        with pytest.raises(BusyError):
            jobs.submit(lambda job: None, size=41)
        second = jobs.submit(lambda job: None, size=40)
        gate.set()
        await asyncio.gather(first.done, second.done)

    run(scenario)


def test_a_client_that_is_not_seen_is_forgotten_and_its_work_never_begins(monkeypatch):
    async def scenario(jobs):
        gate, worked = threading.Event(), []
        first = jobs.submit(lambda job: gate.wait())
        left, stays = jobs.submit(worked.append), jobs.submit(lambda job: worked.append("stays"))
        await asyncio.sleep(0)
        left.seen -= 2 * module.GONE
        gate.set()
        await stays.done
        assert worked == ["stays"]
        assert left.done.cancelled()
        assert first.done.done()

    run(scenario)


def test_running_work_stops_when_its_client_leaves_or_it_takes_too_long():
    async def scenario(jobs):
        for leave in (lambda job: setattr(job, "dropped", True), lambda job: setattr(job, "started", -1e9)):
            began, gate = threading.Event(), threading.Event()

            def work(job, began=began, gate=gate):
                began.set()
                gate.wait()
                job.proceed("the next stage")

            job = jobs.submit(work)
            await asyncio.to_thread(began.wait)
            leave(job)
            gate.set()
            with pytest.raises(GivenUpError):
                await job.done

    run(scenario)


def test_an_error_reaches_the_client_and_the_next_job_runs():
    async def scenario(jobs):
        failed, next_job = jobs.submit(lambda job: 1 / 0), jobs.submit(lambda job: "fine")
        with pytest.raises(ZeroDivisionError):
            await failed.done
        assert await next_job.done == "fine"

    run(scenario)
