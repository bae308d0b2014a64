"""Pictures and their results, kept in memory for some minutes: found by a name that cannot be guessed."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from depict.web.jobs import Job
from depict.web.segmentation import Segmentation

if TYPE_CHECKING:
    from depict.web.unrolled import Unrolled

KEEP = 600.0
"""Seconds that a result is kept after its last use."""
MEMORY = 512 << 20
"""Bytes of all uploads and results; beyond it the least recently used are dropped."""


@dataclass(eq=False)
class Picture:
    """One upload and what was computed of it so far, by the index of the run."""

    upload: bytes
    job: Job = field(init=False)
    """Its analysis."""
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    seen: float = field(default_factory=time.monotonic)
    segmentations: dict[int, Segmentation] = field(default_factory=dict)
    unrolled: dict[int, Unrolled] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        segmented = sum(result.bytes for result in list(self.segmentations.values()))
        return len(self.upload) + segmented + sum(result.bytes for result in list(self.unrolled.values()))


class Store:
    """The pictures of all clients. All methods run on the event loop."""

    def __init__(self) -> None:
        self._pictures: dict[str, Picture] = {}

    def __len__(self) -> int:
        return len(self._pictures)

    def add(self, picture: Picture) -> None:
        """Keep a new picture."""
        self._pictures[picture.id] = picture
        self.sweep()

    def get(self, id: str) -> Picture | None:
        """The picture with this name, which now is the most recent one; None if it was forgotten."""
        picture = self._pictures.get(id)
        if picture is not None:
            picture.seen = time.monotonic()
            picture.job.touch()
        return picture

    def remove(self, id: str) -> Picture | None:
        """Forget a picture."""
        return self._pictures.pop(id, None)

    def sweep(self) -> None:
        """Forget what is old, what nobody waits for, and what does not fit into the memory; the newest one stays."""
        now = time.monotonic()
        for picture in list(self._pictures.values()):
            unwanted = not picture.job.done.done() and picture.job.gone()
            if unwanted or picture.job.done.cancelled() or now - picture.seen > KEEP:
                picture.job.dropped = True
                del self._pictures[picture.id]
        finished = sorted((p for p in self._pictures.values() if p.job.done.done()), key=lambda p: p.seen)
        total = sum(picture.bytes for picture in self._pictures.values())
        for picture in finished[:-1]:
            if total <= MEMORY:
                break
            total -= picture.bytes
            del self._pictures[picture.id]
