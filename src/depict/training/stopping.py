"""Ending a training early without losing its work."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class InterruptedTraining(KeyboardInterrupt):
    """A training was stopped by a signal; its state is saved."""


class StopSignals:
    """Ctrl-C and SIGTERM set `requested`, for the loop to stop after the current step; a second Ctrl-C stops at once.

    A context manager that restores the former handlers. Only the main thread may set handlers; in
    other threads it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self.former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self.former = {name: signal.signal(name, self._request) for name in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for name, handler in self.former.items():
            signal.signal(name, handler)

    def _request(self, number: int, _: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
