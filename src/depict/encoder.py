"""A plain ViT of timm as an encoder: normalized images in, patch embeddings Z0 and their grid out.

Two families share the wrapper. The ViTs and DeiTs that the paper builds on are run as the authors ran them: LayerNorm
with eps 1e-5 and a position grid resized bilinearly, only when the number of tokens differs. Any other plain ViT
(DINOv2, DINOv3, SigLIP, EVA ...) is run as timm runs it.
"""

from __future__ import annotations

import difflib
import functools
import logging
import math
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.layers import LayerNorm
from timm.models import checkpoint_seq
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.eva import checkpoint_filter_fn as filter_eva
from timm.models.vision_transformer import checkpoint_filter_fn as filter_vit
from torch import Tensor, nn

from depict.errors import UserError

RELEASED_FAMILY = re.compile(
    r"(vit|deit)_(tiny|small|base|large)(_distilled)?_patch(8|16|32)_(224|384)(\.(augreg|fb).*)?"
)
_HEADS = ("head.", "head_dist.", "fc_norm.", "pre_logits.", "mask_token")


class Encoder(nn.Module):
    """Normalized images (B, 3, H, W), sides multiples of the patch -> Z0 (B, N, dim) and the grid (h, w)."""

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
                f"'{name}' with its own patch_size, dim or depth has no pretrained weights: pretrained=False."
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
        """RGB mean in 0..1 that the encoder's images are normalized with."""
        return tuple(self.vit.pretrained_cfg["mean"])

    @property
    def std(self) -> tuple[float, float, float]:
        """RGB standard deviation in 0..1 that the encoder's images are normalized with."""
        return tuple(self.vit.pretrained_cfg["std"])

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Final normalized patch embeddings; class, distillation and register tokens are dropped."""
        grid = (images.shape[-2] // self.patch_size[0], images.shape[-1] // self.patch_size[1])
        tokens = self._released_features(images, grid) if self.released else self.vit.forward_features(images)
        return tokens[:, self.vit.num_prefix_tokens :], grid

    def freeze(self) -> None:
        """Keep the weights as they are, and evaluation mode with them."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Encoder:
        """As `nn.Module.train`; a frozen encoder stays in evaluation mode."""
        return super().train(mode and not self.frozen)

    def _released_features(self, images: Tensor, grid: tuple[int, int]) -> Tensor:
        vit = self.vit
        tokens = vit.patch_embed(images).flatten(1, 2)
        prefix = [vit.cls_token] + ([vit.dist_token] if isinstance(vit, VisionTransformerDistilled) else [])
        tokens = torch.cat([*(token.expand(tokens.shape[0], -1, -1) for token in prefix), tokens], dim=1)
        positions, own_grid = vit.pos_embed, vit.patch_embed.grid_size
        if torch.compiler.is_exporting():
            # A graph for any size holds no branch: resizing to the own grid is the identity.
            same = 1 // (1 + (math.prod(grid) - math.prod(own_grid)) ** 2)
            grid = (grid[0] + same * (own_grid[0] - grid[0]), grid[1] + same * (own_grid[1] - grid[1]))
            positions = resize_positions(positions, len(prefix), grid, own_grid)
        elif positions.shape[1] != tokens.shape[1]:
            positions = resize_positions(positions, len(prefix), grid, own_grid)
        tokens = tokens + positions
        tokens = checkpoint_seq(vit.blocks, tokens) if vit.grad_checkpointing else vit.blocks(tokens)
        return vit.norm(tokens)

    def _load(self, name: str, pretrained: bool | str | Path) -> None:
        """Load weights of timm's names from the hub or a file; heads are left out, the position grid is resized."""
        if pretrained is True:
            source, state = f"the hub's weights of '{name}'", _hub_state(name)
        else:
            source, state = f"'{pretrained}'", read_state(Path(str(pretrained)))
        own = self.vit.state_dict()
        if self.released and "pos_embed" in state:
            state["pos_embed"] = self._positions_from(state["pos_embed"], source)
        else:
            filter_state = filter_eva if isinstance(self.vit, Eva) else filter_vit
            try:
                state = filter_state(state, self.vit)
            except (KeyError, RuntimeError, ValueError) as error:
                raise UserError(f"{source} does not fit the encoder '{name}': {_short(error)}") from error
        state = {key: tensor for key, tensor in state.items() if not key.startswith(_HEADS) or key in own}
        missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if missing or extra:
            what = f"it lacks '{missing[0]}'" if missing else f"it has '{extra[0]}' which the encoder has not"
            raise UserError(f"{source} does not fit the encoder '{name}': {what}. Is it for another encoder?")
        for key, tensor in own.items():
            if state[key].shape != tensor.shape:
                raise UserError(
                    f"{source} does not fit the encoder '{name}': '{key}' has shape {tuple(state[key].shape)}, "
                    f"not {tuple(tensor.shape)}. Is it for another encoder?"
                )
        self.vit.load_state_dict(state)

    def _positions_from(self, positions: Tensor, source: str) -> Tensor:
        own = self.vit.pos_embed
        prefix = self.vit.num_prefix_tokens
        patches = positions.shape[1] - prefix
        if positions.shape[1] == own.shape[1] or positions.shape[2] != own.shape[2]:
            return positions
        if round(patches**0.5) ** 2 != patches:
            raise UserError(f"{source} has {patches} positions, which are no square grid and not this model's either.")
        return resize_positions(positions, prefix, self.vit.patch_embed.grid_size)


