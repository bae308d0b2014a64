"""How well could thin classes be labeled at best? The ground truth against itself, coarser, shifted or thicker.

    python benchmarks/thin_classes.py --data camvid --root CamVid [--strides 16 8 4]

No model is involved. For each class, its share of the labeled pixels and the IoU with the truth of:

- the truth on a grid: each cell of the decoder's grid holds the exact shares of the classes, which are interpolated as
  masks are. That is close to the best that masks of this stride can reach;
- the truth shifted by one pixel, down and to the right;
- the truth with every pixel next to the class added to it.
"""

from __future__ import annotations

import sys
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from depict.config.flags import DataRoot, flag, parse_and_call
from depict.data import create_dataset
from depict.data.dataset import IGNORE
from depict.errors import UserError
from depict.studies.tables import markdown_table
from depict.terminal import progress_bar, say_text


def on_grid(truth: Tensor, classes: int, stride: int) -> Tensor:
    """Labels (H, W) from exact shares on a grid of cells of `stride` pixels."""
    height, width = truth.shape
    padded = F.pad(truth, (0, -width % stride, 0, -height % stride), value=IGNORE).long()
    one_hot = F.one_hot(padded.where(padded != IGNORE, classes), classes + 1)[..., :classes].permute(2, 0, 1)
    shares = F.avg_pool2d(one_hot[None].float(), stride)
    masks = F.interpolate(shares, size=padded.shape, mode="bilinear")[0, :, :height, :width]
    return masks.argmax(0).to(torch.uint8)


def shifted(truth: Tensor) -> Tensor:
    """Labels (H, W) moved by one pixel, down and to the right."""
    return F.pad(truth[None, :-1, :-1].float(), (1, 0, 1, 0), mode="replicate")[0].to(torch.uint8)


def counts(truth: Tensor, guess: Tensor, classes: int) -> np.ndarray:
    """Confusion matrix (C, C) over labeled pixels."""
    valid = (truth != IGNORE) & (guess != IGNORE)
    pairs = truth[valid].long() * classes + guess[valid].long()
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes).numpy()


def thicker(truth: Tensor, index: int) -> tuple[int, int]:
    """Pixels of a class, and labeled pixels of the class grown by one pixel in all directions."""
    inside = (truth == index).float()[None, None]
    grown = F.max_pool2d(inside, 3, 1, 1)[0, 0] > 0
    return int(inside.sum()), int((grown & (truth != IGNORE)).sum())


def main(
    data: Annotated[str, flag(metavar="NAME")],
    root: DataRoot = None,
    strides: tuple[int, ...] = (16, 8, 4),
) -> int:
    """Compare the ground truth of the validation images with coarser, shifted and thicker copies of it.

    Args:
        data: Data set.
        root: Its folder.
        strides: Cells of the grids in pixels.
    """
    dataset = create_dataset(data, root, "val")
    classes = len(dataset.classes)
    names = [*(f"stride {stride}" for stride in strides), "shifted"]
    confusion = {name: np.zeros((classes, classes), np.int64) for name in names}
    sizes = np.zeros((classes, 2), np.int64)
    for number in progress_bar(range(len(dataset)), desc="comparing", unit="image"):
        truth = dataset.read(number)[1]
        for stride in strides:
            confusion[f"stride {stride}"] += counts(truth, on_grid(truth, classes, stride), classes)
        confusion["shifted"] += counts(truth, shifted(truth), classes)
        for index in range(classes):
            sizes[index] += thicker(truth, index)
    iou = {name: np.diag(c) / np.maximum(c.sum(0) + c.sum(1) - np.diag(c), 1) for name, c in confusion.items()}
    iou["thicker"] = sizes[:, 0] / np.maximum(sizes[:, 1], 1)
    share = sizes[:, 0] / sizes[:, 0].sum()
    columns = [share, *iou.values()]
    rows = [[name, *(f"{100 * column[index]:.1f}" for column in columns)] for index, name in enumerate(dataset.classes)]
    rows.append(["mean", "", *(f"{100 * column.mean():.1f}" for column in iou.values())])
    say_text(markdown_table(["class", "share %", *(f"{name}, IoU %" for name in iou)], rows))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(parse_and_call(main, "benchmarks/thin_classes.py", sys.argv[1:]))
    except UserError as error:
        sys.exit(f"thin_classes: {error}")
