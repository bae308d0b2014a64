"""Parameters and multiply-adds, counted as in the paper.

One multiply-add counts 1, including those of attention, and a LayerNorm 5 per element; softmax, L2 norms, element-wise
operations and the final interpolation are not counted. This convention reproduces the paper's figures. Decoders are
counted by formulas, which a test compares with PyTorch's counter: importing the counter takes longer than all the rest
of `depict info`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from depict.decoders import create_decoder
from depict.decoders.base import ClassEmbeddingDecoder, Decoder
from depict.decoders.blocks import ISTABlock, MHSABlock, MLPBlock, MSCABlock, MSSABlock
from depict.decoders.depict import DepictCA
from depict.decoders.segmenter import Linear, MaskTransformer

LAYER_NORM = 5
"""Operations per element of a LayerNorm."""


def parameters(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def decoder_costs(name: str, dim: int, num_classes: int, grid: tuple[int, int], **options: Any) -> tuple[int, int]:
    """Parameters and multiply-adds of a decoder for one image of `grid` patches, without running it."""
    with torch.device("meta"):
        decoder = create_decoder(name, dim, num_classes, **options)
    return parameters(decoder), decoder_multiply_adds(decoder, grid[0] * grid[1])


def decoder_multiply_adds(decoder: Decoder, N: int) -> int:
    """Multiply-adds of a decoder for one image of N patches."""
    C, D = decoder.num_classes, decoder.dim
    if isinstance(decoder, Linear):
        return N * D * C
    if not isinstance(decoder, ClassEmbeddingDecoder):
        raise TypeError(f"no cost formula for {type(decoder).__name__}")
    total = N * C * D + LAYER_NORM * N * C  # the dot product and mask_norm
    total += LAYER_NORM * (N + C) * D  # the final norms of patches and classes
    tokens = N if isinstance(decoder, DepictCA) else N + C
    total += sum(_block_multiply_adds(block, tokens, C, N) for block in decoder.modules())
    if isinstance(decoder, MaskTransformer):
        total += N * decoder.token_dim * D + (N + C) * D * D  # proj_in, then proj_patches and proj_classes
    return total


def encoder_multiply_adds(encoder: nn.Module, image_size: tuple[int, int]) -> int:
    """Multiply-adds of an encoder on the meta device for one image, by PyTorch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    # The counter's total is halved below, because it counts 2 per multiply-add; so the mapping counts double.
    norm = {torch.ops.aten.native_layer_norm: lambda shape, *_, **__: 2 * LAYER_NORM * torch.Size(shape).numel()}
    encoder.eval().requires_grad_(False)  # with gradients, the counter fails on expanded parameters
    with FlopCounterMode(display=False, custom_mapping=norm) as counter:
        encoder(torch.empty(1, 3, *image_size, device="meta"))
    return counter.get_total_flops() // 2


def _block_multiply_adds(block: nn.Module, tokens: int, C: int, N: int) -> int:
    """Multiply-adds of one sub-block on `tokens` tokens (MSCA: C queries and N keys); 0 for any other module."""
    if isinstance(block, MSSABlock):
        K, D = block.operator.P.shape
        return LAYER_NORM * tokens * D + 2 * tokens * K * D + 2 * tokens * tokens * K
    if isinstance(block, MSCABlock):
        K, D = block.operator.P.shape
        return LAYER_NORM * N * D + (N + 2 * C) * K * D + 2 * C * N * K
    if isinstance(block, MHSABlock):
        D = block.proj.in_features
        return LAYER_NORM * tokens * D + 4 * tokens * D * D + 2 * tokens * tokens * D
    if isinstance(block, MLPBlock):
        D, hidden = block.fc1.in_features, block.fc1.out_features
        return LAYER_NORM * tokens * D + 2 * tokens * D * hidden
    if isinstance(block, ISTABlock):
        D = block.A.shape[0]
        return LAYER_NORM * tokens * D + 3 * tokens * D * D
    return 0