def resize_positions(
    positions: Tensor, prefix: int, grid: tuple[int, int], old_grid: tuple[int, int] | None = None
) -> Tensor:
    """Resize a position embedding (1, prefix + h * w, D) bilinearly to another grid; the prefix is kept.

    The old grid is taken as square where it is not given.
    """
    if old_grid is None:
        side = round((positions.shape[1] - prefix) ** 0.5)
        old_grid = (side, side)
    patches = positions[:, prefix:].mT.unflatten(-1, old_grid)
    patches = F.interpolate(patches, size=grid, mode="bilinear", align_corners=False)
    return torch.cat([positions[:, :prefix], patches.flatten(2).mT], dim=1)


def read_state(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a .safetensors or .pth file; pickled code is never run."""
    if not path.is_file():
        raise UserError(f"there is no weight file '{path}'.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # about pickles that are refused below anyway
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror or _short(error)}") from error
    except SafetensorError as error:
        raise UserError(f"'{path}' is not a readable weight file: {_short(error)}") from error
    except pickle.UnpicklingError as error:  # its text advises to run the code
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"objects other than tensors ({found[1]})" if found else "objects other than tensors, or is damaged"
        raise UserError(
            f"'{path}' is refused: it holds {what}; reading such a file could run code. "
            "Get its tensors alone, as .safetensors or a state_dict."
        ) from error
    except Exception as error:  # torch's of a file that was cut, or whatever the bytes happen to mean
        raise UserError(f"'{path}' is not a readable weight file: it is damaged, or of another kind.") from error
    for key in ("state_dict", "model", "teacher"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    tensors = (
        {key: value for key, value in content.items() if isinstance(value, Tensor)} if isinstance(content, dict) else {}
    )
    if not tensors:
        raise UserError(f"'{path}' holds no tensors by name.")
    return tensors


def _build(name: str, **options: Any) -> Any:
    """The timm model with random weights and no classifier, for any image size."""
    base = name.split(".")[0]
    plain = {model for module in ("vision_transformer", "deit", "eva") for model in timm.list_models(module=module)}
    if base not in plain and timm.is_model(base):
        raise UserError(
            f"'{name}' is not a plain ViT; take one such as vit_small_patch16_384 or vit_small_patch14_dinov2."
        )
    if base not in plain:
        near = difflib.get_close_matches(base, sorted(plain), n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "For example vit_small_patch16_384."
        raise UserError(f"unknown encoder '{name}'. {hint} `timm.list_models('vit*')` lists them all.")
    # No pooling, so that the final norm acts on all tokens; only the distilled DeiTs insist on their own.
    pool = "token" if "distilled" in base else ""
    try:
        return timm.create_model(name, num_classes=0, global_pool=pool, dynamic_img_size=True, **options)
    except (TypeError, RuntimeError, ValueError, AssertionError) as error:
        raise UserError(f"the encoder '{name}' cannot be built: {_short(error)}") from error


def _hub_state(name: str) -> dict[str, Tensor]:
    from depict.io.hub import connection_error

    client = logging.getLogger("huggingface_hub")
    loud, client.disabled = client.disabled, True  # it tells of each of its tries; one line at the end is enough
    try:
        repository = timm.get_pretrained_cfg_value(name, "hf_hub_id")
        silence = connection_error(repository) if repository else None
        if silence and not _is_kept(repository):
            raise silence
        return timm.create_model(name, pretrained=True, num_classes=0).state_dict()
    except Exception as error:  # whatever the hub client, the network or the disk raises
        raise UserError(
            f"cannot get the weights of '{name}' from the hub ({_short(error)}). "
            "Give a local file (--encoder.pretrained FILE.safetensors), or False for random weights."
        ) from error
    finally:
        client.disabled = loud


def _is_kept(repository: str) -> bool:
    """Whether the hub's cache on this machine holds anything of a repository, whichever files."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        snapshot_download(repository, local_files_only=True, allow_patterns=[])
    except LocalEntryNotFoundError:
        return False
    return True


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
