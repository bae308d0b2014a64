"""The page of an evaluation: scores, classes, confusions, calibration, and the worst and best images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depict.data.dataset import IGNORE, Dataset
from depict.viz.comparison import Comparison, compare
from depict.viz.evaluation_figures import confusion_figure, reliability_figure, shown_classes
from depict.viz.page import Picture, embed_figure, embed_photo, write_page

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = 6
"""Images shown of the worst, and of the best."""
SIDE = 480
"""Longest side of their pictures in pixels."""
CONFUSIONS = 8
"""Pairs of classes that are listed."""
SMALLEST_CONFUSION = 0.01
"""Share of the true class's pixels from which on a confusion is listed."""
TILES = {
    "miou": "mIoU",
    "dice": "Dice (F1)",
    "precision": "precision",
    "macc": "recall (mAcc)",
    "aacc": "pixel accuracy",
    "boundary_iou": "boundary IoU",
}
COLUMNS = {"dice": "Dice", "precision": "precision", "accuracy": "recall", "boundary_iou": "boundary IoU"}


class Examples:
    """Watches an evaluation and keeps small pictures of the images with the fewest and the most correct pixels."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.kept: list[Comparison] = []
        """Sorted by accuracy; at most EXAMPLES at each end."""

    def watch(self, index: int, image: Tensor, truth: Tensor, prediction: Tensor) -> None:
        """Keep the image if it is among the worst or the best so far."""
        labels, predicted = truth.numpy(), prediction.numpy()
        labeled = labels != IGNORE
        if not labeled.any():
            return
        accuracy = float((labels == predicted)[labeled].mean())
        full = len(self.kept) == 2 * EXAMPLES
        if full and self.kept[EXAMPLES - 1].accuracy <= accuracy <= self.kept[EXAMPLES].accuracy:
            return
        pixels, name = image.permute(1, 2, 0).numpy(), self.dataset.name_of(index)
        self.add([compare(index, name, pixels, labels, predicted, self.dataset.palette, SIDE)])

    def add(self, comparisons: Sequence[Comparison]) -> None:
        """Keep the worst and best of these and of those so far."""
        ranked = sorted([*self.kept, *comparisons], key=lambda found: (found.accuracy, found.index))
        self.kept = ranked if len(ranked) <= 2 * EXAMPLES else ranked[:EXAMPLES] + ranked[-EXAMPLES:]

    def gather(self) -> None:
        """Keep the worst and best of all processes; called by all of them, if torch.distributed is running."""
        import torch

        if torch.distributed.is_initialized():
            parts: list[Any] = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(parts, self.kept)
            self.kept = []
            self.add([found for part in parts for found in part])

    def worst_and_best(self) -> tuple[list[Comparison], list[Comparison]]:
        """The worst images, worst first, and the best, best first; no image is in both."""
        count = min(EXAMPLES, (len(self.kept) + 1) // 2)
        return self.kept[:count], self.kept[count:][::-1][:EXAMPLES]


def write_evaluation_page(
    path: Path,
    title: str,
    found: dict[str, Any],
    examples: Examples,
    warning: str | None,
    stamp: dict[str, Any],
) -> None:
    """Write the page; `found` is what is in the JSON file next to it."""
    classes, palette = examples.dataset.classes, examples.dataset.palette
    confusion = np.array(found["confusion"])
    worst, best = examples.worst_and_best()
    present = sorted({label for example in (*worst, *best) for label in example.shares})
    calibration = found["calibration"]
    tiles = {label: percent(found[key]) for key, label in TILES.items()}
    if calibration:
        tiles["calibration error"] = percent(calibration["ece"])
    write_page(
        path,
        "viz/evaluation.html.jinja",
        title=title,
        about=found,
        tiles=tiles,
        warning=warning and warning.removeprefix("warning: ").capitalize(),
        columns=list(COLUMNS.values()),
        classes=class_rows(found["classes"], palette),
        left_out=[row["name"] for row in found["classes"] if row["iou"] is None],
        confusions=confusions(confusion, classes),
        matrix=confusion_picture(confusion, classes),
        calibration=calibration and calibration_text(calibration),
        reliability=calibration
        and embed_figure(
            reliability_figure(calibration["bins"]),
            "Accuracy over confidence, and the share of the pixels with each confidence.",
        ),
        examples={"worst": [_example(each) for each in worst], "best": [_example(each) for each in best]},
        legend=[(classes[label], palette[label]) for label in present],
        stamp={key: value for key, value in stamp.items() if value is not None},
    )


def class_rows(classes: Sequence[dict[str, Any]], palette: Sequence[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Name, color and formatted scores of the classes that appear, those with the lowest IoU first."""
    appearing = [row | {"color": color} for row, color in zip(classes, palette, strict=True) if row["iou"] is not None]
    return [
        {
            "name": row["name"],
            "color": row["color"],
            "width": f"{100 * row['iou']:.1f}%",
            "iou": percent(row["iou"]),
            "scores": [percent(row[key]) for key in COLUMNS],
            "share": percent(row["share"]),
        }
        for row in sorted(appearing, key=lambda row: row["iou"])
    ]


def confusions(confusion: np.ndarray, classes: Sequence[str]) -> list[tuple[str, str, str]]:
    """The pairs of classes with the most wrong pixels: true class, predicted class, share of the true class."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    pairs = []
    for flat in np.argsort(-wrong, axis=None, kind="stable"):
        truth, prediction = divmod(int(flat), len(classes))
        share = wrong[truth, prediction] / max(1, confusion[truth].sum())
        if share >= SMALLEST_CONFUSION:
            pairs.append((classes[truth], classes[prediction], f"{100 * share:.1f} %"))
        if len(pairs) == CONFUSIONS or not wrong[truth, prediction]:
            break
    return pairs


def confusion_picture(confusion: np.ndarray, classes: Sequence[str]) -> Picture | None:
    """The confusion matrix as a figure; None without a labeled pixel."""
    shown = shown_classes(confusion)
    if not shown:
        return None
    which = "" if len(shown) == len(classes) else f" The {len(shown)} classes with the most pixels of {len(classes)}."
    return embed_figure(confusion_figure(confusion, classes), f"Confusion matrix: truth by prediction.{which}")


def calibration_text(calibration: dict[str, Any]) -> str | None:
    """Whether the model is too sure or not sure enough, and by how much."""
    if calibration["ece"] is None:
        return None
    gap = 100 * (calibration["confidence"] - calibration["accuracy"])
    side = "about as sure as it may be" if abs(gap) < 1 else "too sure of itself" if gap > 0 else "not sure enough"
    return (
        f"The model is {side}: on average its confidence is {100 * calibration['confidence']:.1f} % and "
        f"{100 * calibration['accuracy']:.1f} % of its pixels are right. The expected calibration error is "
        f"{100 * calibration['ece']:.1f} %."
    )


def percent(value: float | None) -> str:
    """A share as a percentage with one decimal; a dash if it is undefined."""
    return "–" if value is None else f"{100 * value:.1f} %"


def _example(found: Comparison) -> dict[str, Any]:
    panels = {
        title: embed_photo(panel, f"{found.name}: {title}", flat=title in ("truth", "prediction"))
        for title, panel in found.panels.items()
    }
    return {"name": found.name, "accuracy": percent(found.accuracy), "panels": panels}
