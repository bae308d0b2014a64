"""Find out what is wrong with a data set before training does: from headers (quick), or by reading every pixel."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from depict.data.dataset import IGNORE, Dataset, unwrap
from depict.data.pairs import DataError, FileDataset, check_mask_format, opened, size_error, upright_size
from depict.errors import UserError
from depict.terminal import progress_bar

SHOWN = 10
"""Problems of one kind, and unseen classes, that the text report lists; the JSON has all of them."""


def quick_check(dataset: Dataset) -> None:
    """Raise an error for the first file that is missing, unreadable or of the wrong size, from headers alone.

    Runs before every training and evaluation, at some thousand pairs per second; of a subset only its own samples are
    checked. The first sample is read completely, because masks of a wrong format are mostly wrong in all files.
    """
    full, indices = unwrap(dataset)
    if isinstance(full, FileDataset):
        for problem in full.problems:
            if problem.kind not in ("extra", "missing"):
                raise problem
        for index in indices:
            full.paths(index)  # a missing mask is reported at once, before any file is opened
        with ThreadPoolExecutor(8) as pool:
            for error in pool.map(lambda index: _header_error(full, index), indices):
                if error is not None:
                    raise error
    dataset.read(0)


def _header_error(dataset: FileDataset, index: int) -> UserError | None:
    try:
        image_path, mask_path = dataset.paths(index)
        with opened(image_path) as image:
            image_size = upright_size(image)
        if mask_path is None:
            return None
        with opened(mask_path) as mask:
            check_mask_format(mask_path, mask)
            if image_size != mask.size:
                return size_error(image_path, image_size, mask_path, mask.size)
    except UserError as error:
        return error
    return None


@dataclass
class Report:
    """What reading one split completely has found."""

    data: str
    split: str
    labeled: bool
    classes: tuple[str, ...]
    samples: int
    problems: list[DataError] = field(default_factory=list)
    pixels: np.ndarray = field(default_factory=lambda: np.zeros(256, np.int64))
    """Pixels of each label; [255] are the ignored ones."""
    images: np.ndarray = field(default_factory=lambda: np.zeros(256, np.int64))
    """Images in which each label occurs."""
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(width, height) -> images."""

    @property
    def usable(self) -> bool:
        """Whether training or prediction makes sense: extra files do no harm, any other problem stops it."""
        sound = all(problem.kind == "extra" for problem in self.problems)
        return sound and (not self.labeled or self._seen >= min(self._needed, len(self.classes)))

    @property
    def _seen(self) -> int:
        return int((self.pixels[:IGNORE] > 0).sum())

    @property
    def _needed(self) -> int:
        """A decoder has nothing to learn from images of a single class."""
        return 2 if self.split == "train" else 1

    @property
    def unseen(self) -> list[str]:
        """Classes without a single pixel."""
        return [name for name, count in zip(self.classes, self.pixels, strict=False) if count == 0]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values."""
        labeled = max(1, int(self.pixels[:IGNORE].sum()))
        return {
            "data": self.data,
            "split": self.split,
            "labeled": self.labeled,
            "usable": self.usable,
            "samples": self.samples,
            "read": int(sum(self.sizes.values())),
            "sizes": [{"width": w, "height": h, "images": n} for (w, h), n in self.sizes.most_common()],
            "problems": [{"kind": problem.kind, "message": str(problem)} for problem in self.problems],
            "classes": [
                {"name": name, "pixels": int(pixels), "share": int(pixels) / labeled, "images": int(images)}
                for name, pixels, images in zip(self.classes, self.pixels, self.images, strict=False)
            ],
            "ignored_pixels": int(self.pixels[IGNORE]),
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The report as text."""
        read = sum(self.sizes.values())
        yield f"{self.data}, {self.split}: {read} of {self.samples} images readable{' with their masks' * self.labeled}"
        if read:
            areas = sorted(self.sizes, key=lambda size: size[0] * size[1])
            smallest, largest = ("x".join(map(str, size)) for size in (areas[0], areas[-1]))
            yield f"  sizes: {smallest}" + (f" to {largest}" if len(areas) > 1 else "")
        if read and self.labeled:
            yield from self._table()
            if self.unseen:
                others = f" and {len(self.unseen) - SHOWN} more" if len(self.unseen) > SHOWN else ""
                yield f"  without a single pixel: {', '.join(self.unseen[:SHOWN])}{others}"
        kinds = Counter(problem.kind for problem in self.problems)
        for kind, count in kinds.items():
            yield f"  {kind}: {count}" + (" (harmless)" if kind == "extra" else "")
            messages = [str(problem) for problem in self.problems if problem.kind == kind]
            yield from (f"    {message}" for message in messages[:SHOWN])
            if count > SHOWN:
                yield f"    ... and {count - SHOWN} more"
        if self.labeled and self._seen == 1 < min(self._needed, len(self.classes)):
            yield "  only one class has pixels: black-and-white masks need `values: [0, 255]` in classes.yaml"
            yield "  training would learn nothing"
        elif self.labeled:
            yield f"  {'ready for training' if self.usable else 'training would fail'}"
        else:
            yield f"  no ground truth: {'ready for prediction' if self.usable else 'prediction would fail'}"

    def _table(self) -> Iterator[str]:
        labeled = max(1, int(self.pixels[:IGNORE].sum()))
        width = max(map(len, (*self.classes, "class", "ignored")))
        yield f"  {'':>3} {'class':<{width}} {'pixels':>15} {'share':>8} {'images':>8}"
        for label, name in enumerate(self.classes):
            share = f"{100 * self.pixels[label] / labeled:.2f} %"
            yield f"  {label:>3} {name:<{width}} {self.pixels[label]:>15,} {share:>8} {self.images[label]:>8,}"
        share = f"{100 * self.pixels[IGNORE] / max(1, self.pixels.sum()):.2f} %"
        yield f"  {'':>3} {'ignored':<{width}} {self.pixels[IGNORE]:>15,} {share:>8} {self.images[IGNORE]:>8,}"


