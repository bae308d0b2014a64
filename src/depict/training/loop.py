"""The training loop. Accelerate runs it on one device, on many, or on many machines; the loop stays ours.

Everything random is a function of (seed, iteration), so a training that was killed goes on from its last state and ends
with the same weights. The cross-entropy is normalized by the valid pixels of the whole step, so it does not depend on
how a step is divided among processes or pieces; Dice and Lovász are taken piece by piece, and do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from tqdm import tqdm

from depict.config.resolve import resolve
from depict.config.schema import Config
from depict.data.check import quick_check
from depict.data.dataset import IGNORE, Dataset
from depict.data.loading import Batch, Schedule, training_batches
from depict.data.transforms import Augmentation
from depict.devices import best_device
from depict.errors import UserError
from depict.evaluation import Result, evaluate, sliding_window_for
from depict.io.yaml import to_dict
from depict.model import SegmentationModel
from depict.runs import LAST, WEIGHTS, Metrics, State, check_same, lock_run, save_config, save_tensors
from depict.training import losses
from depict.training.feature_cache import FeatureBatch, feature_batches, open_cache
from depict.training.optim import MovingAverage, all_finite, create_optimizer, learning_rate, set_rate

LOG_EVERY = 10
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class InterruptedTraining(KeyboardInterrupt):
    """Training was asked to stop; its state is saved."""


def train(config: Config, out: Path) -> Result | None:
    """Train into the run folder `out`, or go on there; gives the last validation (None when it was finished before)."""
    config, training, validation = resolve(config)
    accelerator = start_engine(config, out)
    # Attention that is sure of itself has probabilities below 1e-38, on which a CPU is slow: its backward took 8 times
    # as long. They count as 0 from here on, in this thread and those that it starts.
    torch.set_flush_denormal(True)
    try:
        with lock_run(out) if accelerator.is_main_process else contextlib.nullcontext():
            if accelerator.is_main_process:
                check_same(out, config)
                quick_check(training)
                quick_check(validation)
            accelerator.wait_for_everyone()
            return _Trainer(config, out, accelerator, training, validation).run()
    finally:
        torch.set_flush_denormal(False)
        accelerator.end_training()
        AcceleratorState._reset_state()  # or the next training in this process could not choose its precision


def start_engine(config: Config, out: Path) -> Accelerator:
    """Accelerate on the device asked for; refuses to run alone where several processes were started."""
    device = config.train.device
    if device not in (None, "cpu", "cuda", "mps"):
        raise UserError(f"--device must be cpu, cuda or mps, not '{device}'.")
    best = best_device()
    device = device or best
    if device != "cpu" and device != best:
        raise UserError(f"there is no '{device}' here; this machine has '{best}'.")
    precision = config.train.precision
    if precision == "auto":
        precision = "bf16" if device == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    if precision == "fp16" and device == "cpu":
        raise UserError("fp16 needs a GPU: --precision fp32 or bf16 on a CPU.")
    tracker = None if config.train.tracker == "none" else config.train.tracker
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


class _Trainer:
    """One training, from the first step or from a saved one to the last."""

    def __init__(
        self, config: Config, out: Path, accelerator: Accelerator, training: Dataset, validation: Dataset
    ) -> None:
        self.config, self.out, self.accelerator = config, out, accelerator
        self.settings = config.train
        self.training, self.validation = training, validation
        self.main = accelerator.is_main_process
        torch.manual_seed(config.seed)
        self.model = SegmentationModel(config, training.classes, training.palette).to(accelerator.device)
        self.config = self.model.config
        if self.settings.checkpointing:
            self.model.encoder.vit.set_grad_checkpointing()
        self.schedule = Schedule(
            len(training),
            int(self.settings.batch or 1),
            int(self.settings.epochs or 1),
            config.seed,
            accelerator.process_index,
            accelerator.num_processes,
        )
        self.total = len(self.schedule)
        self.per_epoch = self.schedule.steps_per_epoch
        self.weight = self._class_weights()
        self.extra = {"ce": None, "ce+dice": losses.dice, "ce+lovasz": losses.lovasz}[self.settings.loss]
        # With cached features the encoder has done its work before the first step.
        self.cache = (
            open_cache(self.model, training, device=accelerator.device) if self.settings.cache_features else None
        )
        trained: nn.Module = self.model.decoder if self.cache else self.model
        optimizer = create_optimizer(trained, self.settings, float(self.settings.lr or 0))
        self.average = MovingAverage(self.model, self.settings.ema) if self.settings.ema else None
        network = torch.compile(trained) if self.settings.compile else trained
        self.network, self.optimizer = accelerator.prepare(network, optimizer)
        self.sharded = "FSDP" in str(accelerator.distributed_type)
        if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" and not self.sharded:
            raise UserError("FSDP was asked for, but Accelerate did not shard the model: it does so on GPUs only.")
        if self.sharded and self.average:
            raise UserError("a moving average (--ema) of a model that is sharded by FSDP is not supported.")
        self.state = State(out)
        self.iteration, self.saved, self.best, self.best_iteration, self.since_best = 0, 0, -1.0, 0, 0
        self.stopping = 0

    def run(self) -> Result | None:
        """Train to the end."""
        self._restore()
        if self.iteration >= self.total:
            self._say(f"'{self.out}' is finished: best mIoU {100 * self.best:.2f} % at step {self.best_iteration}.")
            return None
        if self.main:
            save_config(self.model, self.out)
            self.metrics = Metrics(self.out, self.iteration)
            self._say(yaml.safe_dump(to_dict(self.config), sort_keys=False, default_flow_style=None).rstrip())
        if self.settings.tracker != "none":
            self.accelerator.init_trackers("depict", config={"run": str(self.out)})
        bar = tqdm(total=self.total, initial=self.iteration, unit="step", desc=self.out.name, disable=not self.main)
        with self._stop_signals(), bar:
            return self._loop(bar)

    def _loop(self, bar: tqdm) -> Result | None:
        result, since, images = None, time.perf_counter(), 0
        self.network.train()
        for batch in self._batches():
            rate = learning_rate(self.iteration, self.total, float(self.settings.lr or 0), self.settings.warmup)
            loss = self._step(batch, rate)
            self.iteration += 1
            epoch_ends = self.iteration % self.per_epoch == 0
            last = self.iteration == self.total
            images += min(
                self.schedule.batch, len(self.training) - (self.iteration - 1) % self.per_epoch * self.schedule.batch
            )
            if self.iteration % LOG_EVERY == 0 or last:
                speed = images / (time.perf_counter() - since)
                bar.set_postfix(loss=f"{loss:.3f}", lr=f"{rate:.1e}", images_s=f"{speed:.1f}")
                self._log(loss=loss, lr=rate, images_per_second=round(speed, 2))
                since, images = time.perf_counter(), 0
            bar.update()
            epoch = self.iteration // self.per_epoch
            if last or (epoch_ends and epoch % int(self.settings.validate_every or 1) == 0):
                result = self._validate(bar)
                since, images = time.perf_counter(), 0
                if self.settings.patience and self.since_best >= self.settings.patience:
                    bar.write(f"no better mIoU in {self.since_best} validations: stopped.", file=sys.stderr)
                    self.iteration = self.total
                    last = True
            stopped = self._agreed_to_stop()
            if last:
                self._write_last()
            if last or stopped or self.iteration % (self.settings.save_every or self.per_epoch) == 0:
                self._save()
            if stopped and not last:
                raise InterruptedTraining(
                    f"stopped after step {self.iteration} of {self.total}; the same command goes on."
                )
            if last:
                break
        return result

    def _step(self, batch: Batch | FeatureBatch, rate: float) -> float:
        """One optimization step on this process's share; gives the loss of the whole step."""
        accelerator = self.accelerator
        # Dropout and drop-path draw from a generator that depends on the step alone: there is nothing to restore.
        source = np.random.SeedSequence((self.config.seed, accelerator.process_index, self.iteration))
        torch.manual_seed(int(source.generate_state(1, np.uint64)[0]))
        set_rate(self.optimizer, rate)
        inputs, labels = self._inputs(batch)
        valid = labels[labels != IGNORE]
        pixels = valid.numel() if self.weight is None else self.weight[valid.long()].sum()
        count = max(self._global(float(pixels)), 1.0)
        images = self._global(len(batch.indices)) if self.extra else 1.0
        pieces = list(zip(*(t.chunk(self.settings.grad_accum) for t in (inputs, labels)), strict=True))
        total = torch.zeros((), device=labels.device)
        for piece, (part, targets) in enumerate(pieces):
            last = piece == len(pieces) - 1
            with contextlib.nullcontext() if last else accelerator.no_sync(self.network):
                grid = batch.grid if isinstance(batch, FeatureBatch) else None
                masks = self.network(part, grid) if grid else self.network(part, full_size=False)
                summed, _ = losses.cross_entropy(masks, targets, self.model.patch_size, self.weight)
                loss = summed / count
                if self.extra:
                    loss = loss + self.extra(masks, targets, self.model.patch_size) * (len(part) / images)
                total += loss.detach()
                # Processes average their gradients; times their number, that is the sum we want.
                accelerator.backward(loss * accelerator.num_processes)
        value = self._global(float(total))
        if not math.isfinite(value):
            self._give_up(batch, f"the loss became {value}")
        if self.settings.clip_grad is not None:
            accelerator.clip_grad_norm_(self.network.parameters(), self.settings.clip_grad)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average:
            self.average.update()
        # A finite loss does not promise a finite update; found here, it is neither saved nor blamed on the next images.
        if self._global(0.0 if all_finite(self._plain_optimizer(), self.average) else 1.0):
            self._give_up(batch, "the weights became inf or nan")
        return value

    def _global(self, share: float) -> float:
        """The sum of a number over all processes."""
        return float(self.accelerator.reduce(torch.tensor(float(share), device=self.accelerator.device)))

    def _inputs(self, batch: Batch | FeatureBatch) -> tuple[Tensor, Tensor]:
        """Images or features, and labels, on the device; an empty share becomes one image without labels."""
        inputs = batch.tokens if isinstance(batch, FeatureBatch) else batch.images
        labels = batch.labels
        if not len(inputs):
            inputs = inputs.new_zeros(1, *inputs.shape[1:])
            labels = labels.new_full((1, *labels.shape[1:]), IGNORE)
        device = self.accelerator.device
        return inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def _batches(self) -> Iterator[Batch | FeatureBatch]:
        schedule, data = dataclasses.replace(self.schedule, start=self.iteration), self.config.data
        if self.cache:
            return feature_batches(self.cache, schedule, data.flip, self.settings.cache_crop)
        augmentation = Augmentation(
            int(data.short_edge or 0),
            float(data.max_aspect or 1),
            self.model.image_size,
            self.model.mean,
            self.model.std,
            data.scale_range,
            data.color_jitter,
            data.flip,
        )
        pin = self.accelerator.device.type == "cuda"
        return training_batches(self.training, augmentation, schedule, data.workers, pin)

    def _validate(self, bar: tqdm) -> Result | None:
        if self.sharded:
            return None
        published = self.validation.recipe.stride
        stride = published and min(published, *self.model.image_size)
        sliding = sliding_window_for(self.model, self.validation, stride=stride)
        with self._weights():
            result = evaluate(
                self.model,
                self.validation,
                sliding,
                self.accelerator.process_index,
                self.accelerator.num_processes,
            )
            self.since_best += 1
            score = 0.0 if math.isnan(result.miou) else result.miou  # no labeled pixel at all
            if score > self.best:
                self.best, self.best_iteration, self.since_best = score, self.iteration, 0
                if self.main:
                    save_tensors(self.model.state_dict(), self.out / WEIGHTS)
        self.network.train()
        mark = " (best so far)" if self.best_iteration == self.iteration else ""
        if self.main:
            bar.write(f"{self.out.name}, step {self.iteration}: mIoU {100 * result.miou:.2f} %{mark}", file=sys.stderr)
        scores = {"miou": result.miou, "macc": result.macc, "aacc": result.aacc}
        self._log(**{name: None if math.isnan(value) else value for name, value in scores.items()})
        return result

    def _weights(self) -> contextlib.AbstractContextManager[None]:
        """The weights that are evaluated and kept: the moving average where there is one."""
        return self.average or contextlib.nullcontext()

    def _log(self, **values: Any) -> None:
        if self.main:
            processes = self.accelerator.num_processes
            self.metrics.write(
                iteration=self.iteration, epoch=self.iteration / self.per_epoch, processes=processes, **values
            )
        if self.settings.tracker != "none":
            self.accelerator.log(values, step=self.iteration)

    def _write_last(self) -> None:
        """Write the weights after the last step; of a sharded model, which is not validated, the only ones."""
        if self.sharded:
            tensors: Any = get_model_state_dict(self.network, options=FULL)
            if self.main:
                save_tensors(tensors, self.out / LAST)
                save_tensors(tensors, self.out / WEIGHTS)
        elif self.main:
            with self._weights():
                save_tensors(self.model.state_dict(), self.out / LAST)

    def _save(self) -> None:
        values = {
            "iteration": self.iteration,
            "best": self.best,
            "best_iteration": self.best_iteration,
            "since_best": self.since_best,
            "network": get_model_state_dict(self.network, options=FULL),
            "optimizer": get_optimizer_state_dict(self.network, self._plain_optimizer(), options=FULL),
            "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler else None,
            "average": self.average.values if self.average else None,
        }
        if self.main:
            self.state.save(values)
        self.saved = self.iteration
        self.accelerator.wait_for_everyone()

    def _restore(self) -> None:
        values = self.state.load()
        found = gather_object([values["iteration"] if values else 0])
        if len(set(found)) > 1:
            raise UserError(f"'{self.out}' is not the same folder for all processes: it must lie on a shared disk.")
        if values is None:
            return
        set_model_state_dict(self.network, values["network"], options=FULL)
        set_optimizer_state_dict(self.network, self._plain_optimizer(), values["optimizer"], options=FULL)
        if values["scaler"] and self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(values["scaler"])
        if self.average:
            self.average.values = {name: value.to(self.accelerator.device) for name, value in values["average"].items()}
        self.iteration = self.saved = values["iteration"]
        self.best = values["best"]
        self.best_iteration, self.since_best = values["best_iteration"], values["since_best"]

    def _plain_optimizer(self) -> torch.optim.Optimizer:
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _give_up(self, batch: Batch | FeatureBatch, what: str) -> None:
        names = gather_object([self.training.name_of(int(index)) for index in batch.indices])
        kept = f"keeps the state after step {self.saved}" if self.saved else "had no state saved yet"
        raise UserError(
            f"{what} at step {self.iteration + 1}, with the images {', '.join(names)}; '{self.out}' {kept}. "
            "Another --out with a lower --lr, --clip-grad 1 or a --warmup may help."
        )

    @contextlib.contextmanager
    def _stop_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the training after the step at work, with its state saved; twice at once."""

        def stop(number: int, _: object) -> None:
            if self.stopping and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stopping = number

        listening = threading.current_thread() is threading.main_thread()  # signals are told to no other
        numbers = (signal.SIGINT, signal.SIGTERM) if listening else ()
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _agreed_to_stop(self) -> bool:
        """Whether any process was asked to stop."""
        return bool(self._global(1.0 if self.stopping else 0.0))

    def _class_weights(self) -> Tensor | None:
        if self.settings.class_weights == "none":
            return None
        counts = torch.zeros(len(self.training.classes), dtype=torch.float64)
        for index in tqdm(range(len(self.training)), desc="counting classes", unit="image", disable=not self.main):
            labels = self.training.read(index)[1]
            counts += torch.bincount(labels[labels != IGNORE].long(), minlength=len(counts))
        found = counts > 0
        weight = torch.where(found, counts[found].median() / counts.clamp(min=1), torch.ones(())).float()
        return weight.to(self.accelerator.device)

    def _say(self, text: str) -> None:
        if self.main:
            print(text, file=sys.stderr)
