"""A plain ViT of timm as an encoder: one level of patch embeddings, or one of each chosen block.

The ViTs and DeiTs that the paper builds on run as in the released code: LayerNorm with eps 1e-5, and positions resized
bilinearly, only where the number of tokens differs. Any other plain ViT (DINOv2, DINOv3, SigLIP, EVA, ...) runs as in
timm.
"""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import LayerNorm
from timm.models import checkpoint_seq
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.eva import checkpoint_filter_fn as filter_eva
from timm.models.vision_transformer import checkpoint_filter_fn as filter_vit
from torch import Tensor

from depict.devices import check_parameters
from depict.encoders.base import Encoder, Size, create, load_strictly, pretrained_weights
from depict.errors import UserError, one_line

RELEASED_FAMILY = re.compile(
    r"(vit|deit)_(tiny|small|base|large)(_distilled)?_patch(8|16|32)_(224|384)(\.(augreg|fb).*)?"
)
_HEADS = ("head.", "head_dist.", "fc_norm.", "pre_logits.", "mask_token")


def is_plain(name: str) -> bool:
    """Whether a name of timm is that of a plain ViT."""
    modules = ("vision_transformer", "deit", "eva")
    return any(name.split(".")[0] in timm.list_models(module=module) for module in modules)


class PlainViT(Encoder):
    """Patch embeddings after the final norm, or after each of `blocks` without it (the neck has its own norms).

    `patch_size`, `dim` and `depth` change the architecture, for training from random weights.
    """

    def __init__(
        self,
        name: str,
        image_size: Size,
        pretrained: bool | str | Path = False,
        drop_path: float = 0.0,
        patch_size: int | None = None,
        dim: int | None = None,
        depth: int | None = None,
        blocks: tuple[int, ...] | None = None,
    ):
        changes = _changes(patch_size, dim, depth)
        if changes and pretrained:
            raise UserError(
                f"'{name}' with another patch_size, dim or depth has no pretrained weights: set pretrained to False."
            )
        released = RELEASED_FAMILY.fullmatch(name) is not None
        if released:
            changes["norm_layer"] = functools.partial(LayerNorm, eps=1e-5)
        with torch.device("meta"):
            twin = _build(name, **changes)
        patch = twin.patch_embed.patch_size
        padded = tuple(side + -side % p for side, p in zip(image_size, patch, strict=True))
        positions = math.prod(padded) // math.prod(patch) * twin.embed_dim
        count = sum(tensor.numel() for key, tensor in twin.named_parameters() if key != "pos_embed")
        check_parameters(count + positions, f"the encoder '{name}'")
        vit = _build(name, img_size=padded, drop_path_rate=drop_path, **changes)
        levels = 1 if blocks is None else len(blocks)
        super().__init__(name, (vit.embed_dim,) * levels, (patch,) * levels, vit.pretrained_cfg)
        self.released, self.blocks, self.needs_neck = released, blocks, blocks is not None
        self.vit: Any = vit
        if pretrained:
            self._load(name, pretrained)
        if blocks is not None:
            depth = len(vit.blocks)
            if not blocks or list(blocks) != sorted(set(blocks)) or not 0 <= blocks[0] <= blocks[-1] < depth:
                given = " ".join(map(str, blocks))
                raise UserError(f"the blocks of '{name}' must be rising numbers from 0 to {depth - 1}, not '{given}'.")
            vit.prune_intermediate_layers(list(blocks), prune_norm=True)

    def forward(self, images: Tensor) -> list[Tensor]:
        """One level (B, h, w, D), or one of each of the chosen blocks; class and other prefix tokens are dropped."""
        patch = self.strides[0]
        grid = (images.shape[-2] // patch[0], images.shape[-1] // patch[1])
        if self.released:
            outputs = self._released_outputs(images, grid)
        elif self.blocks is None:
            outputs = [self.vit.forward_features(images)]
        else:
            options = {"output_fmt": "NLC", "intermediates_only": True}
            return [
                level.unflatten(1, grid) for level in self.vit.forward_intermediates(images, self.blocks, **options)
            ]
        return [tokens[:, self.vit.num_prefix_tokens :].unflatten(1, grid) for tokens in outputs]

    def layer_depths(self) -> dict[str, int]:
        """The final norm belongs to the decoder's layer, 0; what comes before the blocks is the deepest."""
        blocks = len(self.vit.blocks)
        depths = {}
        for name, _ in self.named_parameters():
            block = re.match(r"vit\.blocks\.(\d+)\.", name)
            depths[name] = 0 if name.startswith("vit.norm.") else blocks - int(block[1]) if block else blocks + 1
        return depths

    def set_grad_checkpointing(self) -> None:
        """Recompute the activations of every block in the backward pass."""
        self.vit.set_grad_checkpointing()

    def _released_outputs(self, images: Tensor, grid: Size) -> list[Tensor]:
        """All tokens (B, prefix + N, D) after the last block and the norm, as released; or after the chosen blocks."""
        vit, tokens, outputs, start = self.vit, self._embedded(images, grid), [], 0
        for last in self.blocks or (len(self.vit.blocks) - 1,):
            part = vit.blocks[start : last + 1]
            tokens = checkpoint_seq(part, tokens) if vit.grad_checkpointing else part(tokens)
            outputs.append(vit.norm(tokens))  # the identity if blocks were chosen
            start = last + 1
        return outputs

    def _embedded(self, images: Tensor, grid: Size) -> Tensor:
        """All tokens (B, prefix + N, D) before the first block, with their positions, as in the released code."""
        vit = self.vit
        tokens = vit.patch_embed(images).flatten(1, 2)
        prefix = [vit.cls_token] + ([vit.dist_token] if isinstance(vit, VisionTransformerDistilled) else [])
        tokens = torch.cat([*(token.expand(tokens.shape[0], -1, -1) for token in prefix), tokens], dim=1)
        positions, own_grid = vit.pos_embed, vit.patch_embed.grid_size
        if torch.compiler.is_exporting():
            # An exported graph for any size has no branch, so always resize; on the own grid this is the identity.
            same = 1 // (1 + (math.prod(grid) - math.prod(own_grid)) ** 2)
            grid = (grid[0] + same * (own_grid[0] - grid[0]), grid[1] + same * (own_grid[1] - grid[1]))
            positions = resize_positions(positions, len(prefix), grid, own_grid)
        elif positions.shape[1] != tokens.shape[1]:
            positions = resize_positions(positions, len(prefix), grid, own_grid)
        return tokens + positions

    def _load(self, name: str, pretrained: bool | str | Path) -> None:
        """Load weights in timm's names from the hub or a file, without classifier heads; resize the positions."""
        source, state = pretrained_weights(name, pretrained)
        own = self.vit.state_dict()
        if self.released and "pos_embed" in state:
            state["pos_embed"] = self._positions_from(state["pos_embed"], source)
        else:
            filter_state = filter_eva if isinstance(self.vit, Eva) else filter_vit
            try:
                state = filter_state(state, self.vit)
            except (KeyError, RuntimeError, ValueError) as error:
                raise UserError(f"{source} does not fit the encoder '{name}': {one_line(error)}.") from error
        state = {key: tensor for key, tensor in state.items() if not key.startswith(_HEADS) or key in own}
        load_strictly(self.vit, state, name, source)

    def _positions_from(self, positions: Tensor, source: str) -> Tensor:
        """Stored positions, resized to this encoder's grid where their number differs."""
        own = self.vit.pos_embed
        prefix = self.vit.num_prefix_tokens
        patches = positions.shape[1] - prefix
        if positions.shape[1] == own.shape[1] or positions.shape[2] != own.shape[2]:
            return positions
        if round(patches**0.5) ** 2 != patches:
            raise UserError(f"{source} has {patches} positions: neither a square grid nor this model's.")
        return resize_positions(positions, prefix, self.vit.patch_embed.grid_size)


def resize_positions(positions: Tensor, prefix: int, grid: Size, old_grid: Size | None = None) -> Tensor:
    """Resize a position embedding (1, prefix + h * w, D) bilinearly to another grid; the prefix is not changed.

    The old grid is assumed to be square if it is not given.
    """
    if old_grid is None:
        side = round((positions.shape[1] - prefix) ** 0.5)
        old_grid = (side, side)
    patches = positions[:, prefix:].mT.unflatten(-1, old_grid)
    patches = F.interpolate(patches, size=grid, mode="bilinear", align_corners=False)
    return torch.cat([positions[:, :prefix], patches.flatten(2).mT], dim=1)


def _changes(patch_size: int | None, dim: int | None, depth: int | None) -> dict[str, Any]:
    """timm's options for another architecture, with 64 dimensions per head."""
    shape = {"patch_size": patch_size, "embed_dim": dim, "depth": depth}
    changes: dict[str, Any] = {key: value for key, value in shape.items() if value is not None}
    if any(value < 1 for value in changes.values()):
        raise UserError(f"patch_size, dim and depth of an encoder must be at least 1, not {changes}.")
    if dim is not None:
        changes["num_heads"] = max(1, dim // 64)
        if dim % changes["num_heads"]:
            raise UserError(f"the encoder's dim {dim} must be below 128 or a multiple of 64.")
    return changes


def _build(name: str, **options: Any) -> Any:
    """The timm model with random weights and no classifier, for any image size."""
    # No pooling, so that the final norm acts on all tokens; distilled DeiTs accept only their own.
    pool = "token" if "distilled" in name.split(".")[0] else ""
    return create(name, num_classes=0, global_pool=pool, dynamic_img_size=True, **options)
