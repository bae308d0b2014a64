"""Encoders by name: plain ViTs, and any timm model that returns feature maps of several resolutions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from depict.errors import UserError

if TYPE_CHECKING:
    from depict.encoders.base import Encoder, Size


def create_encoder(
    name: str,
    image_size: Size,
    pretrained: bool | str | Path = False,
    drop_path: float = 0.0,
    patch_size: int | None = None,
    dim: int | None = None,
    depth: int | None = None,
    blocks: tuple[int, ...] | None = None,
    stride: int | None = None,
) -> Encoder:
    """Build the encoder `name` of timm for windows of `image_size`.

    `pretrained` is True for weights from the hub, or the path of a file. `patch_size`, `dim` and `depth` change the
    architecture of a plain ViT, for training from random weights; `blocks` are those whose outputs are its levels.
    `stride` is the grid of the decoder, in pixels: a hierarchical encoder returns the levels that are not finer.
    """
    from depict.encoders.base import check_name
    from depict.encoders.hierarchical import HierarchicalEncoder
    from depict.encoders.vit import PlainViT, is_plain

    check_name(name)
    if not 0 <= drop_path < 1:
        raise UserError(f"drop_path must be in [0, 1), not {drop_path}.")
    if is_plain(name):
        return PlainViT(name, image_size, pretrained, drop_path, patch_size, dim, depth, blocks)
    if given := [flag for flag, value in (("patch_size", patch_size), ("dim", dim), ("depth", depth)) if value]:
        raise UserError(f"'{name}' has its own {given[0]}, only that of a plain ViT can be changed: omit it.")
    if blocks is not None:
        raise UserError(f"'{name}' has levels of its own: omit the blocks, which are for plain ViTs.")
    return HierarchicalEncoder(name, image_size, pretrained, drop_path, stride)
