"""The MSSA steps of an unrolled pass, with the tokens that the operator acted on.

A block computes X + step_size * MSSA(LayerNorm(X)) (`decoders/blocks.py`): the operator sees the normalized tokens, and
its update is added to the tokens before the norm. X is [patches, classes] in DEPICT-SA, the patches in DEPICT-CA.
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

    layer: int
    """Its number among the MSSA steps, from 1."""
    place: int
    """Z[place] of the trace went in, Z[place + 1] came out."""
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
        """Above 0 where the step means to raise the coding rate, below where it means to lower it."""
        return self.block.step_size().item()

    @property
    def update(self) -> Tensor:
        """What the step added to X, (T, D)."""
        return self.after - self.before

    @torch.no_grad()
    def normed(self) -> Tensor:
        """Y = LayerNorm(X), which the operator acted on, (T, D)."""
        return self.block.norm(self.before)


def mssa_steps(decoder: Decoder, trace: Trace) -> list[MSSAStep]:
    """The MSSA steps of a pass over one image, in order; none for a decoder without MSSA."""
    joint = isinstance(decoder, JointDecoder)
    tokens = [torch.cat([Z, Q], dim=1)[0] if joint else Z[0] for Z, Q in zip(trace.Z, trace.Q, strict=True)]
    found: list[MSSAStep] = []
    for place, block in enumerate(sub_blocks(decoder)):
        if isinstance(block, MSSABlock):
            before, after = tokens[place], tokens[place + 1]
            found.append(MSSAStep(len(found) + 1, place, block, before, after, trace.Z[place].shape[1]))
    return found


def mssa_blocks(decoder: Decoder) -> list[MSSABlock]:
    """The blocks of the MSSA steps, in order."""
    return [block for block in sub_blocks(decoder) if isinstance(block, MSSABlock)]


def sub_blocks(decoder: Decoder) -> list[SubBlock]:
    """The blocks of all steps, in the order of the trace."""
    return [part for part in decoder.modules() if isinstance(part, SubBlock)]


def why_no_mssa(name: str) -> str:
    """Why a question about MSSA steps has no answer for the decoder `name`."""
    if name == "linear":
        return "A linear decoder takes no steps: there is nothing to measure."
    return (
        f"The decoder '{name}' has no MSSA step: its attention is not derived from a coding rate, with bases P and a "
        "step size of its own, so there is nothing to measure."
    )
