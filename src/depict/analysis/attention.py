"""Where the attention of a layer and a head looks, for one patch, one class, or the encoder's class token.

Decoder layers are the steps of its unrolled pass that attend: MSSA, MSCA or MHSA. Encoder layers are timm's blocks,
whose attention is read off by a hook on its dropout, which sees it after the softmax on the unfused path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from depict.errors import UserError, unknown
from depict.inference.sliding import Layout
from depict.inference.torch_backend import eval_mode
from depict.io.images import to_rgb
from depict.model import SegmentationModel
from depict.viz.overlays import INK, PAPER

if TYPE_CHECKING:
    from depict.io.images import Picture

MOST_PATCHES = 4096
"""Images with more are scaled down: attention is quadratic in the number of patches."""
TILE, GAP, CAPTION = 320, 8, 22


@dataclass
class AttentionMap:
    """Attention of one head of one layer, from one query to all patches."""

    layer: int
    """From 1."""
    head: int
    """From 1."""
    operator: str
    """mssa, msca or mhsa; block for the encoder's."""
    query: str
    values: np.ndarray
    """float32 (h, w) on the grid of patches. What goes to class or register tokens is left out, so the sum may be
    below 1."""


@dataclass(frozen=True)
class _View:
    """The image as the network sees it, and which patch a pixel of the original lies in."""

    image: np.ndarray
    layout: Layout
    patch: tuple[int, int]

    @property
    def grid(self) -> tuple[int, int]:
        height, width = self.layout.size
        return -(-height // self.patch[0]), -(-width // self.patch[1])

    @property
    def cells(self) -> tuple[float, float]:
        """Rows and columns of patches that the image covers; padding covers the rest of the grid."""
        return self.layout.cells(self.patch)

    def patch_at(self, x: int, y: int, height: int, width: int) -> int:
        """Index of the patch over the pixel (x, y) of an image of height x width."""
        row = int((y + 0.5) / height * self.cells[0])
        column = int((x + 0.5) / width * self.cells[1])
        return row * self.grid[1] + column


@torch.no_grad()
def attention_maps(
    model: SegmentationModel,
    picture: Picture,
    part: str = "decoder",
    layer: int | None = None,
    head: int | None = None,
    name: str | None = None,
    at: tuple[int, int] | None = None,
) -> tuple[list[AttentionMap], tuple[float, float]]:
    """The maps of a layer and a head (from 1; None: of all), and how many rows and columns of patches the image covers.

    The query is the class `name` or the patch over the pixel `at` (x, y); for the encoder by default its class token.
    """
    image = to_rgb(picture)
    if name is not None and at is not None:
        raise UserError("give a class or a place, not both.")
    if name is not None and name not in model.classes:
        raise unknown("class", name, model.classes)
    height, width = image.shape[:2]
    if at is not None and not (0 <= at[0] < width and 0 <= at[1] < height):
        raise UserError(f"the place {at[0]},{at[1]} (x, y) is outside the image of {width} x {height} pixels.")
    view = _view(model, image)
    patch = None if at is None else view.patch_at(*at, height, width)
    query = f"class {name}" if name is not None else "class token" if at is None else f"patch at {at[0]},{at[1]}"
    rows = _encoder_rows if part == "encoder" else _decoder_rows
    with eval_mode(model):
        found = rows(model, view, layer, name, patch)
    maps = []
    for number, operator, attention in found:
        for index in _chosen("head", head, len(attention)):
            values = attention[index].reshape(view.grid).float().cpu().numpy()
            maps.append(AttentionMap(number, index + 1, operator, query, values))
    return maps, view.cells


def _view(model: SegmentationModel, image: np.ndarray) -> _View:
    """The size of the protocol, or as much smaller as makes `MOST_PATCHES`."""
    layout = model.sliding_window().layout(image.shape[0], image.shape[1])
    while math.prod((view := _View(image, layout, model.patch_size)).grid) > MOST_PATCHES:
        height, width = (max(1, int(0.95 * length)) for length in layout.size)
        layout = layout._replace(resized=(height, width), size=(height, width))
    return view


def _tokens(model: SegmentationModel, view: _View) -> tuple[Tensor, tuple[int, int]]:
    return model.tokens(model.network_input(view.image, view.layout)[None])


def _decoder_rows(
    model: SegmentationModel, view: _View, layer: int | None, name: str | None, patch: int | None
) -> list[tuple[int, str, Tensor]]:
    """(layer, operator, attention (heads, N)) of the chosen layers."""
    if name is None and patch is None:
        raise UserError("which attention of the decoder? Give --class NAME or --at X,Y, or --part encoder.")
    trace = model.decoder.unroll(*_tokens(model, view), attention=True)
    steps = [step for step in trace.steps if step.attention is not None]
    if not steps:
        raise UserError(f"the decoder '{model.config.decoder.name}' has no attention; try --part encoder.")
    patches = view.grid[0] * view.grid[1]
    rows = []
    for index in _chosen("layer", layer, len(steps)):
        step = steps[index]
        assert step.attention is not None
        attention = step.attention[0]
        crossing = step.operator == "msca"  # its queries are the classes, its keys the patches
        row = patch if name is None else model.classes.index(name) + (0 if crossing else patches)
        if (name is None and crossing) or row is None or row >= attention.shape[1]:
            if layer is None:
                continue
            asks, way = ("classes", "--class NAME") if crossing else ("patches", "--at X,Y")
            raise UserError(f"layer {layer} of the decoder ({step.operator}) is asked by {asks} only: give {way}.")
        rows.append((index + 1, step.operator, attention[:, row, :patches]))
    return rows


def _encoder_rows(
    model: SegmentationModel, view: _View, layer: int | None, name: str | None, patch: int | None
) -> list[tuple[int, str, Tensor]]:
    if name is not None:
        raise UserError("the encoder knows no classes: give --at X,Y, or --part decoder.")
    vit = model.encoder.vit
    prefix = vit.num_prefix_tokens
    if patch is None and not prefix:
        raise UserError(f"the encoder '{model.encoder.name}' has no class token: give --at X,Y.")
    row = 0 if patch is None else prefix + patch
    chosen = _chosen("layer", layer, len(vit.blocks))
    rows: list[tuple[int, str, Tensor]] = []

    def keep(index: int) -> Callable[[Any, tuple[Tensor, ...], Tensor], None]:
        return lambda _module, inputs, _output: rows.append((index + 1, "block", inputs[0][0, :, row, prefix:]))

    attentions = {index: vit.blocks[index].attn for index in chosen}
    if not all(hasattr(one, "attn_drop") and hasattr(one, "fused_attn") for one in attentions.values()):
        raise UserError(f"the attention of the encoder '{model.encoder.name}' cannot be looked at; try --part decoder.")
    fused = {index: one.fused_attn for index, one in attentions.items()}
    hooks = [one.attn_drop.register_forward_hook(keep(index)) for index, one in attentions.items()]
    try:
        for one in attentions.values():
            one.fused_attn = False
        _tokens(model, view)
    finally:
        for index, one in attentions.items():
            one.fused_attn = fused[index]
        for hook in hooks:
            hook.remove()
    return rows


def _chosen(kind: str, number: int | None, count: int) -> Sequence[int]:
    """Indices from 0 of what is counted from 1."""
    if number is None:
        return range(count)
    if not 1 <= number <= count:
        raise UserError(f"there is no {kind} {number}: they are counted from 1 to {count}.")
    return [number - 1]


def draw_maps(
    picture: Picture, maps: Sequence[AttentionMap], cells: tuple[float, float], at: tuple[int, int] | None = None
) -> Image.Image:
    """The maps as heat over the image, a row for each layer and a column for each head; one map is drawn large.

    Each map has its own scale, from nothing to its largest value, which its caption tells. A ring marks the place.
    """
    image = to_rgb(picture)
    height, width = image.shape[:2]
    factor = (960 if len(maps) == 1 else TILE) / max(height, width)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    gray = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS).convert("L"))
    layers = sorted({one.layer for one in maps})
    heads = max(one.head for one in maps) if len(maps) > 1 else 1
    column, line = max(size[0], 150) + GAP, size[1] + CAPTION + GAP
    sheet = Image.new("RGB", (column * heads + GAP, line * len(layers) + GAP + CAPTION), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    draw.text((GAP, GAP), f"attention of the {maps[0].query}", INK, font)
    for one in maps:
        x = GAP + column * (one.head - 1 if len(maps) > 1 else 0)
        y = GAP + CAPTION + line * layers.index(one.layer)
        sheet.paste(_heat(one.values, gray, cells), (x, y))
        caption = f"{one.operator} {one.layer}, head {one.head}: up to {one.values.max():.2g}"
        draw.text((x, y + size[1] + 2), caption, INK, font)
        if at is not None:
            center = x + (at[0] + 0.5) * factor, y + (at[1] + 0.5) * factor
            for radius, color in ((7, "black"), (6, "white"), (5, "white"), (4, "black")):
                draw.circle(center, radius, outline=color)
    return sheet


def _heat(values: np.ndarray, gray: np.ndarray, cells: tuple[float, float]) -> Image.Image:
    """Heat (h, w) over a gray picture (H, W), of which the first `cells` rows and columns of patches are the image."""
    from matplotlib import colormaps

    box = (0, 0, cells[1], cells[0])
    size = (gray.shape[1], gray.shape[0])
    heat = np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BILINEAR, box=box))
    heat = np.clip(heat / max(float(values.max()), 1e-12), 0, 1)[..., None]
    color = 255 * colormaps["inferno"](heat[..., 0])[..., :3]
    strength = 0.25 + 0.65 * heat
    return Image.fromarray(((1 - strength) * gray[..., None] + strength * color).astype(np.uint8))
