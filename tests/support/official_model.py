"""Official checkpoints for tests: random ones in the authors' names, and a plain forward pass over such names."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from support.plain_decoders import decode, layer_norm, transformer_block

SIDE, PATCH, DIM, DEPTH, CLASSES = 64, 16, 64, 2, 7


def official_state(
    kind: str, *, distilled: bool = False, dim: int = DIM, width: int | None = None, grid: tuple[int, int] = (4, 4)
):
    """A whole model's tensors in the official names: depict_sa, depict_ca, cbt, segmenter or linear.

    `width` is the dimension of the decoder, if it is not that of the encoder.
    """
    prefix = 2 if distilled else 1
    shapes = {
        "encoder.cls_token": (1, 1, dim),
        "encoder.pos_embed": (1, prefix + grid[0] * grid[1], dim),
        "encoder.patch_embed.proj.weight": (dim, 3, PATCH, PATCH),
        "encoder.patch_embed.proj.bias": (dim,),
        **norm("encoder.norm", dim),
        "encoder.head.weight": (1000, dim),
        "encoder.head.bias": (1000,),
    }
    if distilled:
        shapes |= {"encoder.dist_token": (1, 1, dim), "encoder.head_dist.weight": (1000, dim)}
    for index in range(DEPTH):
        shapes |= block(f"encoder.blocks.{index}", dim)
    shapes |= {f"decoder.{name}": shape for name, shape in decoder_shapes(kind, dim, width or dim).items()}
    return {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}


def decoder_shapes(kind: str, dim: int, width: int):
    if kind == "linear":
        return {"head.weight": (CLASSES, width), "head.bias": (CLASSES,)}
    shapes = {"cls_emb": (1, CLASSES, width), **norm("mask_norm", CLASSES)}
    if kind == "depict_sa":
        return shapes | subspace("net", 2, 12, width) | norm("decoder_norm", width)
    if kind == "cbt":
        for index in range(2):
            layer = f"net.layers.{index}"
            shapes |= norm(f"{layer}.norm", width) | {f"{layer}.fn.proj.weight": (12, width)}
            shapes |= {f"{layer}.fn.to_out.weight": (width, 12), f"{layer}.fn.to_out.bias": (width,)}
            shapes |= {f"{layer}.fn.{step}": (3, 1, 1) for step in ("step_x", "step_rep")}
        return shapes | norm("decoder_norm", width)
    if kind == "depict_ca":
        shapes |= subspace("snet", 2, 12, width) | subspace("cnet", 3, 6, width)
        return shapes | norm("snorm", width) | norm("cnorm", width)
    shapes |= {"proj_dec.weight": (width, dim), "proj_dec.bias": (width,), "proj_patch": (width, width)}
    shapes |= {"proj_classes": (width, width), **norm("decoder_norm", width)}
    return shapes | block("blocks.0", width) | block("blocks.1", width)


def norm(name: str, dim: int):
    return {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}


def subspace(name: str, layers: int, bases: int, dim: int):
    shapes = {}
    for index in range(layers):
        layer = f"{name}.layers.{index}"
        shapes |= norm(f"{layer}.norm", dim) | {f"{layer}.fn.proj": (bases, dim), f"{layer}.fn.step_size": (1,)}
    return shapes


def block(name: str, dim: int):
    sizes = {"attn.qkv": (3 * dim, dim), "attn.proj": (dim, dim), "mlp.fc1": (4 * dim, dim), "mlp.fc2": (dim, 4 * dim)}
    shapes = norm(f"{name}.norm1", dim) | norm(f"{name}.norm2", dim)
    for part, (rows, columns) in sizes.items():
        shapes |= {f"{name}.{part}.weight": (rows, columns), f"{name}.{part}.bias": (rows,)}
    return shapes


def write_checkpoint(folder: Path, state: dict[str, Tensor], variant: str | None) -> Path:
    """checkpoint.pth as training leaves it, and variant.yml next to it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "checkpoint.pth"
    optimizer = {"state": {}, "param_groups": [{"lr": 1e-3, "params": [0, 1]}]}
    torch.save({"model": state, "optimizer": optimizer, "n_cls": CLASSES, "lr_scheduler": {"it": 3}, "epoch": 1}, path)
    if variant is not None:
        (folder / "variant.yml").write_text(variant)
    return path


def variant(
    heads: int | None = 3, extra: str = "", size: str = "!!python/tuple [64, 64]", classes: int = CLASSES
) -> str:
    """The YAML as the official training writes it."""
    heads_line = "" if heads is None else f"\n    n_heads: {heads}"
    return f"""
algorithm_kwargs: {{batch_size: 8, epoch: 64}}
net_kwargs:
  backbone: vit_tiny_patch16_384
  d_model: {DIM}
  n_heads: 1
  n_layers: {DEPTH}
  patch_size: 16
  image_size: {size}
  normalization: vit
  drop_path_rate: 0.1
  n_cls: {classes}
  decoder:
    name: mask_transformer
    n_layers: 2
    dropout: 0.0{heads_line}
{extra}
"""


class Official:
    """The released model's forward pass, written out over the official tensors, fp64."""

    def __init__(self, state: dict[str, Tensor], heads: int, cross_heads: int | None = None):
        self.state = {name: tensor.double() for name, tensor in state.items()}
        self.heads, self.cross_heads = heads, cross_heads or heads

    def logits(self, images: Tensor) -> Tensor:
        """Normalized images (B, 3, H, W) -> logits (B, C, H, W)."""
        height, width = images.shape[2:]
        images = F.pad(images.double(), (0, -width % PATCH, 0, -height % PATCH))
        grid = images.shape[2] // PATCH, images.shape[3] // PATCH
        decoder = {name.removeprefix("decoder."): t for name, t in self.state.items() if name.startswith("decoder.")}
        masks = decode(decoder, self.encode(images, grid), self.heads, self.cross_heads, grid).masks
        masks = masks.transpose(1, 2).reshape(len(images), -1, *grid)
        return F.interpolate(masks, size=images.shape[2:], mode="bilinear")[..., :height, :width]

    def encode(self, images: Tensor, grid: tuple[int, int]) -> Tensor:
        s = self.state
        patches = F.conv2d(
            images, s["encoder.patch_embed.proj.weight"], s["encoder.patch_embed.proj.bias"], stride=PATCH
        )
        tokens = patches.flatten(2).transpose(1, 2)
        extra = [s[name] for name in ("encoder.cls_token", "encoder.dist_token") if name in s]
        tokens = torch.cat([token.expand(len(images), 1, -1) for token in extra] + [tokens], 1)
        positions = s["encoder.pos_embed"]
        if positions.shape[1] != tokens.shape[1]:
            own = positions[:, len(extra) :]
            side = int(own.shape[1] ** 0.5)
            own = own.reshape(1, side, side, -1).permute(0, 3, 1, 2)
            own = F.interpolate(own, size=grid, mode="bilinear").permute(0, 2, 3, 1).flatten(1, 2)
            positions = torch.cat([positions[:, : len(extra)], own], 1)
        tokens = tokens + positions
        for index in range(DEPTH):
            tokens = transformer_block(s, f"encoder.blocks.{index}", tokens, max(1, tokens.shape[2] // 64))[1]
        return layer_norm(s, "encoder.norm", tokens)[:, len(extra) :]
