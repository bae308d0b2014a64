"""Results are kept for a while and within a memory bound."""

import asyncio

from depict.web import store as module
from depict.web.jobs import Job
from depict.web.store import Picture, Store


def finished(size: int) -> Picture:
    picture = Picture(bytes(size))
    picture.job = Job(lambda job: None, 0)
    picture.job.done.set_result(None)
    return picture


def in_loop(scenario):
    async def main():
        scenario()

    asyncio.run(main())


def test_names_cannot_be_guessed_and_are_found_again():
    def scenario():
        store, pictures = Store(), [finished(1) for _ in range(50)]
        for picture in pictures:
            store.add(picture)
        assert len({picture.id for picture in pictures}) == 50
        assert min(len(picture.id) for picture in pictures) >= 22
        assert store.get(pictures[7].id) is pictures[7]
        assert store.get("other") is None
        assert store.remove(pictures[7].id) is pictures[7]
        assert store.get(pictures[7].id) is None

    in_loop(scenario)


def test_beyond_the_memory_the_least_recently_used_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "MEMORY", 100)

    def scenario():
        store, (a, b, c) = Store(), (finished(40) for _ in range(3))
        for place, picture in enumerate((a, b)):
            store.add(picture)
            picture.seen -= 10 - place
        assert store.get(a.id) is a  # now b is the oldest
        store.add(c)
        assert [store.get(picture.id) is picture for picture in (a, b, c)] == [True, False, True]
        large = finished(1000)
        store.add(large)
        assert store.get(large.id) is large
        assert len(store) == 1

    in_loop(scenario)


def test_old_results_and_pictures_that_nobody_waits_for_are_forgotten():
    def scenario():
        store, old, waiting, left = Store(), finished(1), Picture(b"x"), Picture(b"x")
        waiting.job, left.job = Job(lambda job: None, 1), Job(lambda job: None, 1)
        for picture in (old, waiting, left):
            store.add(picture)
        old.seen -= module.KEEP + 1
        left.job.seen -= 1000
        store.sweep()
        assert [store.get(picture.id) for picture in (old, waiting, left)] == [None, waiting, None]
        assert left.job.dropped

    in_loop(scenario)
