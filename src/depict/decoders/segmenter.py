"""Segmenter's decoders, the baselines of the paper: the mask transformer and the linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from depict.decoders.base import Grid, JointDecoder, PatchDecoder, Trace
from depict.decoders.blocks import MHSABlock, MLPBlock, SubBlock, init_linear_layers
from depict.decoders.heads import create_head
from depict.operators import check_sizes, normal_


class MaskTransformer(JointDecoder):
    """Transformer blocks on [patches, classes], then a D x D projection of each before the dot product.

    D is `width`, by default the dimension `dim` of the tokens.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        layers: int = 2,
        heads: int | None = None,
        dropout: float = 0.1,
        head: str = "cosine",
        directions: int | None = None,
        logit_gain: float = 1.0,
        width: int | None = None,
    ):
        width = dim if width is None else width
        check_sizes(layers=layers, width=width)
        heads = max(1, width // 64) if heads is None else heads
        blocks: list[SubBlock] = []
        for _ in range(layers):
            blocks += [MHSABlock(width, heads, dropout), MLPBlock(width, dropout)]
        super().__init__(width, num_classes, blocks, create_head(head, width, num_classes, directions, logit_gain))
        self.token_dim = dim
        self.proj_in = nn.Linear(dim, width)
        self.proj_patches = nn.Parameter(torch.empty(width, width))
        self.proj_classes = nn.Parameter(torch.empty(width, width))
        normal_(self.proj_patches, width**-0.5)
        normal_(self.proj_classes, width**-0.5)
        init_linear_layers(self)

    def project(self, Z: Tensor) -> Tensor:
        """Patch embeddings (B, N, D) of the tokens (B, N, token_dim)."""
        return self.proj_in(Z)

    def masks(self, Z: Tensor, Q: Tensor, grid: Grid, trace: Trace | None) -> Tensor:
        """Masks (B, C, h, w) of the projected patches and classes."""
        return super().masks(Z @ self.proj_patches, Q @ self.proj_classes, grid, trace)

    def multiply_adds(self, N: int) -> int:
        """As any joint decoder, with the three projections."""
        projections = N * self.token_dim * self.dim + (N + self.num_classes) * self.dim**2
        return super().multiply_adds(N) + projections


class Linear(PatchDecoder):
    """No steps: the head on the tokens as they are, by default one linear layer."""

    def __init__(
        self,
        dim: int,
        num_classes: int,
        head: str = "linear",
        directions: int | None = None,
        logit_gain: float = 1.0,
    ):
        super().__init__(dim, num_classes, [], create_head(head, dim, num_classes, directions, logit_gain))
