"""Everything that a training changes, saved to its folder and restored from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from depict.errors import UserError, is_out_of_memory
from depict.evaluation import Result
from depict.training.feature_builder import same_encoder
from depict.training.state import foreign_state, save_state

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass
class Progress:
    """How far a training has come."""

    iteration: int = 0
    """Steps done."""
    saved: int = 0
    """Steps done at the last save."""
    best_score: float = -1.0
    """mIoU of the best validation, in 0..1; ties go to the first."""
    best_iteration: int = 0
    best_result: Result | None = None
    since_best: int = 0
    """Validations after the best one."""
    epochs: int = 0
    """Length of the schedule that the steps followed."""
    finished: bool = False
    """Whether that schedule is done, or was ended early by --patience."""


@dataclass
class Checkpoint:
    """The state of a training in the run folder `out`. The parts are those that Accelerate prepared."""

    out: Path
    accelerator: Accelerator
    network: nn.Module
    optimizer: torch.optim.Optimizer
    """torch's own, without Accelerate's wrapper."""
    average: ModelEmaV3 | None
    encoder: Tensor | None = None
    """A sketch of the encoder of a training on cached features, whose weights are not in the state."""

    def save(self, progress: Progress) -> None:
        """Save the state; called by all processes, written by the first."""
        values = {
            "iteration": progress.iteration,
            "best_score": progress.best_score,
            "best_iteration": progress.best_iteration,
            "best_result": _packed(progress.best_result),
            "since_best": progress.since_best,
            "epochs": progress.epochs,
            "finished": progress.finished,
            "network": self.full_weights(),
            "optimizer": get_optimizer_state_dict(self.network, self.optimizer, options=FULL),
            "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler else None,
            "average": self.average.module.state_dict() if self.average else None,
            "encoder": self.encoder,
        }
        if self.accelerator.is_main_process:
            save_state(self.out, values)
        progress.saved = progress.iteration
        self.accelerator.wait_for_everyone()

    def restore(self, values: dict[str, Any]) -> None:
        """Restore the state that `load_state` returned."""
        with foreign_state_errors(self.out):
            self._restore(values)

    def _restore(self, values: dict[str, Any]) -> None:
        # torch takes an empty state for nothing to do, and does not compare the shapes in an
        # optimizer's. Only the first process gets full states of its own.
        own = self.full_weights(), get_optimizer_state_dict(self.network, self.optimizer, options=FULL)
        saved = values["network"], values["optimizer"]
        if self.accelerator.is_main_process and _names(*own) != _names(*saved):
            raise ValueError("a state of other parameters")
        set_model_state_dict(self.network, values["network"], options=FULL)
        set_optimizer_state_dict(self.network, self.optimizer, values["optimizer"], options=FULL)
        for parameter, buffers in self.optimizer.state.items():
            if any(torch.is_tensor(value) and value.shape not in ((), parameter.shape) for value in buffers.values()):
                raise ValueError("a state of other shapes")
        if values["scaler"] and self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(values["scaler"])
        if self.average:
            self.average.module.load_state_dict(values["average"])

    def full_weights(self) -> dict[str, Any]:
        """The weights of the trained network on the CPU, gathered if they are sharded."""
        return get_model_state_dict(self.network, options=FULL)


def check_encoder(out: Path, values: dict[str, Any], encoder: Tensor) -> None:
    """Refuse to resume on the features of another encoder than those of the state, before any are computed."""
    saved = values.get("encoder")
    if saved is not None and not (isinstance(saved, Tensor) and same_encoder(saved, encoder)):
        raise UserError(
            f"'{out}' was trained on the features of another encoder: restore the weights of "
            "--encoder.pretrained and --init, or choose another --out."
        )


def read_progress(out: Path, values: dict[str, Any] | None) -> Progress:
    """How far the training in `out` had come, by the state that `load_state` returned; called by all processes."""
    progress = Progress()
    with foreign_state_errors(out):
        if values is not None:
            progress = Progress(
                iteration=int(values["iteration"]),
                saved=int(values["iteration"]),
                best_score=float(values["best_score"]),
                best_iteration=int(values["best_iteration"]),
                best_result=_unpacked(values["best_result"]),
                since_best=int(values["since_best"]),
                epochs=int(values["epochs"]),
                finished=bool(values["finished"]),
            )
    if len(set(gather_object([progress.iteration]))) > 1:
        raise UserError(f"'{out}' is not the same folder for all processes: it must be on a shared disk.")
    return progress


@contextlib.contextmanager
def foreign_state_errors(out: Path) -> Iterator[None]:
    """One line for a state that does not fit the training in `out`, wherever that is noticed."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise foreign_state(out) from error


def _names(weights: dict[str, Any], memory: Any) -> tuple[set[str], set[str]]:
    """The names of the parameters in the states of a network and of its optimizer."""
    return set(weights), set(memory["state"])


def _packed(result: Result | None) -> dict[str, Any] | None:
    """A result as types that `torch.load(weights_only=True)` reads."""
    if result is None:
        return None
    arrays = {"confusion": torch.from_numpy(result.confusion), "boundary": torch.from_numpy(result.boundary)}
    return {"classes": list(result.classes), "images": result.images} | arrays


def _unpacked(values: dict[str, Any] | None) -> Result | None:
    if values is None:
        return None
    confusion, boundary = values["confusion"].numpy(), values["boundary"].numpy()
    return Result(tuple(values["classes"]), confusion, boundary, values["images"])
