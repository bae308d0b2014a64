"""CBT: DEPICT-SA's frame with contract-and-broadcast self-attention, by the same authors (NeurIPS 2025)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from depict.decoders.base import Grid, JointDecoder
from depict.decoders.blocks import LAYER_NORM, SubBlock
from depict.decoders.heads import create_head
from depict.operators import CBSA, check_sizes


class CBSABlock(SubBlock):
    """X + CBSA(LayerNorm(X)) for X = [patches, classes]."""

    name = "cbsa"
    has_attention = True

    def __init__(self, dim: int, heads: int, head_dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.operator = CBSA(dim, heads, head_dim)

    def forward(self, X: Tensor, grid: Grid) -> Tensor:
        """X after one step, (B, N + C, D)."""
        return X + self.operator(self.norm(X), grid)

    def bases(self) -> Tensor:
        """The bases of all heads, (heads, head_dim, D)."""
        return self.operator.bases()

    def step_size(self) -> Tensor:
        """The learned step of every head, (heads,)."""
        return self.operator.step_x.flatten()

    def attention(self, X: Tensor, grid: Grid, queries: list[int] | None = None) -> Tensor:  # type: ignore[override]
        """The signed share of every token in the update of the queries, (B, heads, queries, N + C)."""
        return self.operator.weights(self.norm(X), grid, queries)

    def multiply_adds(self, tokens: int) -> int:
        """The norm, the products with P and the output matrix, and those of tokens and n representatives."""
        (K, D), n = self.operator.P.shape, self.operator.side**2
        return LAYER_NORM * tokens * D + 2 * tokens * K * D + 3 * n * tokens * K + 2 * n * n * K


class CBT(JointDecoder):
    """CBSA on the concatenation of patch and class embeddings; its cost is linear in the number of patches."""

    def __init__(
        self,
        dim: int,
        num_classes: int,
        layers: int = 3,
        heads: int = 3,
        head_dim: int = 100,
        head: str = "cosine",
        directions: int | None = None,
        logit_gain: float = 1.0,
    ):
        check_sizes(layers=layers)
        blocks: list[SubBlock] = [CBSABlock(dim, heads, head_dim) for _ in range(layers)]
        super().__init__(dim, num_classes, blocks, create_head(head, dim, num_classes, directions, logit_gain))

    def inputs(self, X: Tensor, grid: Grid) -> tuple[Any, ...]:
        """Representatives are means of cells of the grid."""
        return X, grid
