"""Which processes are at work together, and where this one computes. Imports torch only when it must."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from depict.errors import UserError

KINDS = ("cpu", "cuda", "mps")
"""Devices of which torch tells what is wrong; to other names it answers with a list of all backends ever."""


@contextlib.contextmanager
def processes() -> Iterator[tuple[int, int, int]]:
    """Rank, number of processes, and rank on this machine, joined to the others if torchrun started us."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world == 1:
        yield 0, 1, 0
        return

    import torch.distributed

    torch.distributed.init_process_group()
    try:
        yield torch.distributed.get_rank(), world, int(os.environ.get("LOCAL_RANK", 0))
        torch.distributed.barrier()  # a process that leaves early closes connections that others still read from
    finally:
        torch.distributed.destroy_process_group()


def best_device() -> str:
    """cuda, mps or cpu: the first that this machine has."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def find_device(name: str | None, local: int = 0) -> str:
    """The device asked for, or the best there is; each process on a machine takes its own GPU."""
    import torch

    if name is None:
        best = best_device()
        return f"cuda:{local}" if best == "cuda" else best
    try:
        torch.zeros(1, device=name).add(1).item()  # some devices, such as meta, take tensors but compute nothing
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0].removesuffix(".")
        way_out = f"{reason}. Leave --device out for the best there is."
        if name.partition(":")[0] not in KINDS:
            way_out = "choose cpu, cuda, cuda:N or mps."
        raise UserError(f"the device '{name}' cannot be used here: {way_out}") from error
    return name
