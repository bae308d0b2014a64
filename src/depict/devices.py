"""Distributed processes, the device of the current one, and its memory. Imports torch only when needed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar

from depict.errors import UserError

KINDS = ("cpu", "cuda", "mps")
"""Devices for which torch explains what is wrong; for other names it lists all its backends."""

# Options of glibc's mallopt, and the defaults that it documents.
TRIM_THRESHOLD, MMAP_MAX = -1, -4
DEFAULT_TRIM_THRESHOLD, DEFAULT_MMAP_MAX = 128 << 10, 65536

_most_parameters: ContextVar[int | None] = ContextVar("most_parameters", default=None)


@contextlib.contextmanager
def processes() -> Iterator[tuple[int, int, int]]:
    """Rank, number of processes, and rank on this machine; joins the other processes if torchrun started them."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world == 1:
        yield 0, 1, 0
        return

    import torch.distributed

    torch.distributed.init_process_group()
    try:
        with lost_process_errors():
            yield torch.distributed.get_rank(), world, int(os.environ.get("LOCAL_RANK", 0))
            torch.distributed.barrier()  # a process that exits early closes connections that others still read from
    finally:
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def lost_process_errors() -> Iterator[None]:
    """One line instead of the traceback of a library if another process has ended while this one waits for it."""
    try:
        yield
    except RuntimeError as error:  # Gloo raises nothing more special
        if not any(library in str(error).lower() for library in ("gloo", "nccl")):
            raise
        raise UserError(
            "another process has ended, so this one cannot continue: its own message says why; start all of them again."
        ) from error


def best_device() -> str:
    """The first of cuda, mps and cpu that this machine has."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def find_device(name: str | None, local: int = 0) -> str:
    """The named device, or the best one; then each process on a machine gets its own GPU."""
    import torch

    if name is None:
        best = best_device()
        return f"cuda:{local}" if best == "cuda" else best
    try:
        torch.zeros(1, device=name).add(1).item()  # some devices, such as meta, accept tensors but do not compute
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0].removesuffix(".")
        advice = f"{reason}. Leave --device out to use the best one."
        if name.partition(":")[0] not in KINDS:
            advice = "choose cpu, cuda, cuda:N or mps."
        raise UserError(f"the device '{name}' cannot be used here: {advice}") from error
    return name


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """While the block runs, memory that tensors on the CPU free is kept for the next ones.

    By default glibc maps each tensor of more than 32 MB anew, and the kernel fills it with zeros: a sixth of the
    time of a training step (benchmarks/allocation.py). Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(MMAP_MAX, 0)
    mallopt(TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        mallopt(MMAP_MAX, DEFAULT_MMAP_MAX)
        mallopt(TRIM_THRESHOLD, DEFAULT_TRIM_THRESHOLD)
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def most_parameters(count: int) -> Iterator[None]:
    """While the block runs, `check_parameters` refuses more than `count`."""
    before = _most_parameters.set(count)
    try:
        yield
    finally:
        _most_parameters.reset(before)


def check_parameters(count: int, what: str) -> None:
    """Refuse to build a network of more parameters than are expected, or than fit into memory, before it is filled."""
    import torch

    if torch.get_default_device().type == "meta":  # which holds no values
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 40
    most = _most_parameters.get()
    if 4 * count > memory:
        raise UserError(f"{what} has {count:,} parameters, which do not fit into {memory / 1e9:.0f} GB of memory.")
    if most is not None and count > most:
        raise UserError(
            f"{what} has {count:,} parameters, far more than its file of weights: they do not belong together."
        )
