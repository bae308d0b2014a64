"""How good a model is on a data set: one confusion matrix over all pixels, and the metrics from it.

Pixels are summed over the whole set. Those labeled 255 are ignored. A class that is neither in the
ground truth nor in the predictions is left out of means instead of counting as 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depict.calibration import Calibration
from depict.data.dataset import IGNORE, Dataset
from depict.errors import UserError
from depict.inference.predictors import Predictor
from depict.inference.sliding import SlidingWindow
from depict.model import SegmentationModel
from depict.terminal import progress_bar

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
Watcher = Callable[[int, Tensor, Tensor, Tensor], None]
"""Called for each image with index, image (3, H, W), ground truth (H, W) and prediction (H, W)."""

BOUNDARY = 0.02
"""Width of the boundary, divided by the image's diagonal, as published with boundary IoU."""
FEW_IMAGES = 20


def confusion_matrix(truth: Tensor, prediction: Tensor, classes: int) -> Counts:
    """Pixels by true class (rows) and predicted class (columns), (C, C); truth and prediction (H, W)."""
    if truth.shape != prediction.shape:
        raise UserError(f"labels {tuple(truth.shape)} and prediction {tuple(prediction.shape)} differ in size.")
    valid = truth != IGNORE
    pairs = truth[valid].long() * classes + prediction[valid].long()
    counts = torch.bincount(pairs, minlength=classes * classes)
    if len(counts) > classes * classes:
        raise UserError(f"label {int(truth[valid].max())} is outside the {classes} classes.")
    return counts.view(classes, classes).numpy()


def boundary(labels: Tensor, distance: int) -> Tensor:
    """Pixels (H, W) of `labels` (H, W) with another label within `distance` rows and columns, or the image's edge.

    For each class this is its mask minus the mask eroded `distance` times by a 3 x 3 square (Cheng
    et al., Boundary IoU, 2021). It is computed for all classes at once: a square has one label if
    its minimum is its maximum.
    """
    padded = torch.nn.functional.pad(labels.to(torch.int16), (distance,) * 4, value=-1)
    low, high = (_square(padded, 2 * distance + 1, extreme) for extreme in (torch.minimum, torch.maximum))
    return low != high


