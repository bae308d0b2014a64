"""Which patches a patch draws from in one step: one row of the attention, from the tokens of an unrolled pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depict.analysis.steps import sub_blocks
from depict.decoders.base import Decoder, JointDecoder, Trace
from depict.decoders.blocks import MSCABlock


@torch.no_grad()
def patch_influence(decoder: Decoder, trace: Trace, step: int, patch: int) -> Tensor | None:
    """How much each of the N patches enters the update of `patch` in `step` (from 0) of every head: (heads, N).

    None for a step without attention among the patches (MSCA, ISTA, MLP). Attention to classes is left out, so the sum
    of a row may be below 1. Exact steps and CBSA have signed weights.
    """
    block, Z = sub_blocks(decoder)[step], trace.Z[step]
    if isinstance(block, MSCABlock) or not block.has_attention:
        return None
    inputs: tuple[Any, ...] = (Z,)
    if isinstance(decoder, JointDecoder):
        inputs = decoder.inputs(torch.cat([Z, trace.Q[step]], dim=1), trace.grid)
    attention = block.attention(*inputs, queries=[patch])
    assert attention is not None
    return attention[0, :, 0, : Z.shape[1]]