def check_dataset(dataset: Dataset, workers: int = 0, progress: bool = False) -> Report:
    """Read every sample, in this process or in `workers` others, and count labels and problems."""
    report = Report(dataset.name, dataset.split, dataset.labeled, dataset.classes, len(dataset))
    if isinstance(dataset, FileDataset):
        report.problems += [problem for problem in dataset.problems if problem.kind != "missing"]
    inspected = _inspect_all(dataset, workers)
    options = {"total": len(dataset), "unit": "image", "disable": None if progress else True}
    for sample in progress_bar(inspected, f"{dataset.name} {dataset.split}", **options):
        if isinstance(sample, DataError):
            report.problems.append(sample)
        else:
            size, counts = sample
            report.sizes[size] += 1
            report.pixels += counts
            report.images += counts > 0
    return report


Inspected = tuple[tuple[int, int], np.ndarray] | DataError
"""((width, height), pixels of each label (256,)) of one sample, or what is wrong with it."""


def inspect_sample(dataset: Dataset, index: int) -> Inspected:
    """Read one sample and count its labels."""
    try:
        _, labels = dataset.read(index)
    except DataError as error:
        return error
    return (labels.shape[1], labels.shape[0]), np.bincount(labels.numpy().ravel(), minlength=256)


def _inspect_all(dataset: Dataset, workers: int) -> Iterator[Inspected]:
    indices = range(len(dataset))
    if workers < 1:
        yield from (inspect_sample(dataset, index) for index in indices)
        return
    # New processes: forking one that already runs torch's threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_set_dataset, initargs=(dataset,)) as pool:
        yield from pool.map(_inspect_in_worker, indices, chunksize=max(1, min(32, len(indices) // (4 * workers))))


_dataset: Dataset
"""The data set of a worker process, sent once instead of with every index."""


def _set_dataset(dataset: Dataset) -> None:
    global _dataset
    _dataset = dataset


def _inspect_in_worker(index: int) -> Inspected:
    return inspect_sample(_dataset, index)
