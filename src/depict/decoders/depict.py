"""DEPICT: decoders that consist of unrolled gradient steps on the coding rate (paper section 3)."""

from __future__ import annotations

from torch import Tensor, nn

from depict.decoders.base import ClassEmbeddingDecoder, Grid, JointDecoder, PatchDecoder, Trace
from depict.decoders.blocks import MSCABlock, MSSABlock, SubBlock
from depict.decoders.heads import create_head
from depict.operators import SubspaceAttention, check_sizes


class DepictSA(JointDecoder):
    """DEPICT-SA: MSSA on the concatenation of patch and class embeddings."""

    def __init__(
        self,
        dim: int,
        num_classes: int,
        layers: int = 3,
        heads: int = 3,
        head_dim: int = 100,
        operator: str = "softmax",
        dropout: float = 0.0,
        head: str = "cosine",
        directions: int | None = None,
        logit_gain: float = 1.0,
        step_size: float | None = None,
    ):
        check_sizes(layers=layers)
        blocks: list[SubBlock] = [MSSABlock(dim, heads, head_dim, dropout, operator) for _ in range(layers)]
        super().__init__(dim, num_classes, blocks, create_head(head, dim, num_classes, directions, logit_gain))
        init_step_sizes(self, step_size)


class DepictCA(ClassEmbeddingDecoder):
    """DEPICT-CA: MSSA refines the patch embeddings, then MSCA fits the class embeddings to them."""

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
        operator: str = "softmax",
        dropout: float = 0.0,
        head: str = "cosine",
        directions: int | None = None,
        logit_gain: float = 1.0,
        step_size: float | None = None,
    ):
        check_sizes(layers=layers, cross_layers=cross_layers)
        super().__init__(dim, num_classes, create_head(head, dim, num_classes, directions, logit_gain))
        self.layers = nn.ModuleList([MSSABlock(dim, heads, head_dim, dropout, operator) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.cross_layers = nn.ModuleList(
            [MSCABlock(dim, cross_heads, cross_head_dim, dropout, operator) for _ in range(cross_layers)]
        )
        self.class_norm = nn.LayerNorm(dim)
        init_step_sizes(self, step_size)

    def forward(self, Z: Tensor, grid: Grid, trace: Trace | None = None) -> Tensor:
        """Masks (B, C, h, w) of the tokens Z (B, N, D)."""
        self.check(Z, grid)
        Q = self.class_embeddings.expand(Z.shape[0], -1, -1)
        if trace is not None:
            trace.Z0, trace.Q0 = Z, Q
        for layer in self.layers:
            before, Z = Z, layer(Z)
            if trace is not None:
                trace.record(layer, (before,), Z, Q)
        Z = self.norm(Z)
        for layer in self.cross_layers:
            before, Q = Q, layer(Q, Z)
            if trace is not None:
                trace.record(layer, (before, Z), Z, Q)
        return self.masks(Z, self.class_norm(Q), grid, trace)

    def stop_after(self, trace: Trace, depth: int) -> Trace:
        """The result with only the first `depth` steps; in the trace, Z is normalized from the first MSCA step on."""
        stopped = Trace(grid=trace.grid)
        Z = trace.Z[depth] if depth > len(self.layers) else self.norm(trace.Z[depth])
        stopped.masks = self.masks(Z, self.class_norm(trace.Q[depth]), trace.grid, stopped)
        return stopped

    def multiply_adds(self, N: int) -> int:
        """MSSA on N patches, MSCA of C classes against them, then the masks."""
        refined = sum(layer.multiply_adds(N) for layer in self.layers)  # type: ignore[operator]
        fitted = sum(layer.multiply_adds(N, self.num_classes) for layer in self.cross_layers)  # type: ignore[operator]
        return refined + fitted + self.mask_multiply_adds(N)


class DepictUS(PatchDecoder):
    """DEPICT-US, a union of subspaces: MSSA refines the patches, and each class is a subspace of their space.

    The appendix of the paper argues for one subspace per class. No class embedding is refined: masks come from the
    head.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        layers: int = 2,
        heads: int = 3,
        head_dim: int = 100,
        operator: str = "exact",
        dropout: float = 0.0,
        head: str = "subspaces",
        directions: int | None = None,
        logit_gain: float = 1.0,
        step_size: float | None = None,
    ):
        check_sizes(layers=layers)
        blocks: list[SubBlock] = [MSSABlock(dim, heads, head_dim, dropout, operator) for _ in range(layers)]
        super().__init__(dim, num_classes, blocks, create_head(head, dim, num_classes, directions, logit_gain))
        init_step_sizes(self, step_size)


def init_step_sizes(decoder: nn.Module, step_size: float | None) -> None:
    """Set all step sizes of a decoder to one value; None keeps those of the operator."""
    if step_size is not None:
        for part in decoder.modules():
            if isinstance(part, SubspaceAttention):
                nn.init.constant_(part.step_size, step_size)
