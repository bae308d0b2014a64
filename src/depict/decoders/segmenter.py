"""Segmenter's decoders, the black boxes that DEPICT is compared with: the mask transformer and the linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from depict.decoders.base import Decoder, Grid, JointDecoder, Trace
from depict.decoders.blocks import MHSABlock, MLPBlock, SubBlock, initialize
from depict.errors import UserError
from depict.operators import normal_


class MaskTransformer(JointDecoder):
    """Transformer blocks on [patches, classes], then one D x D projection for each kind before the dot product."""

    def __init__(
        self,
        dim: int,
        num_classes: int,
        layers: int = 2,
        heads: int | None = None,
        dropout: float = 0.1,
        logit_gain: float = 1.0,
    ):
        if layers < 1:
            raise UserError(f"layers must be at least 1, not {layers}.")
        heads = max(1, dim // 64) if heads is None else heads
        blocks: list[SubBlock] = []
        for _ in range(layers):
            blocks += [MHSABlock(dim, heads, dropout), MLPBlock(dim, dropout)]
        super().__init__(dim, num_classes, blocks, logit_gain)
        self.proj_in = nn.Linear(dim, dim)
        self.proj_patches = nn.Parameter(torch.empty(dim, dim))
        self.proj_classes = nn.Parameter(torch.empty(dim, dim))
        normal_(self.proj_patches, dim**-0.5)
        normal_(self.proj_classes, dim**-0.5)
        initialize(self)

    def forward(self, Z: Tensor, grid: Grid, trace: Trace | None = None) -> Tensor:
        """Masks (B, C, h, w) of the tokens Z (B, N, D)."""
        self.check(Z, grid)
        return super().forward(self.proj_in(Z), grid, trace)

    def masks(self, Z: Tensor, Q: Tensor, grid: Grid, trace: Trace | None) -> Tensor:
        """Cosine masks of the projected patches and classes."""
        return super().masks(Z @ self.proj_patches, Q @ self.proj_classes, grid, trace)


class Linear(Decoder):
    """One linear layer per patch."""

    def __init__(self, dim: int, num_classes: int):
        super().__init__(dim, num_classes)
        self.head = nn.Linear(dim, num_classes)
        initialize(self)

    def forward(self, Z: Tensor, grid: Grid, trace: Trace | None = None) -> Tensor:
        """Masks (B, C, h, w) of the tokens Z (B, N, D)."""
        self.check(Z, grid)
        if trace is not None:
            trace.Z0 = Z
        return self.head(Z).mT.unflatten(-1, grid)
