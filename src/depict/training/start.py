"""Starting the classes from the data: linear discriminant analysis of the tokens that the head sees."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from depict.data.dataset import IGNORE
from depict.data.loading import Batch
from depict.decoders.base import Grid, PatchDecoder
from depict.inference.sliding import padded_size
from depict.model import SegmentationModel
from depict.terminal import progress_bar
from depict.training.feature_cache import FeatureBatch

IMAGES = 256
"""Images whose tokens are looked at, at most: more of them change little."""
SHRINKAGE = 0.01
"""Added to the covariance, as a share of its mean variance."""


class ClassStatistics:
    """Counts, means and the common covariance of tokens, where a token may belong to several classes in part."""

    def __init__(self, num_classes: int, dim: int):
        self.counts = torch.zeros(num_classes, dtype=torch.float64)
        self.sums = torch.zeros(num_classes, dim, dtype=torch.float64)
        self.products = torch.zeros(dim, dim, dtype=torch.float64)

    def add(self, tokens: Tensor, shares: Tensor) -> None:
        """Add tokens (n, D), of which each class has the shares (n, C)."""
        self.counts += shares.cpu().double().sum(0)
        self.sums += (shares.mT @ tokens).cpu().double()
        self.products += ((tokens * shares.sum(1, keepdim=True)).mT @ tokens).cpu().double()

    def discriminants(self) -> tuple[Tensor, Tensor, Tensor]:
        """q (C, D) and b (C,) such that q_c . z + b_c is the log-probability of c up to a constant; which classes.

        That is, if the tokens of every class were Gaussian with the same covariance S: q_c = S^-1 m_c and
        b_c = log p_c - m_c . q_c / 2. The last value, bool (C,), says which classes were seen.
        """
        seen = self.counts > 0
        means = self.sums / self.counts.clamp(min=1e-12)[:, None]
        total = self.counts.sum()
        covariance = (self.products - (means * self.counts[:, None]).mT @ means) / total
        shrinkage = SHRINKAGE * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=torch.float64)
        q = torch.linalg.solve(covariance + shrinkage, means.mT).mT
        b = (self.counts / total).clamp(min=1e-12).log() - (means * q).sum(1) / 2
        return q, b, seen


@torch.no_grad()
def start_from_data(
    model: SegmentationModel, network: nn.Module, batches: Iterable[Batch | FeatureBatch], progress: bool = True
) -> str:
    """Set the classes of a PatchDecoder to the discriminants of the batches' tokens, and say so.

    `network` is the model, or `model.head()` for batches of cached features. At most IMAGES images are used. Classes
    without a pixel keep their random start, with the lowest bias.
    """
    decoder = model.decoder
    assert isinstance(decoder, PatchDecoder)
    statistics, images, tokens = ClassStatistics(model.num_classes, decoder.dim), 0, 0
    device = next(model.parameters()).device
    before = network.training
    network.eval()
    with progress_bar(desc="starting from the data", unit="image", disable=not progress) as bar:
        for batch in batches:
            if isinstance(batch, FeatureBatch):
                Z, grid = _tokens(decoder, network, batch.tokens.to(device), batch.grid)
            else:
                Z, grid = _tokens(decoder, network, batch.images.to(device), full_size=False)
            shares = class_shares(batch.labels.to(device), grid, model.multiple, model.num_classes)
            statistics.add(Z.flatten(0, 1), shares.flatten(0, 1).to(Z))
            images, tokens = images + len(Z), tokens + Z.shape[0] * Z.shape[1]
            bar.update(len(Z))
            if images >= IMAGES:
                break
    network.train(before)
    q, b, seen = statistics.discriminants()
    if not seen.any():
        return "the data say nothing about the classes: they start at random."
    decoder.start_classes(q, b, seen)
    return f"the classes start from {tokens:,} tokens of {images} images, by linear discriminant analysis."


def _tokens(decoder: PatchDecoder, network: nn.Module, *inputs: object, **options: object) -> tuple[Tensor, Grid]:
    """What the head multiplies with the classes, (B, N, D), and the grid of these tokens."""
    seen: list[Tensor] = []
    hook = decoder.head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        masks = network(*inputs, **options)
    finally:
        hook.remove()
    return decoder.scaled(seen[0]), (masks.shape[-2], masks.shape[-1])


def class_shares(labels: Tensor, grid: tuple[int, int], multiple: tuple[int, int], num_classes: int) -> Tensor:
    """The share of each class in the pixels of every cell: labels (B, H, W) -> (B, h * w, C).

    The grid (h, w) covers the labels padded to `multiple`. Ignored and padded pixels belong to no class.
    """
    batch, height, width = labels.shape
    padded = padded_size((height, width), multiple)
    rows = torch.arange(height, device=labels.device) * grid[0] // padded[0]
    columns = torch.arange(width, device=labels.device) * grid[1] // padded[1]
    cells = torch.arange(batch, device=labels.device)[:, None, None] * grid[0] + rows[:, None]
    cells = cells * grid[1] + columns
    valid = labels != IGNORE
    counts = torch.bincount(
        cells[valid] * num_classes + labels[valid].long(), minlength=batch * grid[0] * grid[1] * num_classes
    )
    pixels = padded[0] * padded[1] / (grid[0] * grid[1])
    return counts.view(batch, grid[0] * grid[1], num_classes) / pixels
