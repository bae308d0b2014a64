"""What is wrong with a data set, before a training finds out: the headers alone (quick), or every pixel."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from depict.data.dataset import IGNORE, Dataset, Subset
from depict.data.pairs import DataError, FileDataset, check_mask, opened, size_error, upright_size
from depict.errors import UserError

SHOWN = 10
"""Problems of one kind, and classes unseen, that the text report spells out; the JSON has all of them."""


def quick_check(dataset: Dataset) -> None:
    """Raise one line about the first file that is missing, unreadable or of the wrong size, from headers alone.

    Runs before every training and evaluation: some thousand pairs per second. Of a subset only its own samples are
    looked at. The first one is read whole, because a wrong kind of mask is mostly wrong in all of them.
    """
    whole, indices = _unwrapped(dataset)
    if isinstance(whole, FileDataset):
        for problem in whole.problems:
            if problem.kind not in ("extra", "missing"):
                raise problem
        for index in indices:
            whole.paths(index)  # a missing mask is named at once, before any file is opened
        with ThreadPoolExecutor(8) as pool:
            for fault in pool.map(lambda index: _header_fault(whole, index), indices):
                if fault is not None:
                    raise fault
    dataset.read(0)


def _unwrapped(dataset: Dataset) -> tuple[Dataset, Sequence[int]]:
    """The data set below all subsets, and where in it the samples are."""
    indices: Sequence[int] = range(len(dataset))
    while isinstance(dataset, Subset):
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    return dataset, indices


def _header_fault(dataset: FileDataset, index: int) -> UserError | None:
    try:
        image_path, mask_path = dataset.paths(index)
        with opened(image_path) as image, opened(mask_path) as mask:
            check_mask(mask_path, mask)
            if upright_size(image) != mask.size:
                return size_error(image_path, upright_size(image), mask_path, mask.size)
    except UserError as error:
        return error
    return None


@dataclass
class Report:
    """What a whole reading of one split found."""

    data: str
    split: str
    classes: tuple[str, ...]
    samples: int
    problems: list[DataError] = field(default_factory=list)
    pixels: np.ndarray = field(default_factory=lambda: np.zeros(256, np.int64))
    """Pixels per label; [255] are the ignored ones."""
    images: np.ndarray = field(default_factory=lambda: np.zeros(256, np.int64))
    """Images per label in which it occurs."""
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(width, height) -> images."""

    @property
    def trainable(self) -> bool:
        """Whether training would run through: files left over do no harm, everything else stops it."""
        return all(problem.kind == "extra" for problem in self.problems) and self.pixels[:IGNORE].sum() > 0

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
            "trainable": bool(self.trainable),
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
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        read = sum(self.sizes.values())
        yield f"{self.data}, {self.split}: {self.samples} images, {read} read well with their masks"
        if read:
            areas = sorted(self.sizes, key=lambda size: size[0] * size[1])
            smallest, largest = ("x".join(map(str, size)) for size in (areas[0], areas[-1]))
            yield f"  sizes: {smallest}" + (f" to {largest}" if len(areas) > 1 else "")
            yield from self._table()
        if self.unseen and read:
            further = f" and {len(self.unseen) - SHOWN} more" if len(self.unseen) > SHOWN else ""
            yield f"  without a single pixel: {', '.join(self.unseen[:SHOWN])}{further}"
        kinds = Counter(problem.kind for problem in self.problems)
        for kind, count in kinds.items():
            yield f"  {kind}: {count}" + (" (harmless)" if kind == "extra" else "")
            messages = [str(problem) for problem in self.problems if problem.kind == kind]
            yield from (f"    {message}" for message in messages[:SHOWN])
            if count > SHOWN:
                yield f"    ... and {count - SHOWN} more"
        yield f"  {'ready for training' if self.trainable else 'training would fail'}"

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
    """Read every sample, in this process or in `workers` others, and count labels and faults."""
    report = Report(dataset.name, dataset.split, dataset.classes, len(dataset))
    if isinstance(dataset, FileDataset):
        report.problems += [problem for problem in dataset.problems if problem.kind != "missing"]
    description = f"{dataset.name} {dataset.split}"
    for found in tqdm(
        _inspections(dataset, workers), description, len(dataset), unit="image", disable=None if progress else True
    ):
        if isinstance(found, DataError):
            report.problems.append(found)
        else:
            size, counts = found
            report.sizes[size] += 1
            report.pixels += counts
            report.images += counts > 0
    return report


Found = tuple[tuple[int, int], np.ndarray] | DataError


def _inspections(dataset: Dataset, workers: int) -> Iterator[Found]:
    indices = range(len(dataset))
    if workers < 1:
        yield from (inspect(dataset, index) for index in indices)
        return
    # Fresh processes: forking one that already runs torch's threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_adopt, initargs=(dataset,)) as pool:
        yield from pool.map(_inspect_adopted, indices, chunksize=max(1, min(32, len(indices) // (4 * workers))))


def inspect(dataset: Dataset, index: int) -> Found:
    """((width, height), pixels per label (256,)) of one sample, or what is wrong with it."""
    try:
        _, labels = dataset.read(index)
    except DataError as error:
        return error
    return (labels.shape[1], labels.shape[0]), np.bincount(labels.numpy().ravel(), minlength=256)


_adopted: Dataset


def _adopt(dataset: Dataset) -> None:
    global _adopted
    _adopted = dataset


def _inspect_adopted(index: int) -> Found:
    return inspect(_adopted, index)
