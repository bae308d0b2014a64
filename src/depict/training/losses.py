"""Losses on bilinearly upsampled logits that never hold the upsampled volume (B, C, H, W) or its gradient.

Training compares low-resolution masks (B, C, h, w), upsampled to the padded input and cropped, with
labels (B, H, W). With many classes that volume needs more memory than the rest of the step. Here it
is computed in bands of rows (`inference/resample.py`), and its gradient in the same pass: only the
gradient of the low-resolution masks is kept for the backward pass. Values and gradients equal those
of the direct computation, to rounding.

`pixels` restricts a loss to some rows and columns of the labels. Only there are masks upsampled, so the
cost falls with the square of their distance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depict.data.dataset import IGNORE
from depict.errors import UserError
from depict.inference.resample import AxisMap, bands, bilinear
from depict.inference.sliding import padded_size

if TYPE_CHECKING:
    from depict.model import SegmentationModel

# Bytes of upsampled logits in a band, and of column-interpolated masks in a group of images.
CPU_BAND, GPU_BAND = 4 << 20, 64 << 20
CPU_GROUP, GPU_GROUP = 16 << 20, 512 << 20
Pixels = tuple[slice, slice]
"""The rows and columns of the labels that a loss looks at."""
ALL: Pixels = (slice(None), slice(None))


def every_nth_pixel(step: int) -> Pixels:
    """Every `step`-th row and column, from a random first one: over many draws, all pixels count the same."""
    if step == 1:
        return ALL  # nothing to draw: dropout keeps its random numbers
    first = torch.randint(step, (2,)).tolist()
    return slice(first[0], None, step), slice(first[1], None, step)


def cross_entropy(
    masks: Tensor, labels: Tensor, multiple: tuple[int, int], weight: Tensor | None = None, pixels: Pixels = ALL
) -> tuple[Tensor, Tensor]:
    """Sum of the (weighted) cross-entropy over valid pixels, and the sum of their weights (without weights: count).

    masks (B, C, h, w) cover the labels (B, H, W) padded to `multiple` (model.multiple); 255 is ignored;
    weight (C,). total / count is F.cross_entropy of the upsampled masks; over several processes,
    divide by the global count.
    """
    volume = _Volume(masks, labels, multiple, pixels)
    with _exactly(masks):
        total, count = volume.masks.new_zeros(2)
        weight = volume.masks.new_ones(masks.shape[1]) if weight is None else weight.to(volume.masks)
        if weight.shape != (masks.shape[1],):
            raise UserError(f"class weights must be one per class, ({masks.shape[1]},), not {tuple(weight.shape)}.")
        for _, logits, targets, valid in volume.bands(keep_gradient=True):
            share = weight[targets] * valid
            logits -= logits.amax(2, keepdim=True)
            picked = logits.gather(2, targets)
            sums = logits.exp_().sum(2, keepdim=True)
            total += (share * (sums.log() - picked)).sum()
            count += share.sum()
            if volume.gradient is not None:
                logits *= share / sums
                logits.scatter_add_(2, targets, -share)
    return volume.differentiable(total), count


def plain_loss(model: SegmentationModel, outputs: Any, labels: Tensor) -> Tensor:
    """The mean loss of a batch without any option: the decoder's own if it has one, else cross-entropy.

    `outputs` are those of the model in training mode, at the resolution of its masks; labels (B, H, W).
    """
    if model.decoder.owns_loss:
        return model.decoder.loss(outputs, labels, model.multiple)
    total, count = cross_entropy(outputs, labels, model.multiple)
    return total / count


def dice(masks: Tensor, labels: Tensor, multiple: tuple[int, int], pixels: Pixels = ALL) -> Tensor:
    """Soft Dice loss over the batch: the mean, over the classes in the labels, of 1 - 2 sum(p y) / sum(p + y).

    p are the probabilities, y the one-hot labels, sums over the batch's valid pixels. Arguments as
    for cross_entropy.
    """
    volume = _Volume(masks, labels, multiple, pixels)
    with _exactly(masks):
        hit, size = volume.masks.new_zeros(2, masks.shape[1])
        for _, logits, targets, valid in volume.bands():
            softmax = logits.softmax(2).mul_(valid)
            size += softmax.sum((0, 1, 3)) + _per_class(valid, targets, len(size))
            hit += _per_class(softmax.gather(2, targets), targets, len(hit))
        present = volume.present().to(size)
        size = size.clamp(min=1)  # so that an absent class does not divide by 0
        share = present / present.sum().clamp(min=1)
        total = (share * (1 - 2 * hit / size)).sum()
        # The loss is linear in p but for the sizes: its slope is `own` at a pixel of the class,
        # plus one everywhere.
        own, everywhere = -2 * share / size, 2 * share * hit / size**2
        for _, logits, targets, valid in volume.bands(keep_gradient=True) if volume.gradient is not None else ():
            softmax = logits.softmax(2).mul_(valid)
            at_target = softmax.gather(2, targets) * own[targets]
            mean = torch.einsum("rbcw,c->rbw", softmax, everywhere).unsqueeze(2) + at_target
            torch.mul(softmax, everywhere[:, None] - mean, out=logits)
            logits.scatter_add_(2, targets, at_target)
    return volume.differentiable(total)


def lovasz(masks: Tensor, labels: Tensor, multiple: tuple[int, int], pixels: Pixels = ALL) -> Tensor:
    """Lovász-softmax loss (Berman et al. 2018) over the batch, the mean over the classes in the labels.

    Sorting needs the errors of one class at all pixels at once: memory is a few (B, H, W) for any
    number of classes.
    """
    volume = _Volume(masks, labels, multiple, pixels)
    labels = volume.labels
    with _exactly(masks):
        valid = (labels != IGNORE).flatten().nonzero()[:, 0]
        targets = labels.flatten()[valid]
        normalizer, mean, product = volume.masks.new_zeros(3, *labels.shape)
        for (images, rows), logits, _, _ in volume.bands():
            normalizer[images, rows] = logits.logsumexp(2).transpose(0, 1)
        present = volume.present().nonzero()[:, 0].tolist()
        total = volume.masks.new_zeros(())
        for index in present:
            # index_select: indexing by brackets is several times as slow on a CPU.
            softmax = volume.upsampled(index).sub_(normalizer).exp_().flatten().index_select(0, valid)
            inside = targets == index
            slope = _lovasz_slope(softmax, inside).div_(len(present))
            # Errors are 1 - p inside and p outside: the slope is with respect to p.
            total += (slope * (softmax - inside.to(softmax))).sum()
            if volume.gradient is not None:
                product.view(-1).index_copy_(0, valid, slope.mul_(softmax))
                mean += product
                volume.add_gradient(index, product)
        for (images, rows), logits, _, _ in volume.bands(keep_gradient=True) if volume.gradient is not None else ():
            softmax = logits.softmax(2)
            torch.mul(softmax, -mean[images, rows].transpose(0, 1).unsqueeze(2), out=logits)
    return volume.differentiable(total)


def _lovasz_slope(softmax: Tensor, inside: Tensor) -> Tensor:
    """Slope of the Lovász extension of the Jaccard loss in the probability of a class, all (pixels,)."""
    errors = torch.where(inside, 1 - softmax, softmax)
    # After the last pixel of the class the Jaccard loss is 1 and stays so: smaller errors have no slope and need no
    # sorting. In a trained model, these are most of the pixels. (Written so that nan is sorted and reaches the loss.)
    sorted_ones = (~(errors < torch.where(inside, errors, torch.inf).amin())).nonzero()[:, 0]
    order = sorted_ones.index_select(0, largest_first(errors.index_select(0, sorted_ones)))
    hits = inside.to(softmax).index_select(0, order).cumsum(0)
    union = hits[-1] + torch.arange(1, len(order) + 1, device=order.device) - hits
    jaccard = 1 - (hits[-1] - hits) / union
    jaccard[1:] -= jaccard[:-1].clone()
    slope = torch.zeros_like(softmax).index_copy_(0, order, jaccard)
    return torch.where(inside, -slope, slope)


def largest_first(errors: Tensor) -> Tensor:
    """The indices (n,) that sort values (n,) of 0 or more, the largest first, equal ones in their order."""
    if errors.device.type != "cpu" or errors.dtype != torch.float32 or len(errors) >= 1 << 32:
        return errors.argsort(descending=True, stable=True)
    # The bits of a float32 of 0 or more are ordered like its value. With the index in the lower half of a key, numpy's
    # vectorized sort of integers gives the order several times as fast as torch's argsort.
    bits = ~errors.clamp(min=0).numpy().view(np.uint32)
    keys = bits.astype(np.uint64) << np.uint64(32) | np.arange(len(bits), dtype=np.uint64)
    keys.sort()
    return torch.from_numpy((keys & np.uint64(0xFFFFFFFF)).astype(np.int64))


def _per_class(values: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Sum of values over the pixels of each class, (C,)."""
    values = values.flatten().to(torch.promote_types(values.dtype, torch.float32))
    return values.new_zeros(classes).index_add_(0, targets.flatten(), values)


