"""Parameters and multiply-adds, counted as in the paper.

One multiply-add counts 1, including those of attention, and a LayerNorm 5 per element; softmax, L2 norms, element-wise
operations and the final interpolation are not counted. This convention reproduces the paper's figures. Each
sub-block and decoder states its own formula (`multiply_adds`), which a test compares with PyTorch's counter: importing
the counter takes longer than all the rest of `depict info`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from depict.decoders import create_decoder
from depict.decoders.base import LevelDecoder
from depict.decoders.blocks import LAYER_NORM


def parameters(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def decoder_costs(
    name: str, dim: int | Sequence[int], num_classes: int, grid: tuple[int, int], **options: Any
) -> tuple[int, int]:
    """Parameters and multiply-adds of a decoder for one image of `grid` patches, without running it.

    If it takes levels, each is half as fine as the one before it, and the first is on the grid.
    """
    with torch.device("meta"):
        decoder = create_decoder(name, dim, num_classes, **options)
    if isinstance(decoder, LevelDecoder):
        sizes = [(grid[0] >> level, grid[1] >> level) for level in range(len(decoder.dims))]
        levels = [torch.empty(1, *size, each, device="meta") for size, each in zip(sizes, decoder.dims, strict=True)]
        return parameters(decoder), counted_multiply_adds(decoder, levels, grid)
    return parameters(decoder), decoder.multiply_adds(grid[0] * grid[1])


def encoder_multiply_adds(encoder: nn.Module, image_size: tuple[int, int]) -> int:
    """Multiply-adds of an encoder on the meta device for one image."""
    return counted_multiply_adds(encoder, torch.empty(1, 3, *image_size, device="meta"))


def counted_multiply_adds(module: nn.Module, *inputs: Any) -> int:
    """Multiply-adds of a module on the meta device, in evaluation mode, by PyTorch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    # The counter's total is halved below, because it counts 2 per multiply-add; so the mapping counts double.
    norm = {torch.ops.aten.native_layer_norm: lambda shape, *_, **__: 2 * LAYER_NORM * torch.Size(shape).numel()}
    module.eval().requires_grad_(False)  # with gradients, the counter fails on expanded parameters
    with FlopCounterMode(display=False, custom_mapping=norm) as counter:
        module(*inputs)
    return counter.get_total_flops() // 2
