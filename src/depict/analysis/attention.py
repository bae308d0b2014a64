"""Attention maps of a layer and a head, with a patch, a class or the encoder's class token as the query.

Decoder layers are its attention steps: MSSA, MSCA, CBSA or MHSA; hooks see their inputs, from which only the row of the
query is computed. The exact forms of MSSA and MSCA and CBSA have signed weights. Encoder layers are timm's blocks: on
the unfused path, a hook on the attention dropout sees the output of the softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from depict.analysis.steps import sub_blocks
from depict.decoders.base import Decoder, PatchDecoder
from depict.decoders.blocks import MSCABlock, SubBlock
from depict.decoders.mask_classification import MaskClassifier
from depict.errors import UserError, unknown
from depict.inference.sliding import Layout
from depict.inference.torch_backend import eval_mode
from depict.io.images import to_rgb
from depict.model import SegmentationModel

if TYPE_CHECKING:
    from depict.io.images import ImageLike

MAX_PATCHES = 4096
"""Larger images are scaled down: the attention of an encoder is a matrix of patches by patches."""
MAX_TOKENS = 16384
"""The same for a decoder, of whose attention only one row is computed; an image of 512 x 512 pixels at stride 4."""
LayerAttention = tuple[int, str, Tensor]
"""Layer from 1, operator, and attention (heads, N) of the query to all patches."""


@dataclass
class AttentionMap:
    """Attention of one head of one layer, from one query to all patches."""

    layer: int
    """From 1."""
    head: int
    """From 1."""
    operator: str
    """mssa, msca, mssa_exact, msca_exact, cbsa or mhsa; block for the encoder's."""
    query: str
    values: np.ndarray
    """float32 (h, w) on the patch grid. Attention to class and register tokens is left out: the sum may be below 1.

    Signed for the exact forms and CBSA: what is subtracted from the query's token, or added to it.
    """


@dataclass(frozen=True)
class View:
    """An image and the size at which the network sees it as a whole."""

    image: np.ndarray
    layout: Layout
    model: SegmentationModel

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.model.grid(self.layout.size)

    @property
    def cells(self) -> tuple[float, float]:
        """Rows and columns of patches that the image covers; the rest of the grid is padding."""
        return self.layout.cells(self.model.stride)

    def patch_at(self, x: int, y: int, height: int, width: int) -> int:
        """Index of the patch that covers the pixel (x, y) of an image of height x width."""
        row = int((y + 0.5) / height * self.cells[0])
        column = int((x + 0.5) / width * self.cells[1])
        return row * self.grid[1] + column


@torch.no_grad()
def attention_maps(
    model: SegmentationModel,
    picture: ImageLike,
    part: str = "decoder",
    layer: int | None = None,
    head: int | None = None,
    class_name: str | None = None,
    at: tuple[int, int] | None = None,
) -> tuple[list[AttentionMap], tuple[float, float]]:
    """Return the maps of a layer and a head, and how many rows and columns of patches the image covers.

    Layers and heads count from 1; None means all. The query is the class `class_name` or the patch at the pixel `at`
    (x, y); without both it is the class token of the encoder.
    """
    image = to_rgb(picture)
    height, width = image.shape[:2]
    if class_name is not None and at is not None:
        raise UserError("give a class or a position, not both.")
    if class_name is not None and class_name not in model.classes:
        raise unknown("class", class_name, model.classes)
    if at is not None and not (0 <= at[0] < width and 0 <= at[1] < height):
        raise UserError(f"the position {at[0]},{at[1]} (x, y) is outside the image of {width} x {height} pixels.")
    if part not in (parts := _parts(model)):
        names = {"decoder": model.config.decoder.name, "encoder": model.encoder.name}
        (other,) = names.keys() - {part}
        advice = f"; try --part {other}." if parts else f", and neither has the {other} '{names[other]}'."
        raise UserError(f"the {part} '{names[part]}' has no attention on the grid of the masks{advice}")
    view = whole_view(model, image, MAX_PATCHES if part == "encoder" else MAX_TOKENS)
    patch, query = None, "class token" if class_name is None else f"class {class_name}"
    if at is not None:
        patch, query = view.patch_at(*at, height, width), f"patch at {at[0]},{at[1]}"
    layer_attention = _encoder_attention if part == "encoder" else _decoder_attention
    with eval_mode(model):
        layers = layer_attention(model, view, layer, class_name, patch)
    maps = []
    for number, operator, attention in layers:
        for index in _selected("head", head, len(attention)):
            values = attention[index].reshape(view.grid).float().cpu().numpy()
            maps.append(AttentionMap(number, index + 1, operator, query, values))
    return maps, view.cells


def _parts(model: SegmentationModel) -> list[str]:
    """The parts of the model whose attention can be drawn: it must be on the grid of the masks."""
    decoder = any(block.has_attention for block in sub_blocks(model.decoder))
    encoder = hasattr(model.encoder, "vit") and model.stride == model.encoder.strides[0]
    return ["decoder"] * decoder + ["encoder"] * encoder