@contextlib.contextmanager
def _exactly(masks: Tensor) -> Iterator[None]:
    """No graph, since the gradient is computed here, and no rounding by an enclosing autocast."""
    with torch.no_grad(), torch.autocast(masks.device.type, enabled=False):
        yield


class _Volume:
    """The upsampled masks (B, C, H, W) of a loss, in bands, and the gradient of the masks that were given.

    H and W are the chosen rows and columns of the labels.
    """

    def __init__(self, masks: Tensor, labels: Tensor, multiple: tuple[int, int], pixels: Pixels = ALL) -> None:
        if masks.ndim != 4 or labels.ndim != 3 or len(masks) != len(labels):
            shapes = f"{tuple(masks.shape)} and {tuple(labels.shape)}"
            raise UserError(f"masks must be (B, C, h, w) and labels (B, H, W), not {shapes}.")
        batch, classes, low_height, low_width = masks.shape
        height, width = labels.shape[1:]
        labels = labels[:, pixels[0], pixels[1]]
        wrong = (labels != IGNORE) & ((labels < 0) | (labels >= classes))
        if wrong.any():
            values = labels[wrong].unique().tolist()
            raise UserError(f"labels {values} are outside the {classes} classes; 255 marks ignored pixels.")
        self.given, self.labels = masks, labels
        self.masks = masks.detach().to(torch.promote_types(masks.dtype, torch.float32))
        self.gradient = torch.zeros_like(self.masks) if masks.requires_grad and torch.is_grad_enabled() else None
        padded = padded_size((height, width), multiple)
        if low_height > padded[0] or low_width > padded[1]:
            raise UserError(f"masks of {low_height} x {low_width} are larger than their labels, {height} x {width}.")
        dtype = np.float64 if self.masks.dtype == torch.float64 else np.float32
        self.rows = bilinear(low_height, padded[0], dtype)[:height][pixels[0]]
        self.row_matrix = self._matrix(self.rows, low_height)
        self.columns = self._matrix(bilinear(low_width, padded[1], dtype)[:width][pixels[1]], low_width)
        on_cpu = masks.device.type == "cpu"
        row = classes * len(self.columns) * self.masks.element_size()
        self.group = min(batch, max(1, (CPU_GROUP if on_cpu else GPU_GROUP) // (low_height * row)))
        self.band = max(1, (CPU_BAND if on_cpu else GPU_BAND) // (self.group * row))

    def _matrix(self, axis: AxisMap, inputs: int) -> Tensor:
        used, weights = axis.block(0, len(axis))
        matrix = self.masks.new_zeros(len(axis), inputs)
        matrix[:, torch.from_numpy(used)] = self.masks.new_tensor(weights)
        return matrix

    def bands(self, keep_gradient: bool = False) -> Iterator[tuple[tuple[slice, slice], Tensor, Tensor, Tensor]]:
        """Bands of r rows from top to bottom, for one group of b images after the other.

        Yields (images, rows), logits (r, b, C, W), targets (r, b, 1, W) with 0 for ignored pixels,
        and where they are valid. With `keep_gradient`, the values that the caller leaves in the
        logits are taken as their gradient.
        """
        keep = keep_gradient and self.gradient is not None
        for first, last in bands(len(self.masks), self.group):
            # Rows come first: a band is then one matrix product over everything else.
            values = self.masks[first:last].permute(2, 0, 1, 3) @ self.columns.T  # (h, b, C, W)
            gradient = torch.zeros_like(values) if keep else None
            buffer = values.new_empty(self.band, *values.shape[1:])
            labels = self.labels[first:last].transpose(0, 1).unsqueeze(2)
            for start, stop in bands(len(labels), self.band):
                low = slice(int(self.rows.indices[start].min()), int(self.rows.indices[stop - 1].max()) + 1)
                matrix = self.row_matrix[start:stop, low]
                logits = buffer[: stop - start]
                torch.mm(matrix, values[low].flatten(1), out=logits.flatten(1))
                targets = labels[start:stop].long()
                valid = targets != IGNORE
                yield (slice(first, last), slice(start, stop)), logits, targets.masked_fill(~valid, 0), valid
                if gradient is not None:
                    gradient[low].flatten(1).addmm_(matrix.T, logits.flatten(1))
            if gradient is not None and self.gradient is not None:
                self.gradient[first:last] += (gradient @ self.columns).permute(1, 2, 0, 3)

    def upsampled(self, index: int) -> Tensor:
        """One class at all pixels, (B, H, W)."""
        return self.row_matrix @ self.masks[:, index] @ self.columns.T

    def add_gradient(self, index: int, gradient: Tensor) -> None:
        """Add the gradient (B, H, W) of one class's upsampled mask."""
        assert self.gradient is not None
        self.gradient[:, index] += self.row_matrix.T @ gradient @ self.columns

    def present(self) -> Tensor:
        """Which classes are in the labels, (C,)."""
        counts = torch.bincount(self.labels[self.labels != IGNORE].long(), minlength=self.masks.shape[1])
        return counts > 0

    def differentiable(self, value: Tensor) -> Tensor:
        """The loss as a function of the masks, with the gradient that was computed."""
        return value if self.gradient is None else _Known.apply(self.given, value, self.gradient)


class _Known(torch.autograd.Function):
    """A value whose gradient is already known."""

    @staticmethod
    def forward(ctx: Any, masks: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        ctx.dtype = masks.dtype
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * upstream).to(ctx.dtype), None, None
