"""The encoder and decoder of an official checkpoint, read off the names and shapes of its tensors.

`variant.yml` adds what the tensors cannot say: how many heads share the bases, a position grid that is not square, the
normalization. Where both give a value, they must agree.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

import timm
from torch import Tensor

from depict.config.schema import DecoderConfig, EncoderConfig
from depict.errors import UserError, unknown
from depict.interchange.variant import Variant

State = Mapping[str, Tensor]

SIZES = {(192, 12): "tiny", (384, 12): "small", (768, 12): "base", (1024, 24): "large"}
"""timm's names of the ViTs by dimension and depth."""
HEAD_DIM = 64
"""Dimension of each attention head of the encoders."""
MEANS = {"vit": (0.5, 0.5, 0.5), "deit": (0.485, 0.456, 0.406)}
"""Means of the normalizations, by their official names."""

_PATCH_EMBEDDING = "encoder.patch_embed.proj.weight"
_ENCODER_LAYER = r"encoder\.blocks\.(\d+)\..+"
_CROSS_LAYER = r"decoder\.cnet\.layers\.(\d+)\..+"
# The tensor by whose name a decoder is recognized.
_DECODER_MARK = {
    "depict_ca": r"decoder\.snet\.layers\.\d+\.fn\.proj",
    "depict_sa": r"decoder\.net\.layers\.\d+\.fn\.proj",
    "cbt": r"decoder\.net\.layers\.\d+\.fn\.proj\.weight",
    "segmenter": r"decoder\.blocks\.\d+\.attn\.qkv\.weight",
    "linear": r"decoder\.head\.weight",
}
# Names of the tensors in the layers that variant.yml counts.
_DECODER_LAYER = {
    "depict_ca": r"decoder\.snet\.layers\.(\d+)\..+",
    "depict_sa": r"decoder\.net\.layers\.(\d+)\..+",
    "cbt": r"decoder\.net\.layers\.(\d+)\..+",
    "segmenter": r"decoder\.blocks\.(\d+)\..+",
}


def check_variant(state: State, variant: Variant, checkpoint: Path) -> None:
    """Refuse a variant.yml that contradicts the tensors: it belongs to another model, so its heads may be wrong too."""
    dim, _, patch, _ = _shape(state, _PATCH_EMBEDDING, 4)
    name = decoder_name(state)
    classes, width = _head_shape(state, name)
    expected = {
        ("n_cls",): classes,
        ("decoder", "n_cls"): classes,
        ("d_model",): dim,
        ("decoder", "d_model"): width,
        ("n_layers",): _count_layers(state, _ENCODER_LAYER),
        ("patch_size",): patch,
    }
    if name in _DECODER_LAYER:
        expected["decoder", "n_layers"] = _count_layers(state, _DECODER_LAYER[name])
    for keys, value in expected.items():
        given = variant.integer("net_kwargs", *keys)
        if given not in (None, value):
            raise UserError(
                f"'{variant.path}' says net_kwargs.{'.'.join(keys)} = {given}, but in '{checkpoint}' it is {value}: "
                "the YAML belongs to another model. Give the right one (--variant FILE), or remove it and give --heads."
            )


