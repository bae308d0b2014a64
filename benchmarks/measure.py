"""Time and peak memory of one task, in its own process."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = 2


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """Most bytes that this process ever had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def alone(task: Callable[..., Any], *arguments: Any) -> Any:
    """Run `task(*arguments)` in a new process with THREADS threads and give its result."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, initializer=_threads) as pool:
        return pool.apply(task, arguments)


def best(call: Callable[[], Any], seconds: float = 1.0, least: int = 3) -> float:
    """Shortest time of one call, repeated for about `seconds`."""
    times: list[float] = []
    while len(times) < least or sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _threads() -> None:
    import torch

    torch.set_num_threads(THREADS)
