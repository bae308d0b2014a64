"""Which patches a patch draws from in one step: one row of the attention, from the tokens before the step.

The whole attention has N x N entries per head. One row needs a product of the tokens with one vector per head, because
the projection can be moved to the query: (P y_i)^T (P y_j) = (P^T P y_i)^T y_j. An exact step has a signed kernel
instead (`operators.exact_kernel`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from depict.analysis.steps import sub_blocks
from depict.decoders.base import Decoder, JointDecoder, Trace
from depict.decoders.blocks import MHSABlock, MSSABlock, SubBlock
from depict.operators import exact_kernel


@torch.no_grad()
def patch_influence(decoder: Decoder, trace: Trace, step: int, patch: int) -> Tensor | None:
    """How much each of the N patches enters the update of `patch` in `step` (from 0) of every head: (heads, N).

    None for a step without attention among the patches (MSCA, ISTA, MLP). Attention to classes is left out, so the sum
    of a row may be below 1. The weights of an exact step have both signs.
    """
    Z = trace.Z[step][0]
    X = torch.cat([Z, trace.Q[step][0]]) if isinstance(decoder, JointDecoder) else Z
    row = influence_row(sub_blocks(decoder)[step], X, patch)
    return None if row is None else row[:, : len(Z)]


def influence_row(block: SubBlock, X: Tensor, token: int) -> Tensor | None:
    """How much each token of X (T, D) enters the update of one of them, per head: (heads, T)."""
    if isinstance(block, MSSABlock) and block.exact:
        Y = block.norm(X)
        return exact_kernel(Y[token : token + 1], Y, block.operator.P, block.operator.a(len(Y)))[:, 0]
    if isinstance(block, MSSABlock):
        Y, P = block.norm(X), block.bases()
        query = P @ Y[token]  # (heads, head_dim)
        keys = P
    elif isinstance(block, MHSABlock):
        Y = block.norm(X)
        weight, bias = (part.unflatten(0, (3, block.heads, -1)) for part in (block.qkv.weight, block.qkv.bias))
        query = weight[0] @ Y[token] + bias[0]
        keys = weight[1]  # the bias of the keys adds the same to all scores, which the softmax ignores
    else:
        return None
    directions = (query[:, None] @ keys)[:, 0]  # (heads, D)
    return (directions @ Y.mT * query.shape[1] ** -0.5).softmax(-1)
