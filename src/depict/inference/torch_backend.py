"""Sliding windows, scales and flips over an image of any size, in bounded memory.

Works with any callable `images (B, 3, h, w), normalized -> logits (B, C, h', w')`. Each window keeps only the logits
that the network gave, a patch grid each; the answer at full size is rendered from them in bands of rows (`bands.py`),
so that neither C x H x W logits nor probabilities ever exist at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from depict.errors import UserError
from depict.inference.resample import AxisMap, argmax_labels, bands, bilinear
from depict.inference.sliding import MULTISCALE, Layout, SlidingWindow

__all__ = ["MULTISCALE", "SlidingWindow", "predict", "probabilities"]

Network = Callable[[Tensor], Tensor]

# Bytes of a band of scores: small enough for a core's cache, large enough for a GPU to be busy, enough rows to share.
CPU_BAND, GPU_BAND, WIDE_BAND = 1 << 20, 64 << 20, 64 << 20
# Pixels that the network sees at once: a CPU gains nothing from more, a GPU does.
CPU_PIXELS, GPU_PIXELS = 2 * 512 * 512, 16 * 512 * 512


@torch.inference_mode()
def predict(
    network: Network,
    image: Tensor,
    sliding: SlidingWindow,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    patch_size: tuple[int, int] = (1, 1),
    batch: int | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The class of each pixel of an image, uint8 (3, H, W) -> (H, W), uint8 (int16 beyond 256 classes), on the CPU.

    `mean` and `std` normalize RGB in 0..1. `patch_size`: the network pads its input right and bottom to a multiple of
    it, and its logits cover the padded input. `batch`: windows per call, by default 2 of 512 x 512 pixels on a CPU and
    16 on a GPU, or as many others as have these pixels.
    """
    passes = _apply(network, image, sliding, mean, std, patch_size, batch, device)
    first = passes[0]
    if len(passes) == 1 and first.logits.is_cpu:  # the largest logit is the largest probability: no softmax
        grid = first.logits.transpose(1, 2).contiguous()
        return torch.from_numpy(argmax_labels(grid.numpy(), first.rows, first.columns))
    labels = torch.empty(image.shape[1:], dtype=torch.uint8 if first.logits.shape[1] <= 256 else torch.int16)
    for start, stop, scores in _render(passes):
        labels[start:stop] = scores.max(1).indices  # twice as fast as argmax on a CPU
    return labels


@torch.inference_mode()
def probabilities(
    network: Network,
    image: Tensor,
    sliding: SlidingWindow,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    patch_size: tuple[int, int] = (1, 1),
    batch: int | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[int, int, Tensor]]:
    """The probability of each class at each pixel, in bands from top to bottom; arguments as for `predict`.

    Gives (start, stop, probabilities (C, stop - start, W)); a band is overwritten by the next one.
    """
    passes = _apply(network, image, sliding, mean, std, patch_size, batch, device)
    for start, stop, scores in _render(passes):
        yield start, stop, scores.transpose(0, 1)


class _Window(NamedTuple):
    """What the network sees, and where it belongs."""

    number: int
    """Of its pass."""
    layout: Layout
    flipped: bool
    row: int
    column: int
    pixels: Tensor
    """(3, h, w), normalized."""


@dataclass
class _Pass:
    """One scale, flipped or not: all windows' logits and the maps from them to the image's pixels."""

    logits: Tensor
    """(window rows * h', C, window columns * w'): classes in the middle, so that a band of rows is one product."""
    rows: AxisMap
    columns: AxisMap


def _apply(
    network: Network,
    image: Tensor,
    sliding: SlidingWindow,
    mean: Sequence[float],
    std: Sequence[float],
    patch_size: tuple[int, int],
    batch: int | None,
    device: torch.device | str,
) -> list[_Pass]:
    """Run the network over all windows of all scales and flips, batched across them."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
        raise UserError(f"an image must be uint8 (3, H, W), not {image.dtype} {tuple(image.shape)}.")
    device = torch.device(device)
    pixels = CPU_PIXELS if device.type == "cpu" else GPU_PIXELS
    batch = 1 if sliding.full_image else batch or max(1, pixels // math.prod(sliding.window))
    passes: list[_Pass] = []
    windows = _windows(image, sliding, mean, std, device)
    while group := list(itertools.islice(windows, batch)):
        logits = network(torch.stack([window.pixels for window in group]))
        if logits.ndim != 4 or len(logits) != len(group):
            raise UserError(f"the network must give logits (B, C, h, w), not {tuple(logits.shape)}.")
        h, w = logits.shape[2:]
        for window, values in zip(group, logits, strict=True):
            if window.number == len(passes):
                passes.append(_empty_pass(window, values, image, patch_size))
            rows = slice(window.row * h, (window.row + 1) * h)
            columns = slice(window.column * w, (window.column + 1) * w)
            passes[window.number].logits[rows, :, columns] = values.transpose(0, 1)
    return passes


def _empty_pass(window: _Window, values: Tensor, image: Tensor, patch_size: tuple[int, int]) -> _Pass:
    """Room for the logits of all windows of this one's pass; its own are values (C, h', w')."""
    low = (values.shape[1], values.shape[2])
    rows, columns = window.layout.maps(low, (image.shape[1], image.shape[2]), patch_size)
    height, width = window.layout.room(low)
    logits = values.new_empty(height, len(values), width, dtype=torch.float32)
    return _Pass(logits, rows, columns[::-1] if window.flipped else columns)


