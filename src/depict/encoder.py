"""A plain ViT of timm as an encoder: normalized images in, patch embeddings Z0 and their grid out.

The ViTs and DeiTs that the paper builds on run as in the released code: LayerNorm with eps 1e-5, and positions resized
bilinearly, only where the number of tokens differs. Any other plain ViT (DINOv2, DINOv3, SigLIP, EVA, ...) runs as in
timm.
"""

from __future__ import annotations

import difflib
import functools
import logging
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
from torch import Tensor, nn

from depict.errors import UserError, one_line
from depict.io.weights import read_weights

RELEASED_FAMILY = re.compile(
    r"(vit|deit)_(tiny|small|base|large)(_distilled)?_patch(8|16|32)_(224|384)(\.(augreg|fb).*)?"
)
_HEADS = ("head.", "head_dist.", "fc_norm.", "pre_logits.", "mask_token")


class Encoder(nn.Module):
    """Images (B, 3, H, W), normalized, with sides that are multiples of the patch -> Z0 (B, N, dim), grid (h, w).

    `pretrained` is True for weights from the hub, or the path of a file. `patch_size`, `dim` and `depth` change the
    architecture, for training from random weights.
    """

    def __init__(
        self,
        name: str,
        image_size: tuple[int, int],
        pretrained: bool | str | Path = False,
        drop_path: float = 0.0,
        patch_size: int | None = None,
        dim: int | None = None,
        depth: int | None = None,
    ):
        super().__init__()
        if not 0 <= drop_path < 1:
            raise UserError(f"drop_path must be in [0, 1), not {drop_path}.")
        shape = {"patch_size": patch_size, "embed_dim": dim, "depth": depth}
        changes: dict[str, Any] = {key: value for key, value in shape.items() if value is not None}
        if any(value < 1 for value in changes.values()):
            raise UserError(f"patch_size, dim and depth of an encoder must be at least 1, not {changes}.")
        if dim is not None:
            changes["num_heads"] = max(1, dim // 64)
            if dim % changes["num_heads"]:
                raise UserError(f"the encoder's dim {dim} must be below 128 or a multiple of 64.")
        if changes and pretrained:
            raise UserError(
                f"'{name}' with another patch_size, dim or depth has no pretrained weights: set pretrained to False."
            )
        self.name = name
        self.released = RELEASED_FAMILY.fullmatch(name) is not None
        self.frozen = False
        if self.released:
            changes["norm_layer"] = functools.partial(LayerNorm, eps=1e-5)
        with torch.device("meta"):
            patch = _build(name, **changes).patch_embed.patch_size
        padded = tuple(side + -side % p for side, p in zip(image_size, patch, strict=True))
        self.vit: Any = _build(name, img_size=padded, drop_path_rate=drop_path, **changes)
        if pretrained:
            self._load(name, pretrained)

    @property
    def dim(self) -> int:
        """D, the dimension of the embeddings."""
        return self.vit.embed_dim

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return self.vit.patch_embed.patch_size

    @property
    def mean(self) -> tuple[float, float, float]:
        """RGB mean (in 0..1) for normalizing images."""
        return tuple(self.vit.pretrained_cfg["mean"])

    @property
    def std(self) -> tuple[float, float, float]:
        """RGB standard deviation (in 0..1) for normalizing images."""
        return tuple(self.vit.pretrained_cfg["std"])

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Patch embeddings (B, N, dim) after the final norm, and the grid; other tokens are dropped."""
        grid = (images.shape[-2] // self.patch_size[0], images.shape[-1] // self.patch_size[1])
        tokens = self._released_features(images, grid) if self.released else self.vit.forward_features(images)
        return tokens[:, self.vit.num_prefix_tokens :], grid

    def freeze(self) -> None:
        """Exclude the weights from training and stay in evaluation mode."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Encoder:
        """Like `nn.Module.train`, but a frozen encoder stays in evaluation mode."""
        return super().train(mode and not self.frozen)

    def _released_features(self, images: Tensor, grid: tuple[int, int]) -> Tensor:
        """All tokens (B, prefix + N, dim) as the released code computes them."""
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
        tokens = tokens + positions
        tokens = checkpoint_seq(vit.blocks, tokens) if vit.grad_checkpointing else vit.blocks(tokens)
        return vit.norm(tokens)

    def _load(self, name: str, pretrained: bool | str | Path) -> None:
        """Load weights in timm's names from the hub or a file, without classifier heads; resize the positions."""
        if pretrained is True:
            source, state = f"the hub's weights of '{name}'", _hub_weights(name)
        else:
            source, state = f"'{pretrained}'", read_weights(Path(str(pretrained)))
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
        missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if missing or extra:
            what = f"it lacks '{missing[0]}'" if missing else f"it has '{extra[0]}', which the encoder does not have"
            raise UserError(f"{source} does not fit the encoder '{name}': {what}. Is it for another encoder?")
        for key, tensor in own.items():
            if state[key].shape != tensor.shape:
                raise UserError(
                    f"{source} does not fit the encoder '{name}': '{key}' has shape {tuple(state[key].shape)}, "
                    f"not {tuple(tensor.shape)}. Is it for another encoder?"
                )
        self.vit.load_state_dict(state)

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


def resize_positions(
    positions: Tensor, prefix: int, grid: tuple[int, int], old_grid: tuple[int, int] | None = None
) -> Tensor:
    """Resize a position embedding (1, prefix + h * w, D) bilinearly to another grid; the prefix is not changed.

    The old grid is assumed to be square if it is not given.
    """
    if old_grid is None:
        side = round((positions.shape[1] - prefix) ** 0.5)
        old_grid = (side, side)
    patches = positions[:, prefix:].mT.unflatten(-1, old_grid)
    patches = F.interpolate(patches, size=grid, mode="bilinear", align_corners=False)
    return torch.cat([positions[:, :prefix], patches.flatten(2).mT], dim=1)


def _build(name: str, **options: Any) -> Any:
    """The timm model with random weights and no classifier, for any image size."""
    base = name.split(".")[0]
    plain = {model for module in ("vision_transformer", "deit", "eva") for model in timm.list_models(module=module)}
    if base not in plain and timm.is_model(base):
        raise UserError(
            f"'{name}' is not a plain ViT; use one such as vit_small_patch16_384 or vit_small_patch14_dinov2."
        )
    if base not in plain:
        near = difflib.get_close_matches(base, sorted(plain), n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "For example vit_small_patch16_384."
        raise UserError(f"unknown encoder '{name}'. {hint} `timm.list_models('vit*')` lists them all.")
    # No pooling, so that the final norm acts on all tokens; distilled DeiTs accept only their own.
    pool = "token" if "distilled" in base else ""
    try:
        return timm.create_model(name, num_classes=0, global_pool=pool, dynamic_img_size=True, **options)
    except (TypeError, RuntimeError, ValueError, AssertionError) as error:
        raise UserError(f"the encoder '{name}' cannot be built: {one_line(error)}.") from error


def _hub_weights(name: str) -> dict[str, Tensor]:
    """The pretrained weights of a timm model from the hub or its local cache."""
    from depict.io.hub import connection_error

    client = logging.getLogger("huggingface_hub")
    was_disabled, client.disabled = client.disabled, True  # it logs every retry; the one error at the end is enough
    try:
        repository = timm.get_pretrained_cfg_value(name, "hf_hub_id")
        unreachable = connection_error(repository) if repository else None
        if unreachable and not _is_cached(repository):
            raise unreachable
        return timm.create_model(name, pretrained=True, num_classes=0).state_dict()
    except Exception as error:  # the hub's client, its HTTP library and the disk raise errors of many types
        raise UserError(
            f"cannot get the weights of '{name}' from the hub: {one_line(error)}. "
            "Set `pretrained` to a local file (.safetensors or .pth), or to False for random weights."
        ) from error
    finally:
        client.disabled = was_disabled


def _is_cached(repository: str) -> bool:
    """Whether any file of a repository is in the hub's local cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        snapshot_download(repository, local_files_only=True, allow_patterns=[])
    except LocalEntryNotFoundError:
        return False
    return True
