"""Sliding windows, scales and flips over an image of any size, in bounded memory.

Works with any callable `images (B, 3, h, w), normalized -> logits (B, C, h', w')`. Each window
keeps only its logits on the patch grid. Labels or probabilities at full size are rendered from them
in bands of rows (`resample.py`), so that C x H x W logits or probabilities never exist at once.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from depict.errors import UserError
from depict.inference.preprocess import NetworkInput
from depict.inference.resample import AxisMap, argmax_labels, bands
from depict.inference.sliding import Layout, NetworkSpec, SlidingWindow

Network = Callable[[Tensor], Tensor]
"""Normalized images (B, 3, h, w) -> logits (B, C, h', w')."""

# Bytes of a band of scores. On a CPU narrow bands fit into a core's cache; wide bands share the work along columns.
CPU_BAND, GPU_BAND, WIDE_BAND = 1 << 20, 64 << 20, 64 << 20
# Pixels per call of the network: a CPU gains nothing from more, a GPU does.
CPU_PIXELS, GPU_PIXELS = 2 * 512 * 512, 16 * 512 * 512


@contextlib.contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode inside the block, and back to the previous mode afterwards."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


@torch.inference_mode()
def predict(
    network: Network, image: Tensor, sliding: SlidingWindow, spec: NetworkSpec, device: torch.device | str = "cpu"
) -> Tensor:
    """The class of each pixel of an image, uint8 (3, H, W) -> (H, W), uint8 (int16 beyond 256 classes), on the CPU."""
    return next(apply(network, [image], sliding, spec, device)).labels()


def probabilities(
    network: Network, image: Tensor, sliding: SlidingWindow, spec: NetworkSpec, device: torch.device | str = "cpu"
) -> Iterator[tuple[int, int, Tensor]]:
    """The probability of each class at each pixel of an image uint8 (3, H, W), in bands from top to bottom.

    Yields (start, stop, probabilities (C, stop - start, W)); each band is overwritten by the next
    one.
    """
    yield from next(apply(network, [image], sliding, spec, device)).probabilities()


class _Window(NamedTuple):
    """One input of the network and where it comes from."""

    number: int
    """Index of its pass."""
    layout: Layout
    flipped: bool
    row: int
    column: int
    last: bool
    """Whether it is the last window of its image."""
    image_size: tuple[int, int]
    pixels: Tensor
    """(3, h, w), normalized."""


@dataclass
class _Pass:
    """One scale, flipped or not: the logits of all windows and the maps from them to the image's pixels."""

    logits: Tensor
    """(window rows * h', C, window columns * w'): classes in the middle, so that a band of rows is one product."""
    rows: AxisMap
    columns: AxisMap
    map_to: Callable[[tuple[int, int]], tuple[AxisMap, AxisMap]]
    """The maps of rows and columns to a result of another size."""


@dataclass
class Scores:
    """The logits of one image on the patch grids of all its windows; labels and probabilities are rendered from them.

    They take little memory, so that one call of the network can answer several questions.
    """

    passes: list[_Pass]

    @torch.inference_mode()
    def labels(self) -> Tensor:
        """The class of each pixel (H, W), uint8 (int16 beyond 256 classes), on the CPU."""
        first = self.passes[0]
        if len(self.passes) == 1 and first.logits.is_cpu:
            # The largest logit has the largest probability: no softmax needed.
            grid = first.logits.transpose(1, 2).numpy()
            return torch.from_numpy(argmax_labels(grid, first.rows, first.columns))
        dtype = torch.uint8 if first.logits.shape[1] <= 256 else torch.int16
        labels = torch.empty(len(first.rows), len(first.columns), dtype=dtype)
        for start, stop, scores in _render(self.passes):
            labels[start:stop] = scores.max(1).indices  # twice as fast as argmax on a CPU
        return labels

    @torch.inference_mode()
    def probabilities(self, size: tuple[int, int] | None = None) -> Iterator[tuple[int, int, Tensor]]:
        """Bands (start, stop, probabilities (C, stop - start, W)); `size` (H, W) is the image's own by default."""
        passes = self.passes
        if size is not None:
            maps = [part.map_to(size) for part in passes]
            passes = [replace(part, rows=r, columns=c) for part, (r, c) in zip(passes, maps, strict=True)]
        for start, stop, scores in _render(passes):
            yield start, stop, scores.transpose(0, 1)


