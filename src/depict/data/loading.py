"""The images of every step, on every process, and the workers that load them."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from depict.data.dataset import Dataset
from depict.data.transforms import Augmentation, sample_generator
from depict.errors import UserError


class Batch(NamedTuple):
    """One process's share of a step; it may be empty in the last step of an epoch."""

    images: torch.Tensor
    """float32 (B, 3, h, w), normalized."""
    labels: torch.Tensor
    """uint8 (B, h, w), 255 = ignored."""
    indices: torch.Tensor
    """int64 (B,): which samples of the data set."""


@dataclass(frozen=True)
class Schedule:
    """The order of images in a training, a function of (seed, epoch, step, rank): resume and sharding in one.

    Iterating yields, for every step from `start` on, the list of (epoch, index) that `rank` works
    on. The shares of all ranks together are the step's batch, for any number of ranks; an epoch's
    last batch may be smaller.
    """

    images: int
    batch: int
    epochs: int
    seed: int = 0
    rank: int = 0
    world: int = 1
    start: int = 0

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, including the last partial one."""
        return math.ceil(self.images / self.batch)

    def batch_size(self, iteration: int) -> int:
        """The images of a step over all ranks."""
        return min(self.batch, self.images - iteration % self.steps_per_epoch * self.batch)

    def __len__(self) -> int:
        return max(0, self.epochs * self.steps_per_epoch - self.start)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order, ordered = np.empty(0, np.int64), -1
        for iteration in range(self.start, self.epochs * self.steps_per_epoch):
            epoch, step = divmod(iteration, self.steps_per_epoch)
            if epoch != ordered:
                order, ordered = np.random.default_rng((self.seed, epoch)).permutation(self.images), epoch
            chosen = order[step * self.batch : (step + 1) * self.batch]
            yield [(epoch, int(index)) for index in chosen[self.rank :: self.world]]


def training_batches(
    dataset: Dataset,
    augmentation: Augmentation,
    schedule: Schedule,
    workers: int = 2,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """Every batch of `schedule`, augmented by `workers` processes (0: by this one) a few batches ahead.

    The batches do not depend on the number of workers. A file that cannot be read raises its
    `UserError` here.
    """
    loader = DataLoader(
        _Examples(dataset, augmentation, schedule.seed),
        batch_sampler=schedule,
        num_workers=workers,
        collate_fn=_Collate(augmentation.crop),
        pin_memory=pin_memory,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_leave_signals_to_the_training,
        # Without one of its own, the loader would draw from the generator that the model uses.
        generator=torch.Generator(),
    )
    for batch in loader:
        if isinstance(batch, UserError):
            raise batch
        yield batch


def _leave_signals_to_the_training(worker: int) -> None:
    """In a worker: survive signals that a terminal or a scheduler sends to all processes of a training.

    The training saves its state first, and then ends its workers, by SIGTERM if need be.
    """
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # it tells who sent a signal; macOS and Windows do not have it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_the_training, daemon=True).start()


def _end_with_the_training() -> None:
    """End this worker at the SIGTERM of its training, and at no other."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


class _Examples(TorchDataset):
    """Augmented samples by (epoch, index)."""

    def __init__(self, dataset: Dataset, augmentation: Augmentation, seed: int) -> None:
        self.dataset, self.augmentation, self.seed = dataset, augmentation, seed

    def __getitem__(self, key: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, int] | UserError:
        epoch, index = key
        try:
            image, labels = self.dataset.read(index)
        except UserError as error:  # raised in a worker it would arrive wrapped in a traceback
            return error
        return (*self.augmentation(image, labels, sample_generator(self.seed, epoch, index)), index)


@dataclass
class _Collate:
    """Examples to a batch, which may be empty; the first error instead of a batch."""

    crop: tuple[int, int]

    def __call__(self, examples: list[tuple[torch.Tensor, torch.Tensor, int] | UserError]) -> Batch | UserError:
        loaded = []
        for example in examples:
            if isinstance(example, UserError):
                return example
            loaded.append(example)
        if not loaded:
            return Batch(
                torch.empty(0, 3, *self.crop),
                torch.empty(0, *self.crop, dtype=torch.uint8),
                torch.empty(0, dtype=torch.int64),
            )
        images, labels, indices = zip(*loaded, strict=True)
        return Batch(torch.stack(images), torch.stack(labels), torch.tensor(indices))
