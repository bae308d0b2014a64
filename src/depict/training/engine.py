"""Hugging Face Accelerate under the loop: device, precision and tracker, and sums over all processes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from depict.config.schema import TrainConfig
from depict.devices import KINDS, best_device, kept_memory, lost_process_errors
from depict.errors import UserError


@contextlib.contextmanager
def running_engine(settings: TrainConfig, out: Path) -> Iterator[Accelerator]:
    """Accelerate with the device, precision and tracker of the settings; shut down afterwards."""
    accelerator = start_engine(settings, out)
    # Confident attention has probabilities below 1e-38 (denormals), on which a CPU is slow: the
    # backward pass took 8 times as long. They count as 0 in this thread and those that it starts.
    torch.set_flush_denormal(True)
    try:
        with lost_process_errors(), kept_memory() if accelerator.device.type == "cpu" else contextlib.nullcontext():
            yield accelerator
    finally:
        torch.set_flush_denormal(False)
        accelerator.end_training()
        AcceleratorState._reset_state()  # so that the next training in this process may choose another precision


def start_engine(settings: TrainConfig, out: Path) -> Accelerator:
    """Start Accelerate, or say why it cannot run with these settings on this machine."""
    device, best = settings.device or best_device(), best_device()
    if device not in KINDS:
        raise UserError(f"--device must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, not '{device}'.")
    if device not in ("cpu", best):
        raise UserError(f"this machine has no device '{device}': leave --device out to use '{best}'.")
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if device == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    if precision == "fp16" and device == "cpu":
        raise UserError("fp16 needs a GPU: use --precision fp32 or bf16 on a CPU.")
    tracker = None if settings.tracker == "none" else settings.tracker
    if tracker and importlib.util.find_spec(tracker) is None:
        raise UserError(f"--tracker {tracker} needs the package '{tracker}': pip install {tracker}.")
    accelerator = Accelerator(
        cpu=device == "cpu",
        mixed_precision="no" if precision == "fp32" else precision,
        log_with=tracker,
        project_dir=out,
    )
    started = int(os.environ.get("WORLD_SIZE", 1))
    if accelerator.num_processes != started:
        raise UserError(f"{started} processes were started but Accelerate formed {accelerator.num_processes}.")
    return accelerator


def is_sharded(accelerator: Accelerator, averaged: bool) -> bool:
    """Whether FSDP shards the prepared model; refused if it was requested in vain, or with a moving average."""
    sharded = "FSDP" in str(accelerator.distributed_type)
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" and not sharded:
        raise UserError("FSDP was requested, but Accelerate did not shard the model: it does so on GPUs only.")
    if sharded and averaged:
        raise UserError("a moving average (--ema) of a model that is sharded by FSDP is not supported.")
    return sharded


def share_buffers(accelerator: Accelerator, model: nn.Module) -> None:
    """Give all processes the buffers of the first: each updates the statistics of BatchNorm on its own images."""
    if accelerator.num_processes > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, 0)


def global_sum(accelerator: Accelerator, share: float) -> float:
    """The sum of a number over all processes."""
    return float(accelerator.reduce(torch.tensor(float(share), device=accelerator.device)))
