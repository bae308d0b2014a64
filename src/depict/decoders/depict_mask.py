"""DEPICT for mask classification: queries that MSCA fits to the refined patches, several per class if needed.

The paper leaves open whether mask classification and masked attention fit DEPICT. Here MSSA refines the patches, as in
DEPICT-CA, and MSCA fits K queries to them instead of one embedding per class. Each query has a mask, its dot product
with the patches, and a class, by one linear layer. So a class may take as many directions in an image as it needs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from depict.decoders.base import Grid, Trace
from depict.decoders.blocks import LAYER_NORM, MSCABlock, MSSABlock, init_linear_layers
from depict.decoders.depict import init_step_sizes
from depict.decoders.heads import unit
from depict.decoders.mask_classification import MaskClassifier, semantic_scores
from depict.decoders.matching import Queries
from depict.operators import check_sizes, normal_

SOFTMAX_STEP = 0.1
"""Initial step size of the softmax form: from the released N(0, 1), the queries hardly learn (docs/masks.md)."""


class DepictMask(MaskClassifier):
    """MSSA on the patches, MSCA of K queries against them; parameters are P, step sizes, norms, queries, class layer.

    `masked_attention`: in each MSCA step a query attends only where its mask is positive so far.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        layers: int = 3,
        heads: int = 3,
        head_dim: int = 100,
        cross_layers: int = 3,
        cross_heads: int = 3,
        cross_head_dim: int = 50,
        queries: int = 100,
        operator: str = "softmax",
        dropout: float = 0.0,
        masked_attention: bool = False,
        deep_supervision: bool = True,
        segments: str = "classes",
        matching: str = "mask2former",
        step_size: float | None = None,
    ):
        check_sizes(layers=layers, cross_layers=cross_layers, queries=queries)
        super().__init__(dim, num_classes, segments, matching, deep_supervision)
        self.masked_attention, self.num_queries = masked_attention, queries
        self.layers = nn.ModuleList([MSSABlock(dim, heads, head_dim, dropout, operator) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        # AdamW moves every number by about the learning rate: stored at their full length, queries would hardly turn.
        self.short_queries = nn.Parameter(torch.empty(queries, dim))
        normal_(self.short_queries, dim**-0.5)
        self.cross_layers = nn.ModuleList(
            [MSCABlock(dim, cross_heads, cross_head_dim, dropout, operator) for _ in range(cross_layers)]
        )
        self.query_norm = nn.LayerNorm(dim)
        self.classify = nn.Linear(dim, num_classes + 1)
        init_linear_layers(self.classify)
        init_step_sizes(self, SOFTMAX_STEP if step_size is None and operator == "softmax" else step_size)

    @property
    def queries(self) -> Tensor:
        """The queries before the first step, (K, D), about as long as the normalized patches that MSCA compares."""
        return self.dim**0.5 * self.short_queries

    def forward(self, Z: Tensor, grid: Grid, trace: Trace | None = None) -> Tensor | Queries:
        """Semantic scores (B, C, h, w) of the tokens Z (B, N, D); in training mode, `Queries`."""
        self.check(Z, grid)
        Q = self.queries.expand(Z.shape[0], -1, -1)
        if trace is not None:
            trace.Z0, trace.Q0 = Z, Q
        for layer in self.layers:
            before, Z = Z, layer(Z)
            if trace is not None:
                trace.record(layer, (before,), Z, Q)
        Z = self.norm(Z)
        for_loss = self.training and trace is None
        estimates = []
        for layer in self.cross_layers:
            if self.masked_attention or (for_loss and self.deep_supervision):
                estimates.append(self.estimate(Z, Q))
            inputs = (Q, Z, attended(estimates[-1][0])) if self.masked_attention else (Q, Z)
            Q = layer(*inputs)
            if trace is not None:
                trace.record(layer, inputs, Z, Q)
        if not for_loss:
            return self.result(Z, Q, grid, trace)
        supervised = [*(estimates if self.deep_supervision else []), self.estimate(Z, Q)]
        masks, classes = (torch.stack(parts) for parts in zip(*supervised, strict=True))
        return Queries(masks.unflatten(-1, grid), classes)

    def estimate(self, Z: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
        """Masks (B, K, N) and class logits (B, K, C + 1) of normalized patches Z (B, N, D) and queries Q (B, K, D)."""
        Q = self.query_norm(Q)
        # Both are of length sqrt(D) about, and logits should start near 1.
        return (self.dim**-0.5 * Q) @ Z.mT, self.classify(Q)  # scaled first: fp16 would overflow

    def result(self, Z: Tensor, Q: Tensor, grid: Grid, trace: Trace | None) -> Tensor:
        """Semantic scores (B, C, h, w) of normalized patches Z (B, N, D) and queries Q (B, K, D)."""
        masks, classes = self.estimate(Z, Q)
        masks = masks.unflatten(-1, grid)
        if trace is not None:
            trace.Z_unit, trace.query_masks, trace.query_classes = unit(Z), masks, classes
        return semantic_scores(masks, classes)

    def stop_after(self, trace: Trace, depth: int) -> Trace:
        """The result with only the first `depth` steps; in the trace, Z is normalized from the first MSCA step on."""
        stopped = Trace(grid=trace.grid)
        Z = trace.Z[depth] if depth > len(self.layers) else self.norm(trace.Z[depth])
        stopped.masks = self.result(Z, trace.Q[depth], trace.grid, stopped)
        return stopped

    def multiply_adds(self, N: int) -> int:
        """MSSA on N patches, MSCA of K queries against them, then masks and classes of the last step."""
        (K, D), C = self.short_queries.shape, self.num_classes
        steps = sum(layer.multiply_adds(N) for layer in self.layers)  # type: ignore[operator]
        estimate = LAYER_NORM * K * D + K * N * D + K * D * (C + 1)
        for layer in self.cross_layers:
            assert isinstance(layer, MSCABlock)
            steps += layer.multiply_adds(N, K, self.masked_attention) + self.masked_attention * estimate
        return steps + LAYER_NORM * N * D + estimate + K * N * C


def attended(masks: Tensor) -> Tensor:
    """Where each query attends, bool (B, K, N): where its mask (B, K, N) is positive, or everywhere if it is nowhere.

    No gradient goes through this choice.
    """
    positive = masks.detach() > 0
    return positive | ~positive.any(-1, keepdim=True)