def _windows(
    image: Tensor, sliding: SlidingWindow, mean: Sequence[float], std: Sequence[float], device: torch.device
) -> Iterator[_Window]:
    """Every window of every pass, cut, enlarged and normalized on its own.

    One by one, since a 1 x 1000 image enlarges to 64 windows.
    """
    from torchvision.transforms.v2 import functional

    shift, scale = (255 * torch.tensor(v, dtype=torch.float32, device=device).view(3, 1, 1) for v in (mean, std))
    flips = (False, True) if sliding.flip else (False,)
    for number, (factor, flipped) in enumerate(itertools.product(sliding.scales, flips)):
        source = image.cpu()  # resized there, so that its bytes do not depend on the device
        layout = sliding.layout(image.shape[1], image.shape[2], factor)
        resized, size, (height, width), _ = layout
        if resized != tuple(image.shape[1:]):
            source = functional.resize(source, list(resized), functional.InterpolationMode.BILINEAR, antialias=False)
        source = source.to(device)
        if flipped:
            source = source.flip(2)
        enlarge = size != resized
        if enlarge:
            source = source.float().sub_(shift).div_(scale)
        rows, columns = (bilinear(inputs, outputs) for inputs, outputs in zip(resized, size, strict=True))
        for row, column, top, left in layout.windows():
            if enlarge:
                pixels = _sample(source, rows[top : top + height], columns[left : left + width])
            else:
                pixels = source[:, top : top + height, left : left + width].float().sub_(shift).div_(scale)
            yield _Window(number, layout, flipped, row, column, pixels)


def _sample(source: Tensor, rows: AxisMap, columns: AxisMap) -> Tensor:
    """Apply an interpolation to both axes of (3, H, W), reading only what it needs."""
    first, last = int(columns.indices.min()), int(columns.indices.max())
    values = source[:, :, first : last + 1]
    for dim, axis, offset in ((1, rows, 0), (2, columns, first)):
        indices = torch.from_numpy(axis.indices - offset).to(source.device)
        weights = torch.from_numpy(axis.weights).to(source.device)
        shape = (-1, 1) if dim == 1 else (-1,)
        low, high = (values.index_select(dim, i).mul_(w.view(shape)) for i, w in zip(indices.T, weights.T, strict=True))
        values = low.add_(high)
    return values


def _render(passes: list[_Pass]) -> Iterator[tuple[int, int, Tensor]]:
    """Bands (start, stop, probabilities (stop - start, C, W)), averaged over passes, top to bottom, in one buffer.

    Columns are interpolated once per wide band, rows in narrow bands that stay in the processor's cache. All products
    write to a given output: that saves allocations and keeps an autocast around us from rounding them.
    """
    height, width = len(passes[0].rows), len(passes[0].columns)
    classes, device = passes[0].logits.shape[1], passes[0].logits.device
    row_bytes = 4 * classes * width
    narrow = min(height, max(1, (CPU_BAND if device.type == "cpu" else GPU_BAND) // row_bytes))
    wide = max(narrow, min(64, WIDE_BAND // row_bytes) // narrow * narrow)
    column_blocks = [_column_blocks(one, device) for one in passes]
    total, scratch = (torch.empty(narrow, classes, width, device=device) for _ in range(2))
    for top, bottom in bands(height, wide):
        blocks = [_columns(one, top, bottom, columns) for one, columns in zip(passes, column_blocks, strict=True)]
        for start, stop in bands(bottom - top, narrow):
            mean = total[: stop - start]
            for number, (weights, values) in enumerate(blocks):
                scores = scratch[: stop - start] if number else mean
                used = weights[start:stop].any(0).nonzero()
                first, last = int(used[0]), int(used[-1]) + 1
                product = weights[start:stop, first:last].to(device)
                torch.mm(product, values[first:last].flatten(1), out=scores.flatten(1))
                scores.sub_(scores.amax(1, keepdim=True)).exp_()
                share = 1 / (len(passes) * scores.sum(1, keepdim=True))
                if number:
                    mean.addcmul_(scores, share)
                else:
                    mean.mul_(share)
            yield top + start, top + stop, mean


def _column_blocks(one: _Pass, device: torch.device) -> list[tuple[int, int, Tensor, Tensor]]:
    """The column map cut into blocks (start, stop, used columns, weights (used, stop - start)): it is mostly zeros."""
    blocks = []
    for start, stop in bands(len(one.columns), 256):
        used, weights = one.columns.block(start, stop)
        blocks.append((start, stop, torch.from_numpy(used).to(device), torch.from_numpy(weights.T.copy()).to(device)))
    return blocks


def _columns(one: _Pass, top: int, bottom: int, blocks: list[tuple[int, int, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Row weights (bottom - top, k) of a band, and the k rows it uses interpolated along columns, (k, C, W)."""
    used, weights = one.rows.block(top, bottom)
    logits = one.logits[torch.from_numpy(used).to(one.logits.device)]
    values = logits.new_empty(len(used), logits.shape[1], len(one.columns))
    for start, stop, columns, matrix in blocks:
        torch.mm(logits[..., columns].flatten(0, 1), matrix, out=values.flatten(0, 1)[:, start:stop])
    return torch.from_numpy(weights), values
