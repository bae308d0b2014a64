"""The training loop, on one device, on several, or on several machines through Accelerate.

Everything random is a function of (seed, iteration). So a training that was killed resumes from its
last saved state and ends with the same weights. The cross-entropy is normalized by the valid pixels
of the whole step and does not depend on how a step is divided among processes or pieces; neither does
the matching loss, a mean over images. Dice and Lovász are computed piece by piece and do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from depict.config.resolve import ResolvedConfig, resolve
from depict.config.schema import Config
from depict.data.check import quick_check
from depict.data.dataset import IGNORE, Dataset
from depict.data.fingerprint import fingerprint
from depict.data.loading import Batch, Schedule, training_batches
from depict.data.transforms import Augmentation
from depict.errors import UserError
from depict.evaluation import Result, evaluate, few_images_warning, validation_window_for
from depict.model import SegmentationModel
from depict.runs import CURVES, LAST, PREVIEW, WEIGHTS, check_data, check_same, lock_run, save_config, save_tensors
from depict.training import losses
from depict.training.checkpoint import Checkpoint, Progress, check_encoder, read_progress
from depict.training.class_weights import balanced_weights
from depict.training.engine import global_sum, is_sharded, running_engine, share_buffers
from depict.training.feature_builder import encoder_sketch, open_cache
from depict.training.feature_cache import FeatureBatch, feature_batches
from depict.training.init import init_from
from depict.training.log import Log, say, settings_text
from depict.training.optim import all_finite, create_optimizer, learning_rate, set_rate
from depict.training.preview import Preview
from depict.training.start import start_from_data
from depict.training.state import load_state, recover_state
from depict.training.stopping import InterruptedTraining, StopSignals
from depict.training.window_cache import WindowCache

EXTRA_LOSSES = {"ce": None, "ce+dice": losses.dice, "ce+lovasz": losses.lovasz}


def train(config: Config, out: Path, accept_data_change: bool = False) -> Result | None:
    """Train into the run folder `out`, or resume there; `accept_data_change`: even if the data have changed.

    Returns the validation of the kept model, which is the best one. None if the run was finished
    before, or if the model is sharded: then nothing is validated.
    """
    experiment = resolve(config)
    with running_engine(experiment.config.train, out) as accelerator:
        main = accelerator.is_main_process
        with lock_run(out) if main else contextlib.nullcontext():
            if main:
                check_same(out, experiment.config)
                quick_check(experiment.training)
                quick_check(experiment.validation)
                present = fingerprint(experiment.training, experiment.validation)
                for warning in (check_data(out, present, accept_data_change), recover_state(out)):
                    if warning:
                        say(accelerator, warning)
            accelerator.wait_for_everyone()
            state = load_state(out)
            progress = read_progress(out, state)
            if progress.finished and progress.epochs >= experiment.config.train.epochs:
                best, at = 100 * progress.best_score, progress.best_iteration
                score = f"best mIoU {best:.2f} % at step {at}" if at else "not validated"
                say(accelerator, f"'{out}' is finished: {score}.")
                return None
            trainer = Trainer(*experiment, out, accelerator, state, progress)
            del state  # it is restored, and as large as the weights and the optimizer
            return trainer.run()


class Trainer:
    """One training, from its first step or from a saved one to the last."""

    def __init__(
        self,
        config: ResolvedConfig,
        training: Dataset,
        validation: Dataset,
        out: Path,
        accelerator: Accelerator,
        state: dict[str, Any] | None,
        progress: Progress,
    ) -> None:
        self.config, self.settings, self.out, self.accelerator = config, config.train, out, accelerator
        self.training, self.validation = training, validation
        self.main, device = accelerator.is_main_process, accelerator.device
        torch.manual_seed(config.seed)
        self.model = SegmentationModel(config, training.classes, training.palette).to(device)
        # With cached features the state has no encoder.
        cached = self.settings.cache_features
        init = self.settings.init if state is None or cached else None
        self.init_text = init_from(self.model, init) if init else None
        encoder = encoder_sketch(self.model) if cached else None
        if encoder is not None and state is not None:
            check_encoder(out, state, encoder)
        if self.settings.checkpointing:
            self.model.encoder.set_grad_checkpointing()
        rank, world = accelerator.process_index, accelerator.num_processes
        self.schedule = Schedule(
            len(training), self.settings.batch, self.settings.epochs, config.seed, rank=rank, world=world
        )
        self.total, self.per_epoch = len(self.schedule), self.schedule.steps_per_epoch
        balanced = self.settings.class_weights == "balanced"
        self.class_weights = balanced_weights(training, self.main).to(device) if balanced else None
        self.extra_loss = EXTRA_LOSSES[self.settings.loss]
        # With cached features the encoder has done its work before the first step.
        self.cache = open_cache(self.model, training, mirrored=config.data.flip) if cached else None
        self.windows = WindowCache(self.model) if cached else None
        trained: nn.Module = self.model.head() if self.cache else self.model
        self.start_text = None
        if self.settings.start == "data" and state is None:
            # Every process looks at the same images, so that all start with the same classes.
            batches = self._batches(dataclasses.replace(self.schedule, rank=0, world=1))
            self.start_text = start_from_data(self.model, trained, batches, self.main)
        optimizer = create_optimizer(trained, self.settings, self.settings.lr)
        self.average = ModelEmaV3(self.model, self.settings.ema) if self.settings.ema else None
        network = torch.compile(trained) if self.settings.compile else trained
        self.network, self.optimizer = accelerator.prepare(network, optimizer)
        self.sharded = is_sharded(accelerator, averaged=self.average is not None)
        self.checkpoint = Checkpoint(out, accelerator, self.network, self.optimizer.optimizer, self.average, encoder)
        self.progress = progress
        if state is not None:
            self.checkpoint.restore(state)

    def run(self) -> Result | None:
        """Train to the end; returns the validation of the kept model."""
        resumed = self.progress.iteration > 0
        if resumed and self.progress.epochs < self.settings.epochs:
            self._extend()
        self.progress.epochs = self.settings.epochs
        if self.main:
            save_config(self.model, self.out)
        say(self.accelerator, settings_text(self.config))
        for text in filter(None, () if resumed else (self.init_text, self.start_text)):
            say(self.accelerator, text)
        if warning := few_images_warning(self.validation):
            say(self.accelerator, warning)
        say(self.accelerator, f"redrawn at each validation: {self.out / CURVES} and {self.out / PREVIEW}")
        log = Log(
            self.out, self.accelerator, self.settings.tracker, self.progress.iteration, self.total, self.per_epoch
        )
        with StopSignals() as self.stop_signals, log as self.log, self.windows or contextlib.nullcontext():
            last = self._train()
        self._say_what_is_kept(last)
        return self.progress.best_result

    def _extend(self) -> None:
        """Prepare a finished run for more epochs: it continues with the rates of the longer schedule."""
        progress, epochs = self.progress, self.settings.epochs
        if not progress.finished:
            raise UserError(
                f"'{self.out}' is not finished: resume it with --epochs {progress.epochs}, then extend it to {epochs}."
            )
        progress.finished, progress.since_best = False, 0
        rate = learning_rate(progress.iteration, self.total, self.settings.lr, self.settings.warmup)
        say(
            self.accelerator,
            f"extending '{self.out}' from {progress.epochs} to {epochs} epochs: step {progress.iteration + 1} has the "
            f"learning rate {rate:.1e} that it has in a training of {epochs} epochs.",
        )

    def _train(self) -> Result | None:
        """All steps that are left; returns the last validation."""
        progress, settings = self.progress, self.settings
        result = None
        self.network.train()
        rehearsed = self.sharded or self.accelerator.num_processes == 1
        for batch in self._batches(dataclasses.replace(self.schedule, start=progress.iteration)):
            if not rehearsed:
                self._rehearse(batch)
                rehearsed = True
            rate = learning_rate(progress.iteration, self.total, settings.lr, settings.warmup)
            loss = self._step(batch, rate)
            self.log.step(progress.iteration + 1, loss, rate, self.schedule.batch_size(progress.iteration))
            progress.iteration += 1
            last = progress.finished = progress.iteration == self.total
            if last or progress.iteration % (settings.validate_every * self.per_epoch) == 0:
                result = self._validate()
                if settings.patience and progress.since_best >= settings.patience:
                    say(self.accelerator, f"stopped: no better mIoU in {progress.since_best} validations.")
                    progress.finished = last = True
            stopped = self._stop_requested()
            if last:
                self._save_last_weights()
            if last or stopped or progress.iteration % (settings.save_every or self.per_epoch) == 0:
                self.checkpoint.save(progress)
            if last:
                break
            if stopped:
                raise InterruptedTraining(
                    f"stopped after step {progress.iteration} of {self.total}; the same command resumes."
                )
        return result

    def _batches(self, schedule: Schedule) -> Iterator[Batch | FeatureBatch]:
        """The batches of a schedule."""
        data = self.config.data
        if self.cache:
            return feature_batches(self.cache, schedule, data.flip, self.settings.cache_crop)
        augmentation = Augmentation(
            data.short_edge,
            data.max_aspect,
            self.model.image_size,
            self.model.mean,
            self.model.std,
            data.scale_range,
            data.color_jitter,
            data.flip,
        )
        pin_memory = self.accelerator.device.type == "cuda"
        return training_batches(self.training, augmentation, schedule, data.workers, pin_memory)

    def _step(self, batch: Batch | FeatureBatch, rate: float) -> float:
        """One optimization step on this process's share of a batch; returns the loss of the whole batch."""
        # Dropout and drop-path draw from a generator that depends on the step alone, so there is
        # none to restore.
        source = np.random.SeedSequence((self.config.seed, self.accelerator.process_index, self.progress.iteration))
        torch.manual_seed(int(source.generate_state(1, np.uint64)[0]))
        set_rate(self.optimizer, rate)
        loss = global_sum(self.accelerator, self._backward(batch))
        if not math.isfinite(loss):
            self._give_up(batch, f"the loss became {loss}")
        if self.settings.clip_grad is not None:
            self.accelerator.clip_grad_norm_(self.network.parameters(), self.settings.clip_grad)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average:
            self.average.update(self.model)
        # A finite loss may still give an infinite update. Found here, it is neither saved nor
        # blamed on the next batch.
        averaged = self.average.module.state_dict().values() if self.average else ()
        if global_sum(self.accelerator, not all_finite(self.checkpoint.optimizer, averaged)):
            self._give_up(batch, "the weights became inf or nan")
        return loss

    def _rehearse(self, batch: Batch | FeatureBatch) -> None:
        """Compute a gradient and drop it, so that the steps of every sitting add gradients in the same order.

        DistributedDataParallel sums gradients in buckets, and rearranges these after its first
        backward pass. With three or more processes, the place of a number in its bucket decides in
        which order the processes' shares of it are added, and so how the sum is rounded.
        """
        buffers = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        self._backward(batch)
        self.optimizer.zero_grad(set_to_none=True)
        for buffer, before in buffers:
            buffer.copy_(before)

    def _backward(self, batch: Batch | FeatureBatch) -> float:
        """Accumulate the gradient of the whole batch's loss over the pieces of this process's share.

        Returns the part of the loss that the share contributes.
        """
        inputs, labels = self._inputs(batch)
        grid = (batch.grid,) if isinstance(batch, FeatureBatch) else ()
        full_size = {} if grid else {"full_size": False}
        pixels = losses.every_nth_pixel(self.settings.loss_every)
        seen = labels[:, pixels[0], pixels[1]]
        valid = seen[seen != IGNORE]
        weight = valid.numel() if self.class_weights is None else float(self.class_weights[valid.long()].sum())
        all_pixels = max(global_sum(self.accelerator, weight), 1.0)
        all_images = max(global_sum(self.accelerator, len(batch.indices)), 1.0)
        pieces = list(zip(*(t.chunk(self.settings.grad_accum) for t in (inputs, labels)), strict=True))
        total = torch.zeros((), device=labels.device)
        for number, (part, targets) in enumerate(pieces, 1):
            last = number == len(pieces)
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.network):
                outputs = self.network(part, *grid, **full_size)
                loss = self._loss(outputs, targets, pixels, all_pixels, len(part) / all_images)
                total += loss.detach()
                # Processes average their gradients; times their number, that is the sum.
                self.accelerator.backward(loss * self.accelerator.num_processes)
        return float(total)

    def _loss(self, outputs: Any, labels: Tensor, pixels: losses.Pixels, all_pixels: float, share: float) -> Tensor:
        """What a piece adds to the loss of the whole step, of whose images it has this share."""
        model = self.model
        if model.decoder.owns_loss:
            return model.decoder.loss(outputs, labels, model.multiple) * share
        loss = losses.cross_entropy(outputs, labels, model.multiple, self.class_weights, pixels)[0] / all_pixels
        return loss + self.extra_loss(outputs, labels, model.multiple, pixels) * share if self.extra_loss else loss

    def _inputs(self, batch: Batch | FeatureBatch) -> tuple[Tensor, Tensor]:
        """Images or features, and labels, on the device; an empty share becomes one image without labels."""
        inputs = batch.tokens if isinstance(batch, FeatureBatch) else batch.images
        labels = batch.labels
        if not len(inputs):
            inputs = inputs.new_zeros(1, *inputs.shape[1:])
            labels = labels.new_full((1, *labels.shape[1:]), IGNORE)
        device = self.accelerator.device
        return inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def _validate(self) -> Result | None:
        """Evaluate on the validation images and keep the weights if they are the best so far."""
        if self.sharded:
            self.log.redraw_curves()
            return None
        model, progress = self._averaged_model(), self.progress
        share_buffers(self.accelerator, model)
        network = self.windows.network(model) if self.windows else None
        predictor = model.predictor(validation_window_for(model, self.validation), network=network)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        preview = Preview(self.validation)
        result = evaluate(predictor, self.validation, rank, world, watch=preview.watch)
        progress.since_best += 1
        score = 0.0 if math.isnan(result.miou) else result.miou  # nan if no pixel has a label
        best = score > progress.best_score
        if best:
            progress.best_score, progress.best_iteration, progress.best_result = score, progress.iteration, result
            progress.since_best = 0
            if self.main:
                save_tensors(model.state_dict(), self.out / WEIGHTS)
        self.log.validation(progress.iteration, result, best, preview)
        return result

    def _averaged_model(self) -> SegmentationModel:
        """The model that is evaluated and kept: the moving average if there is one."""
        return self.average.module if self.average else self.model

    def _save_last_weights(self) -> None:
        """Write the weights after the last step; they are also the kept ones of a sharded, never validated model."""
        if self.sharded:
            tensors = self.checkpoint.full_weights()
            if self.main:
                save_tensors(tensors, self.out / LAST)
                save_tensors(tensors, self.out / WEIGHTS)
        elif self.main:
            save_tensors(self._averaged_model().state_dict(), self.out / LAST)

    def _say_what_is_kept(self, last: Result | None) -> None:
        """Say which step the kept weights are of, since it need not be the last."""
        best = self.progress.best_result
        if best is None or last is None:
            text = f"{WEIGHTS} holds the weights of the last step, which are not validated."
        elif best is last:
            text = f"{WEIGHTS} holds the weights of the last step, which has the best validation:"
        else:
            text = (
                f"{WEIGHTS} holds the weights of step {self.progress.best_iteration}, which has the best validation "
                f"(below); {LAST} those of the last step (mIoU {100 * last.miou:.2f} %)."
            )
        say(self.accelerator, text)

    def _stop_requested(self) -> bool:
        """Whether any process received a signal to stop."""
        return bool(global_sum(self.accelerator, self.stop_signals.requested))

    def _give_up(self, batch: Batch | FeatureBatch, reason: str) -> None:
        names = gather_object([self.training.name_of(int(index)) for index in batch.indices])
        saved = self.progress.saved
        kept = f"keeps the state after step {saved}" if saved else "has no saved state yet"
        raise UserError(
            f"{reason} at step {self.progress.iteration + 1}, with the images {', '.join(names)}; '{self.out}' {kept}. "
            "Another --out with a lower --lr, --clip-grad 1 or a --warmup may help."
        )