def _square(values: Tensor, side: int, extreme: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The extreme of every side x side square, from running extremes of doubling length along each axis."""
    for _ in range(2):
        length = 1
        while length < side:
            step = min(length, side - length)
            values = extreme(values[:-step], values[step:])
            length += step
        values = values.T
    return values


def boundary_counts(truth: Tensor, prediction: Tensor, classes: int) -> Counts:
    """Per class, pixels on the boundary of the ground truth, of the prediction, and of both, (3, C).

    The boundary is 2 % of the diagonal wide. Ignored pixels are ignored in the prediction, too, so
    that their edge is in both boundaries.
    """
    distance = max(1, round(BOUNDARY * math.hypot(*truth.shape)))
    valid = truth != IGNORE
    prediction = torch.where(valid, prediction.to(torch.int16), IGNORE)
    on_truth, on_prediction = (boundary(labels, distance) & valid for labels in (truth, prediction))
    both = on_truth & on_prediction & (truth == prediction)
    regions = ((truth, on_truth), (prediction, on_prediction), (truth, both))
    return np.stack([torch.bincount(labels[region].long(), minlength=classes).numpy() for labels, region in regions])


@dataclass
class Result:
    """The outcome of an evaluation."""

    classes: tuple[str, ...]
    confusion: Counts
    """(C, C), rows are the ground truth."""
    boundary: Counts
    """(3, C): boundary pixels of the ground truth, of the prediction, of both."""
    images: list[dict[str, Any]]
    """Name, mIoU, aAcc and valid pixels of each image, in the data set's order."""
    calibration: Calibration | None = None
    """Of the confidences, if they were requested."""

    @property
    def iou(self) -> Floats:
        """Intersection over union per class, NaN where a class appears nowhere."""
        return class_iou(self.confusion)

    @property
    def accuracy(self) -> Floats:
        """Share of the pixels of each class that are predicted as it, NaN where the ground truth has none."""
        return _divide(np.diag(self.confusion), self.confusion.sum(1))

    @property
    def precision(self) -> Floats:
        """Share of the pixels predicted as each class that are of it, NaN where none is predicted."""
        return _divide(np.diag(self.confusion), self.confusion.sum(0))

    @property
    def dice(self) -> Floats:
        """Dice coefficient or F1 score per class, NaN where a class appears nowhere."""
        return 2 * self.iou / (1 + self.iou)

    @property
    def boundary_iou(self) -> Floats:
        """IoU of the boundaries per class, NaN where a class has none."""
        truth, prediction, both = self.boundary
        return _divide(both, truth + prediction - both)

    @property
    def miou(self) -> float:
        """Mean IoU over classes, in 0..1; NaN without a labeled pixel."""
        return _mean(self.iou)

    @property
    def macc(self) -> float:
        """Mean accuracy over classes."""
        return _mean(self.accuracy)

    @property
    def aacc(self) -> float:
        """Accuracy over all pixels."""
        return _mean(_divide(np.trace(self.confusion)[None], self.confusion.sum()[None]))

    @property
    def mean_boundary_iou(self) -> float:
        """Mean boundary IoU over classes."""
        return _mean(self.boundary_iou)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON; undefined metrics are None."""
        shares = self.confusion.sum(1) / max(1, self.confusion.sum())
        columns = {
            "iou": self.iou,
            "dice": self.dice,
            "precision": self.precision,
            "accuracy": self.accuracy,
            "boundary_iou": self.boundary_iou,
            "share": shares,
        }
        return {
            "miou": _plain(self.miou),
            "macc": _plain(self.macc),
            "aacc": _plain(self.aacc),
            "dice": _plain(_mean(self.dice)),
            "precision": _plain(_mean(self.precision)),
            "boundary_iou": _plain(self.mean_boundary_iou),
            "classes": [
                {"name": name} | {key: _plain(values[index]) for key, values in columns.items()}
                for index, name in enumerate(self.classes)
            ],
            "confusion": self.confusion.tolist(),
            "calibration": self.calibration and self.calibration.to_dict(),
            "images": self.images,
        }

    def __str__(self) -> str:
        """The per-class table and the means, in percent."""
        width = max(5, *(len(name) for name in self.classes))
        shares = self.confusion.sum(1) / max(1, self.confusion.sum())
        lines = [f"{'class':<{width}}  {'IoU':>6}  {'acc':>6}  {'b. IoU':>6}  {'pixels':>6}"]
        for name, *row in zip(self.classes, self.iou, self.accuracy, self.boundary_iou, shares, strict=True):
            lines.append(f"{name:<{width}}  " + "  ".join(map(_percent, row)))
        means = (self.miou, self.macc, self.mean_boundary_iou)
        lines.append(f"{'mean':<{width}}  " + "  ".join(map(_percent, means)))
        left_out = int(np.isnan(self.iou).sum())
        lines.append("")
        lines.append(f"mIoU {100 * self.miou:.2f}   mAcc {100 * self.macc:.2f}   aAcc {100 * self.aacc:.2f}")
        lines[-1] += f"   boundary IoU {100 * self.mean_boundary_iou:.2f}   ({len(self.images)} images)"
        if left_out:
            lines.append(f"{left_out} of {len(self.classes)} classes appear nowhere and are left out of the means")
        return "\n".join(lines)


def evaluation_record(
    result: Result, data: str, split: str, sliding: SlidingWindow, weights: str = "best", processes: int = 1
) -> dict[str, Any]:
    """The content of an evaluation.json: what was evaluated and how, then everything that was measured."""
    about = {
        "data": data,
        "split": split,
        "weights": weights,
        "protocol": dataclasses.asdict(sliding),
        "processes": processes,
    }
    return about | result.to_dict()


def few_images_warning(dataset: Dataset) -> str | None:
    """A line that warns of scores on fewer than 20 images; None if there are enough."""
    if len(dataset) >= FEW_IMAGES:
        return None
    return (
        f"warning: the scores come from only {len(dataset)} images (fewer than {FEW_IMAGES}): "
        "small differences are not significant."
    )


def class_iou(confusion: Counts) -> Floats:
    """Intersection over union per class from a confusion matrix (C, C), NaN where a class appears nowhere."""
    hit = np.diag(confusion)
    return _divide(hit, confusion.sum(0) + confusion.sum(1) - hit)


def sliding_window_for(
    model: SegmentationModel,
    dataset: Dataset,
    multiscale: bool = False,
    short_edge: int | None = None,
    stride: int | None = None,
) -> SlidingWindow:
    """How a model is evaluated on a data set: windows of its crop, `stride` pixels apart (the crop minus 32).

    As published, all windows over a pixel weigh the same; predictions blend them.
    Images are resized to `short_edge`. By default it is that of the training if the model was
    trained on this data set, else the larger of the data set's short edge and the model's crop.
    (The paper does not say which of the two its models with crops of 640 pixels were evaluated
    with.)
    """
    sliding = model.sliding_window(multiscale)
    recipe, trained = dataset.recipe, model.config.data
    default, max_aspect = max(recipe.short_edge, min(sliding.window)), recipe.max_aspect
    if trained.name == dataset.name:
        default, max_aspect = trained.short_edge or default, trained.max_aspect or max_aspect
    return dataclasses.replace(
        sliding,
        short_edge=default if short_edge is None else short_edge,
        max_aspect=max_aspect,
        stride=sliding.stride if stride is None else (stride, stride),
        blend=False,
    )


def validation_window_for(model: SegmentationModel, dataset: Dataset) -> SlidingWindow:
    """How a model is validated during its training: with the published stride, if windows are as large as published.

    Otherwise as in the final evaluation.
    """
    recipe = dataset.recipe
    published = recipe.stride if min(model.image_size) >= recipe.crop else None
    return sliding_window_for(model, dataset, stride=published)


def evaluate(
    predictor: Predictor,
    dataset: Dataset,
    rank: int = 0,
    world: int = 1,
    progress: bool = False,
    watch: Watcher | None = None,
    calibrate: bool = False,
) -> Result:
    """Predict every image of a data set and compare with its labels, at the image's own size.

    With several processes, each takes every world-th image. If torch.distributed is running, all of
    them get the result of the whole set. `watch` is called for each image of this process.
    `calibrate` also compares confidence with accuracy.
    """
    classes = len(predictor.classes)
    if len(dataset.classes) != classes:
        raise UserError(
            f"the model has {classes} classes, '{dataset.name}' has {len(dataset.classes)}: "
            "evaluate on the data set that it was trained for."
        )
    confusion, edges = np.zeros((classes, classes), np.int64), np.zeros((3, classes), np.int64)
    images: list[dict[str, Any]] = []
    calibration = Calibration() if calibrate else None
    indices = range(rank, len(dataset), world)
    for index in progress_bar(indices, desc="evaluating", unit="image", disable=not progress or rank > 0):
        image, truth = dataset.read(index)
        pixels = image.permute(1, 2, 0).numpy()
        if calibration is None:
            labels = predictor.labels(pixels)
        else:
            scores = next(predictor.scores([pixels]))
            labels = scores.labels()
            calibration.add(scores, truth.numpy())
        prediction = torch.from_numpy(labels)
        counts = confusion_matrix(truth, prediction, classes)
        confusion += counts
        edges += boundary_counts(truth, prediction, classes)
        images.append({"index": index, "name": dataset.name_of(index), **_scores(counts)})
        if watch:
            watch(index, image, truth, prediction)
    if world > 1 and torch.distributed.is_initialized():
        parts: list[Any] = [None] * world
        torch.distributed.all_gather_object(parts, (confusion, edges, images, calibration))
        confusion, edges = sum(part[0] for part in parts), sum(part[1] for part in parts)
        images = sorted((row for part in parts for row in part[2]), key=lambda row: row["index"])
        calibration = sum((part[3] for part in parts), Calibration()) if calibrate else None
    return Result(dataset.classes, confusion, edges, images, calibration)


def _scores(confusion: Counts) -> dict[str, Any]:
    pixels = int(confusion.sum())
    accuracy = np.trace(confusion) / pixels if pixels else np.nan
    return {"miou": _plain(_mean(class_iou(confusion))), "aacc": _plain(accuracy), "pixels": pixels}


def _divide(part: Counts, whole: Counts) -> Floats:
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)


def _mean(values: Floats) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else math.nan


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)


def _percent(value: float) -> str:
    return f"{'-' if np.isnan(value) else f'{100 * value:.2f}':>6}"
