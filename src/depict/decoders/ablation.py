"""The combinations of the paper's left ablation table: {MSSA, MHSA, none} x {ISTA, MLP, none}."""

from __future__ import annotations

from depict.decoders.base import JointDecoder
from depict.decoders.blocks import ISTABlock, MHSABlock, MLPBlock, MSSABlock, SubBlock, init_linear_layers
from depict.decoders.depict import init_step_sizes
from depict.decoders.heads import create_head
from depict.errors import UserError, unknown
from depict.operators import check_sizes

ATTENTION = ("mssa", "mhsa", "none")
FEEDFORWARD = ("ista", "mlp", "none")


class Ablation(JointDecoder):
    """Layers of an attention and a feed-forward sub-block on [patches, classes], without Segmenter's projections.

    `heads` and `head_dim` apply to MSSA; MHSA has heads of dimension 64, as in Segmenter.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        attention: str = "mssa",
        feedforward: str = "ista",
        layers: int = 2,
        heads: int = 3,
        head_dim: int = 50,
        operator: str = "softmax",
        dropout: float = 0.0,
        head: str = "cosine",
        directions: int | None = None,
        logit_gain: float = 1.0,
        step_size: float | None = None,
    ):
        if attention not in ATTENTION:
            raise unknown("attention", attention, ATTENTION)
        if feedforward not in FEEDFORWARD:
            raise unknown("feedforward", feedforward, FEEDFORWARD)
        if attention != "mssa" and operator != "softmax":
            raise UserError(f"operator '{operator}' is a form of MSSA and does not fit attention '{attention}'.")
        check_sizes(layers=layers)
        blocks: list[SubBlock] = []
        for _ in range(layers):
            if attention == "mssa":
                blocks.append(MSSABlock(dim, heads, head_dim, dropout, operator))
            elif attention == "mhsa":
                blocks.append(MHSABlock(dim, max(1, dim // 64), dropout))
            if feedforward == "ista":
                blocks.append(ISTABlock(dim))
            elif feedforward == "mlp":
                blocks.append(MLPBlock(dim, dropout))
        super().__init__(dim, num_classes, blocks, create_head(head, dim, num_classes, directions, logit_gain))
        init_linear_layers(self)
        init_step_sizes(self, step_size)