@torch.inference_mode()
def apply(
    network: Network,
    images: Iterable[Tensor],
    sliding: SlidingWindow,
    spec: NetworkSpec,
    device: torch.device | str = "cpu",
) -> Iterator[Scores]:
    """Run the network over all windows of all scales and flips of images uint8 (3, H, W), batched across them."""
    device = torch.device(device)
    pixels = CPU_PIXELS if device.type == "cpu" else GPU_PIXELS
    batch = 1 if sliding.full_image else spec.batch or max(1, pixels // math.prod(sliding.window))
    passes: list[_Pass] = []
    windows = (window for image in images for window in _windows(image, sliding, spec, device))
    while group := list(itertools.islice(windows, batch)):
        logits = network(torch.stack([window.pixels for window in group]))
        if logits.ndim != 4 or len(logits) != len(group):
            raise UserError(f"the network must return logits (B, C, h, w), not {tuple(logits.shape)}.")
        h, w = logits.shape[2:]
        for window, values in zip(group, logits, strict=True):
            if window.number == len(passes):
                passes.append(_empty_pass(window, values, spec.multiple))
            rows = slice(window.row * h, (window.row + 1) * h)
            columns = slice(window.column * w, (window.column + 1) * w)
            passes[window.number].logits[rows, :, columns] = values.transpose(0, 1)
            if window.last:
                yield Scores(passes)
                passes = []


def _empty_pass(window: _Window, values: Tensor, multiple: tuple[int, int]) -> _Pass:
    """The pass of this window, with uninitialized logits; `values` (C, h', w') are those of the window."""
    low = (values.shape[1], values.shape[2])
    map_to = partial(window.layout.maps, low, multiple=multiple, flipped=window.flipped)
    height, width = window.layout.logits_size(low)
    logits = values.new_empty(height, len(values), width, dtype=torch.float32)
    return _Pass(logits, *map_to(window.image_size), map_to)


def _windows(image: Tensor, sliding: SlidingWindow, spec: NetworkSpec, device: torch.device) -> Iterator[_Window]:
    """Every window of every pass over an image, one after the other."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
        raise UserError(f"an image must be uint8 (3, H, W), not {image.dtype} {tuple(image.shape)}.")
    size = (image.shape[1], image.shape[2])
    flips = (False, True) if sliding.flip else (False,)
    passes = list(itertools.product(sliding.scales, flips))
    for number, (scale, flipped) in enumerate(passes):
        layout = sliding.layout(*size, scale)
        source = NetworkInput(image, layout, spec.mean, spec.std, device, flipped)
        windows = list(layout.windows())
        for row, column, top, left in windows:
            last = number == len(passes) - 1 and (row, column) == windows[-1][:2]
            yield _Window(number, layout, flipped, row, column, last, size, source.crop(top, left, *layout.window))


def _render(passes: list[_Pass]) -> Iterator[tuple[int, int, Tensor]]:
    """Bands (start, stop, probabilities (stop - start, C, W)), averaged over passes, top to bottom, in one buffer.

    Columns are interpolated once per wide band, rows in narrow bands that stay in the processor's
    cache. All products write to a given output: that saves allocations and keeps an outer autocast
    from rounding them.
    """
    height, width = len(passes[0].rows), len(passes[0].columns)
    classes, device = passes[0].logits.shape[1], passes[0].logits.device
    row_bytes = 4 * classes * width
    narrow = min(height, max(1, (CPU_BAND if device.type == "cpu" else GPU_BAND) // row_bytes))
    wide = max(narrow, min(64, WIDE_BAND // row_bytes) // narrow * narrow)
    column_blocks = [_column_blocks(part, device) for part in passes]
    total, scratch = (torch.empty(narrow, classes, width, device=device) for _ in range(2))
    for top, bottom in bands(height, wide):
        blocks = [_columns(part, top, bottom, columns) for part, columns in zip(passes, column_blocks, strict=True)]
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


def _column_blocks(part: _Pass, device: torch.device) -> list[tuple[int, int, Tensor, Tensor]]:
    """The column map cut into blocks (start, stop, used columns, weights (used, stop - start)): it is mostly zeros."""
    blocks = []
    for start, stop in bands(len(part.columns), 256):
        used, weights = part.columns.block(start, stop)
        blocks.append((start, stop, torch.from_numpy(used).to(device), torch.from_numpy(weights.T.copy()).to(device)))
    return blocks


def _columns(
    part: _Pass, top: int, bottom: int, blocks: list[tuple[int, int, Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Row weights (bottom - top, k) of a band, and the k rows it uses, interpolated along columns, (k, C, W)."""
    used, weights = part.rows.block(top, bottom)
    logits = part.logits[torch.from_numpy(used).to(part.logits.device)]
    values = logits.new_empty(len(used), logits.shape[1], len(part.columns))
    for start, stop, columns, matrix in blocks:
        torch.mm(logits[..., columns].flatten(0, 1), matrix, out=values.flatten(0, 1)[:, start:stop])
    return torch.from_numpy(weights), values