def encoder_config(state: State, variant: Variant) -> tuple[EncoderConfig, tuple[int, int]]:
    """The ViT that the tensors describe, and the crop (height, width) that its position embeddings belong to."""
    dim, _, *patch = _shape(state, _PATCH_EMBEDDING, 4)
    if patch[0] != patch[1]:
        raise UserError(f"patches of {patch[0]} x {patch[1]} pixels: only square patches can be imported.")
    heads, given = max(1, dim // HEAD_DIM), variant.integer("net_kwargs", "n_heads")
    if given not in (None, heads):
        raise UserError(
            f"'{variant.path}' gives the encoder {given} heads: only heads of {HEAD_DIM} dimensions, here {heads}, "
            "can be imported."
        )
    depth = _count_layers(state, _ENCODER_LAYER)
    distilled = "encoder.dist_token" in state
    size = SIZES.get((dim, depth))
    name = _timm_name(size, patch[0], distilled, _normalization(state, variant))
    config = EncoderConfig(name, pretrained=False, drop_path=variant.number("net_kwargs", "drop_path_rate") or 0.0)
    if size is None or f"_{size}_" not in name:
        config.dim, config.depth = dim, depth
    if f"_patch{patch[0]}_" not in name:
        config.patch_size = patch[0]
    return config, _image_size(state, variant, patch[0], prefix_tokens=2 if distilled else 1)


def _timm_name(size: str | None, patch: int, distilled: bool, family: str) -> str:
    """timm's name of this ViT or DeiT, or of one that differs only in sizes; with the right normalization."""
    infix = "_distilled" if distilled else ""
    for candidate, pixels, patches in itertools.product((size, "tiny", "base"), (384, 224), (patch, 16)):
        name = f"{family}_{candidate}{infix}_patch{patches}_{pixels}"
        if timm.is_model(name) and tuple(timm.get_pretrained_cfg(name).mean) == MEANS[family]:
            return name
    raise UserError(f"timm has no {family}{infix} with patches of {patch} pixels and this normalization.")


def _image_size(state: State, variant: Variant, patch: int, prefix_tokens: int) -> tuple[int, int]:
    """Crop of the training, from the position embeddings: a square grid, unless variant.yml gives another."""
    positions = _shape(state, "encoder.pos_embed", 3)[1] - prefix_tokens
    given = variant.pair("net_kwargs", "image_size")
    side = round(max(0, positions) ** 0.5)
    rows, columns = (side, side) if given is None else (given[0] // patch, given[1] // patch)
    if rows * columns != positions or positions < 1:
        setting = f"net_kwargs.image_size in '{variant.path}'"
        if given is None:
            raise UserError(f"{positions} positions are not a square grid: give height and width as {setting}.")
        raise UserError(f"{setting} is {given}, which does not fit {positions} positions of {patch} pixels.")
    return rows * patch, columns * patch


def _normalization(state: State, variant: Variant) -> str:
    """vit (mean and standard deviation 0.5) or deit (ImageNet's)."""
    given = variant.text("net_kwargs", "normalization") or variant.text("dataset_kwargs", "normalization")
    if given is None:
        deit = "encoder.dist_token" in state or "deit" in (variant.text("net_kwargs", "backbone") or "")
        return "deit" if deit else "vit"
    if given not in MEANS:
        raise unknown(f"normalization in '{variant.path}':", given, MEANS)
    return given


def decoder_name(state: State) -> str:
    """Our name of the decoder that the tensors belong to."""
    names = [ours for ours, mark in _DECODER_MARK.items() if any(re.fullmatch(mark, name) for name in state)]
    if len(names) != 1:
        found = f"it has the tensors of {' and '.join(names)}" if names else "it has no known decoder"
        raise UserError(f"not a DEPICT-SA, DEPICT-CA, CBT or Segmenter checkpoint: {found}.")
    return names[0]


def num_classes(state: State) -> int:
    """Number of classes of the decoder."""
    return _head_shape(state, decoder_name(state))[0]


def decoder_config(state: State, variant: Variant, heads: int | None, cross_heads: int | None) -> DecoderConfig:
    """Decoder, layers and dimensions from the tensors; numbers of heads from the caller or variant.yml."""
    name = decoder_name(state)
    dim, width = _shape(state, _PATCH_EMBEDDING, 4)[0], _head_shape(state, name)[1]
    if width != dim and name != "segmenter":
        raise UserError(
            f"the decoder has dimension {width}, the encoder {dim}: only Segmenter's mask transformer has a projection "
            "(proj_dec) from one to the other."
        )
    if name == "linear":
        return DecoderConfig(name)
    if name == "cbt":  # each head has its own step size
        heads = _shape(state, "decoder.net.layers.0.fn.step_x", 3)[0]
    heads = heads or variant.integer("net_kwargs", "decoder", "n_heads")
    config = DecoderConfig(name, layers=_count_layers(state, _DECODER_LAYER[name]), heads=heads)
    if name == "segmenter":
        config.width = None if width == dim else width
        config.dropout = variant.number("net_kwargs", "decoder", "dropout")
    elif name == "cbt":
        config.head_dim = _head_dim(state, "decoder.net.layers.0.fn.proj.weight", heads, "--heads")
    elif name == "depict_sa":
        config.head_dim = _head_dim(state, "decoder.net.layers.0.fn.proj", heads, "--heads")
    else:
        config.head_dim = _head_dim(state, "decoder.snet.layers.0.fn.proj", heads, "--heads")
        config.cross_layers = _count_layers(state, _CROSS_LAYER)
        config.cross_heads = cross_heads or heads
        config.cross_head_dim = _head_dim(state, "decoder.cnet.layers.0.fn.proj", config.cross_heads, "--cross-heads")
    return config


def _head_dim(state: State, name: str, heads: int | None, flag: str) -> int:
    """Bases of each head, of which the tensor `name` has (heads * head_dim, D)."""
    bases = _shape(state, name, 2)[0]
    if heads is None:
        raise UserError(
            f"'{name}' has {bases} bases, and no variant.yml says how many heads share them (decoder.n_heads): "
            f"give {flag}, such as {flag} 3."
        )
    if heads < 1 or bases % heads:
        raise UserError(f"the {bases} bases of '{name}' cannot be shared by {heads} heads: give {flag}.")
    return bases // heads


def _head_shape(state: State, decoder: str) -> tuple[int, int]:
    """Number of classes, and dimension of the embeddings that are compared with them."""
    if decoder == "linear":
        classes, width = _shape(state, "decoder.head.weight", 2)
    else:
        _, classes, width = _shape(state, "decoder.cls_emb", 3)
    return classes, width


def _shape(state: State, name: str, ndim: int) -> tuple[int, ...]:
    if name not in state:
        raise UserError(f"not a DEPICT, CBT or Segmenter checkpoint: '{name}' is missing.")
    if state[name].ndim != ndim or 0 in state[name].shape:
        raise UserError(f"'{name}' has shape {tuple(state[name].shape)}, unlike in official checkpoints.")
    return tuple(state[name].shape)


def _count_layers(state: State, pattern: str) -> int:
    """Number of different layers among the names that match."""
    return len({match[1] for name in state if (match := re.fullmatch(pattern, name))})
