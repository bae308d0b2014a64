"""Class weights for unbalanced data."""

from __future__ import annotations

import torch
from torch import Tensor

from depict.data.dataset import IGNORE, Dataset
from depict.terminal import progress_bar


def balanced_weights(dataset: Dataset, progress: bool = True) -> Tensor:
    """The median class frequency over that of each class, (C,); 1 for classes without a pixel. Reads all labels."""
    counts = torch.zeros(len(dataset.classes), dtype=torch.float64)
    for index in progress_bar(range(len(dataset)), desc="counting classes", unit="image", disable=not progress):
        labels = dataset.read(index)[1]
        counts += torch.bincount(labels[labels != IGNORE].long(), minlength=len(counts))
    present = counts > 0
    return torch.where(present, counts[present].median() / counts.clamp(min=1), torch.ones(())).float()
