"""Ending a training early without losing its work."""

from __future__ import annotations

import os
import select
import signal
import threading
from types import FrameType
from typing import Any


class InterruptedTraining(KeyboardInterrupt):
    """A training was stopped by a signal; its state is saved."""


class StopSignals:
    """Ctrl-C, SIGTERM and a closed terminal (SIGHUP) set `requested`, for the loop to stop after the current step.

    A second Ctrl-C stops at once. A signal that is ignored, as SIGHUP under nohup, stays ignored.
    A context manager that restores the former handlers. Only the main thread may set handlers; in
    other threads it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self.former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            names = [signal.SIGINT, signal.SIGTERM]
            if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                names.append(signal.SIGHUP)
            self.former = {name: signal.signal(name, self._request) for name in names}
        return self

    def __exit__(self, *_: object) -> None:
        for name, handler in self.former.items():
            signal.signal(name, handler)

    def _request(self, number: int, _: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if number not in (signal.SIGINT, signal.SIGTERM):
            _leave_closed_terminal()
        self.requested = True


def _leave_closed_terminal() -> None:
    """Print to nowhere if the terminal is gone: a failing print would end the training before it is saved."""
    for output in (1, 2):
        poll = select.poll()
        poll.register(output, select.POLLOUT)
        if any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0)):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, output)
            os.close(nowhere)