def whole_view(model: SegmentationModel, image: np.ndarray, most: int) -> View:
    """The image at the model's own size, or smaller if that has more than `most` patches."""
    layout = model.layout(image.shape[0], image.shape[1])
    while math.prod((view := View(image, layout, model)).grid) > most:
        height, width = (max(1, int(0.95 * length)) for length in layout.size)
        layout = layout._replace(resized=(height, width), size=(height, width))
    return view


def view_tokens(model: SegmentationModel, view: View) -> tuple[Tensor, tuple[int, int]]:
    """Z0 (1, N, D) of the image, and its grid."""
    return model.tokens(model.network_input(view.image, view.layout)[None])


def _decoder_attention(
    model: SegmentationModel, view: View, layer: int | None, class_name: str | None, patch: int | None
) -> list[LayerAttention]:
    if class_name is None and patch is None:
        other = ", or --part encoder" if "encoder" in _parts(model) else ""
        classes = "" if isinstance(model.decoder, PatchDecoder) else "--class NAME or "
        raise UserError(f"the decoder needs a query: give {classes}--at X,Y{other}.")
    blocks = [block for block in sub_blocks(model.decoder) if block.has_attention]
    inputs = _inputs(model.decoder, blocks, *view_tokens(model, view))
    patches = math.prod(view.grid)
    layers = []
    for index in _selected("layer", layer, len(blocks)):
        block, own = blocks[index], inputs[index]
        cross = isinstance(block, MSCABlock)  # its queries are the classes, its keys the patches
        if cross and isinstance(model.decoder, MaskClassifier):
            if layer is None:
                continue
            raise UserError(f"the queries of layer {layer} ({block.name}) are not classes: choose an MSSA layer.")
        row = patch if class_name is None else model.classes.index(class_name) + (0 if cross else patches)
        if (class_name is None and cross) or row is None or row >= own[0].shape[1]:
            if layer is None:
                continue
            queries, flag = ("class", "--class NAME") if cross else ("patch", "--at X,Y")
            raise UserError(f"layer {layer} of the decoder ({block.name}) has {queries} queries only: give {flag}.")
        attention = block.attention(*own, queries=[row])
        assert attention is not None
        layers.append((index + 1, block.name, attention[0, :, 0, :patches]))
    if not layers:
        raise UserError(f"the decoder '{model.config.decoder.name}' has no class queries: give --at X,Y.")
    return layers


def _inputs(decoder: Decoder, blocks: list[SubBlock], Z: Tensor, grid: tuple[int, int]) -> list[tuple[Any, ...]]:
    """The arguments of every block in a pass over the tokens Z (B, N, D)."""
    seen: list[tuple[Any, ...]] = []
    hooks = [block.register_forward_pre_hook(lambda _block, inputs: seen.append(inputs)) for block in blocks]
    try:
        decoder(Z, grid)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _encoder_attention(
    model: SegmentationModel, view: View, layer: int | None, class_name: str | None, patch: int | None
) -> list[LayerAttention]:
    if class_name is not None:
        raise UserError("the encoder has no class queries: give --at X,Y, or --part decoder.")
    vit: Any = model.encoder.vit
    prefix = vit.num_prefix_tokens
    if patch is None and not prefix:
        raise UserError(f"the encoder '{model.encoder.name}' has no class token: give --at X,Y.")
    row = 0 if patch is None else prefix + patch
    modules = {index: vit.blocks[index].attn for index in _selected("layer", layer, len(vit.blocks))}
    if not all(hasattr(module, "attn_drop") and hasattr(module, "fused_attn") for module in modules.values()):
        raise UserError(f"the attention of the encoder '{model.encoder.name}' cannot be read; try --part decoder.")
    layers: list[LayerAttention] = []

    def keep(index: int) -> Callable[[Any, tuple[Tensor, ...], Tensor], None]:
        return lambda _module, inputs, _output: layers.append((index + 1, "block", inputs[0][0, :, row, prefix:]))

    fused = {index: module.fused_attn for index, module in modules.items()}
    hooks = [module.attn_drop.register_forward_hook(keep(index)) for index, module in modules.items()]
    try:
        for module in modules.values():
            module.fused_attn = False
        view_tokens(model, view)
    finally:
        for index, module in modules.items():
            module.fused_attn = fused[index]
        for hook in hooks:
            hook.remove()
    return layers


def _selected(what: str, number: int | None, count: int) -> Sequence[int]:
    """Indices from 0 of the layer or head with this number from 1; None selects all."""
    if number is None:
        return range(count)
    if not 1 <= number <= count:
        raise UserError(f"there is no {what} {number}: there are {what}s 1 to {count}.")
    return [number - 1]
