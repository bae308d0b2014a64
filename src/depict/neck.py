"""The neck: from the levels of an encoder to tokens Z0 on one grid.

Z0 = sum over the levels l of U_l(A_l LayerNorm(X_l) + b_l), where U_l enlarges bilinearly from level
to level up to the decoder's grid. It is linear after the norms, so Z0 is the sum of what each level
contributes. A_l is applied at the level's own resolution, where it is cheapest: a map of channels
commutes with an interpolation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depict.decoders.blocks import LAYER_NORM
from depict.errors import UserError

if TYPE_CHECKING:
    from depict.decoders.base import LevelDecoder
    from depict.encoders.base import Encoder, Size

DEFAULT_DIM = 256
STEM_STRIDE = 4


class Neck(nn.Module):
    """Levels (B, h, w, D_l), from the finest to the coarsest -> Z0 (B, N, D) on a grid of N cells."""

    def __init__(self, level_dims: Sequence[int], dim: int):
        super().__init__()
        self.level_dims, self.dim = tuple(level_dims), dim
        self.norms = nn.ModuleList(nn.LayerNorm(level_dim) for level_dim in level_dims)
        maps = [nn.Linear(level_dim, dim) for level_dim in level_dims]
        for each in maps:  # Z0 starts with entries of variance 1, like the tokens of a ViT
            nn.init.normal_(each.weight, std=(each.in_features * len(maps)) ** -0.5)
            nn.init.zeros_(each.bias)
        self.maps = nn.ModuleList(maps)

    def forward(self, levels: Sequence[Tensor], grid: Size) -> Tensor:
        """Tokens Z0 (B, N, D)."""
        *finer, total = self._mapped(levels)
        for level in reversed(finer):
            total = level + _resized(total, _size(level))
        return _resized(total, grid).flatten(1, 2)

    def contributions(self, levels: Sequence[Tensor], grid: Size) -> list[Tensor]:
        """What each level adds to Z0, (B, N, D) each: their sum is `forward`."""
        mapped = self._mapped(levels)
        parts = []
        for index, part in enumerate(mapped):
            for level in reversed(mapped[:index]):
                part = _resized(part, _size(level))
            parts.append(_resized(part, grid).flatten(1, 2))
        return parts

    def multiply_adds(self, sizes: Sequence[Size]) -> int:
        """Multiply-adds of the norms and maps for one image, as `costs.py` counts them; `sizes` are the levels'."""
        counts = zip(sizes, self.level_dims, strict=True)
        return sum(height * width * dim * (LAYER_NORM + self.dim) for (height, width), dim in counts)

    def _mapped(self, levels: Sequence[Tensor]) -> list[Tensor]:
        """The normalized and mapped levels (B, h, w, D), each on its own grid."""
        parts = zip(self.maps, self.norms, levels, strict=True)
        return [apply_map(norm(level)) for apply_map, norm, level in parts]


class Stem(nn.Sequential):
    """Images (B, 3, H, W) -> one more level (B, H / 4, W / 4, dim) with the detail that a plain ViT lacks."""

    def __init__(self, dim: int = 64):
        super().__init__(nn.Conv2d(3, dim // 2, 3, 2, 1), nn.GELU(), nn.Conv2d(dim // 2, dim, 3, 2, 1), nn.GELU())
        self.dim = dim

    def forward(self, images: Tensor) -> Tensor:
        """The level, (B, H / 4, W / 4, dim)."""
        return super().forward(images).permute(0, 2, 3, 1)

    def multiply_adds(self, size: Size) -> int:
        """Multiply-adds of both convolutions for one image of `size` pixels."""
        pixels, half = size[0] * size[1], self.dim // 2
        return pixels // 4 * 9 * 3 * half + pixels // 16 * 9 * half * self.dim


def pack(levels: Sequence[Tensor], grid: Size) -> Tensor:
    """Levels (B, h, w, D_l) as one feature vector (B, N, F) for each of the N cells of a coarser `grid`.

    Every level must divide evenly into the cells. `unpack` undoes it.
    """
    parts = []
    for level in levels:
        rows, columns = level.shape[1] // grid[0], level.shape[2] // grid[1]
        if _size(level) != (rows * grid[0], columns * grid[1]):
            sizes = f"{level.shape[1]} x {level.shape[2]} features do not divide into {grid[0]} x {grid[1]} cells"
            raise UserError(f"the features of this encoder cannot be cached: {sizes}.")
        cells = level.unflatten(1, (grid[0], rows)).unflatten(3, (grid[1], columns)).transpose(2, 3)
        parts.append(cells.flatten(3).flatten(1, 2))
    return torch.cat(parts, -1) if len(parts) > 1 else parts[0]


def unpack(features: Tensor, grid: Size, shapes: Sequence[tuple[int, int, int]]) -> list[Tensor]:
    """The levels of `pack`; `shapes` are their rows and columns within a cell, and their dimensions."""
    parts = features.unflatten(1, grid).split([math.prod(shape) for shape in shapes], -1)
    return [
        part.unflatten(-1, shape).transpose(2, 3).flatten(1, 2).flatten(2, 3)
        for part, shape in zip(parts, shapes, strict=True)
    ]


def grid_settings(
    encoder: Encoder, stride: int | None, dim: int | None, stem: bool, decoder: type[LevelDecoder] | None = None
) -> tuple[int | None, int | None]:
    """The stride of the decoder's grid and the dimension of the neck; both None where no neck is needed.

    That is a plain ViT on its own patch grid. A hierarchical encoder has by default the stride of its finest level.
    A `decoder` that takes levels has its own stride and neck.
    """
    if decoder is not None:
        if stride not in (None, decoder.stride) or dim is not None or stem:
            raise UserError(
                f"this decoder has masks of stride {decoder.stride} and a neck of its own: omit --stride and --neck."
            )
        return decoder.stride, None
    if stem and stride not in (None, STEM_STRIDE):
        raise UserError(f"--neck.stem adds detail at stride {STEM_STRIDE}: use --stride {STEM_STRIDE}, not {stride}.")
    own = encoder.strides[0]
    stride = STEM_STRIDE if stem else own[0] if stride is None else stride
    if not (encoder.needs_neck or stem or dim is not None or (stride, stride) != own):
        return None, None
    return stride, DEFAULT_DIM if dim is None else dim


def _size(level: Tensor) -> Size:
    return level.shape[1], level.shape[2]


def _resized(level: Tensor, size: Size) -> Tensor:
    """Bilinear, (B, h, w, D) to another size; the level itself if it has that size."""
    if _size(level) == size:
        return level
    return F.interpolate(level.permute(0, 3, 1, 2), size=size, mode="bilinear").permute(0, 2, 3, 1)
