"""The MSSA steps of an unrolled pass, with the tokens that the operator acted on.

A block computes X + step_size * MSSA(LayerNorm(X)) (`decoders/blocks.py`): the operator sees the normalized tokens, and
its update is added to the tokens before the norm. X is [patches, classes] in DEPICT-SA, the patches in DEPICT-CA and
DEPICT-US.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from depict.decoders.base import Decoder, JointDecoder, Trace
from depict.decoders.blocks import MSSABlock, SubBlock


@dataclass(frozen=True)
class MSSAStep:
    """One MSSA step on the T tokens of one image; the first N of them are its patches."""

    depth: int
    """Z[depth] of the trace is the input, Z[depth + 1] the output."""
    block: MSSABlock
    before: Tensor
    """X (T, D)."""
    after: Tensor
    """X after the step (T, D)."""
    patches: int
    """N."""

    @property
    def P(self) -> Tensor:  # noqa: N802
        """The bases of every head, (heads, M, D) in float64."""
        return self.block.bases().detach().double()

    @property
    def step_size(self) -> float:
        """Positive if the step is meant to raise the coding rate, negative if it is meant to lower it."""
        return self.block.step_size().item()

    @property
    def update(self) -> Tensor:
        """What the step added to X, (T, D)."""
        return self.after - self.before

    @property
    def a(self) -> list[float] | None:
        """The scale of the coding rate of every head, if the operator is exact."""
        a = self.block.a(self.before)
        return None if a is None else a.tolist()

    @torch.no_grad()
    def normed(self) -> Tensor:
        """Y = LayerNorm(X), the operator's input, (T, D)."""
        return self.block.norm(self.before)


def mssa_steps(decoder: Decoder, trace: Trace) -> list[MSSAStep]:
    """The MSSA steps of a pass over one image, in order; none for a decoder without MSSA."""
    tokens = [Z[0] for Z in trace.Z]
    if isinstance(decoder, JointDecoder):
        tokens = [torch.cat([Z, Q[0]]) for Z, Q in zip(tokens, trace.Q, strict=True)]
    return [
        MSSAStep(depth, block, tokens[depth], tokens[depth + 1], trace.Z[depth].shape[1])
        for depth, block in enumerate(sub_blocks(decoder))
        if isinstance(block, MSSABlock)
    ]


def mssa_blocks(decoder: Decoder) -> list[MSSABlock]:
    """The blocks of the MSSA steps, in order."""
    return [block for block in sub_blocks(decoder) if isinstance(block, MSSABlock)]


def sub_blocks(decoder: Decoder) -> list[SubBlock]:
    """The blocks of all steps, in the order of the trace."""
    return [part for part in decoder.modules() if isinstance(part, SubBlock)]


def why_no_mssa(decoder: str) -> str:
    """Why an analysis of MSSA steps does not apply to this decoder."""
    if decoder == "linear":
        return "A linear decoder has no steps, so there is nothing to measure."
    if decoder == "cbt":
        return (
            "CBT has no MSSA step: it moves a few representatives and broadcasts their attention through a separate "
            "output matrix, so its update is no step on the coding rate of the tokens in the subspaces P."
        )
    return (
        f"The decoder '{decoder}' has no MSSA step: its attention is not derived from a coding rate and has neither "
        "bases P nor a step size, so there is nothing to measure."
    )


def why_no_class_embeddings(decoder: str) -> str:
    """Why an analysis of refined class embeddings does not apply to this decoder."""
    return f"The decoder '{decoder}' has no class embeddings that depend on the image."
