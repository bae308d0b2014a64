"""The loss of mask classification: segments of the labels are matched one to one with the decoder's queries.

Each query has a mask and a class. The assignment with the smallest cost (Hungarian matching) decides which query learns
which segment; the other queries learn the class "no object". The loss has three terms: the cross-entropy of the
classes, and a loss of the pixels and the Dice loss of the masks, weighted as in MaskFormer (Cheng et al. 2021) or as in
Mask2Former (Cheng et al. 2022).

Masks are compared with the labels on the grid of the decoder: each cell counts its labeled pixels, inside and outside
of a segment. That is the loss of masks enlarged to pixels by nearest neighbor, with nothing of the size of the image
for each query. Ignored pixels are not counted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from depict.data.dataset import IGNORE
from depict.errors import UserError, unknown
from depict.inference.sliding import padded_size

SEGMENTS = ("classes", "components")
"""What a segment is: all pixels of a class, or a connected component of them."""
NO_OBJECT_WEIGHT = 0.1
"""Of the queries without a segment in the cross-entropy."""
FOCAL_ALPHA = 0.25
"""Weight of the pixels inside of a segment in the focal loss; its exponent gamma is 2."""


class Terms(NamedTuple):
    """The terms of a pair's cost and of the loss: their weights, and the kind of the second."""

    classes: float
    pixels: float
    dice: float
    focal: bool
    """Whether the loss of a pixel is the focal loss; otherwise it is the binary cross-entropy."""


TERMS = {"maskformer": Terms(1.0, 20.0, 1.0, focal=True), "mask2former": Terms(2.0, 5.0, 5.0, focal=False)}
"""The published terms of each. Those of Mask2Former were better on thin classes (docs/masks.md)."""


class Queries(NamedTuple):
    """The masks and classes of K queries after each of S supervised steps, the last of which is the result."""

    masks: Tensor
    """Logits (S, B, K, h, w)."""
    classes: Tensor
    """Logits (S, B, K, C + 1); the last one is "no object"."""


class Segments(NamedTuple):
    """The n segments of one image, on a grid of N cells."""

    classes: Tensor
    """int64 (n,)."""
    inside: Tensor
    """Pixels of each segment in each cell, float32 (n, N)."""
    labeled: Tensor
    """Labeled pixels of each cell, float32 (N,)."""


def matching_loss(
    queries: Queries, labels: Tensor, multiple: tuple[int, int], terms: Terms, kind: str = "classes"
) -> Tensor:
    """The mean over images of the loss of matched queries, summed over the supervised steps.

    Masks cover the labels (B, H, W) padded to `multiple` (model.multiple); 255 is ignored. `kind` is one of `SEGMENTS`.
    An image without a labeled pixel adds nothing: what is in it is not known. Every image counts the same, so the loss
    of a batch does not depend on how it is divided; the original divides by the segments of the batch instead.
    """
    steps, batch, K, *grid = queries.masks.shape
    if labels.ndim != 3 or len(labels) != batch:
        raise UserError(f"labels must be ({batch}, H, W), not {tuple(labels.shape)}.")
    with torch.autocast(labels.device.type, enabled=False):
        masks, classes = (X.to(torch.promote_types(X.dtype, torch.float32)) for X in queries)
        # Nothing but a graph: in a batch without labels, all parameters still have a gradient, which is 0.
        total = masks[..., :0].sum() + classes[..., :0].sum()
        # Not indexed one by one: the gradient of each index would be a tensor of the size of all of them.
        own_masks, own_classes = ([step.unbind() for step in X.unbind()] for X in (masks.flatten(3), classes))
        for image in range(batch):
            found = find_segments(labels[image], (grid[0], grid[1]), multiple, K, classes.shape[-1] - 1, kind)
            if len(found.classes):
                for step in range(steps):
                    total = total + _image_loss(own_masks[step][image], own_classes[step][image], found, terms)
    return total / batch


def find_segments(
    labels: Tensor, grid: tuple[int, int], multiple: tuple[int, int], most: int, classes: int, kind: str = "classes"
) -> Segments:
    """The segments in labels (H, W) on a grid that covers them padded to `multiple`.

    Of more than `most` segments, the largest are kept.
    """
    if kind not in SEGMENTS:
        raise unknown("segments", kind, SEGMENTS)
    known = labels != IGNORE
    values = labels[known].long()
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < classes:
        raise UserError(f"labels must be below the {classes} classes, or {IGNORE} for ignored pixels.")
    height, width = padded_size((labels.shape[0], labels.shape[1]), multiple)
    down = torch.arange(labels.shape[0], device=labels.device) * grid[0] // height
    across = torch.arange(labels.shape[1], device=labels.device) * grid[1] // width
    cells = (down[:, None] * grid[1] + across)[known]
    parts = values if kind == "classes" else connected_components(labels)[known]
    names, numbers = parts.unique(return_inverse=True)
    of_class = torch.zeros_like(names).scatter_(0, numbers, values)
    kept = torch.arange(len(names), device=labels.device)
    if len(names) > most:
        kept = torch.bincount(numbers).argsort(descending=True, stable=True)[:most]
    n, N = len(kept), grid[0] * grid[1]
    rows = torch.full_like(names, n)  # the last row counts the pixels of all other segments
    rows[kept] = torch.arange(n, device=labels.device)
    inside = torch.bincount(rows[numbers] * N + cells, minlength=(n + 1) * N).view(n + 1, N).float()
    return Segments(of_class[kept], inside[:n], inside.sum(0))


def connected_components(labels: Tensor) -> Tensor:
    """A number for each connected component of pixels of one class, int64 (H, W). Diagonal neighbors are connected."""
    from scipy import ndimage

    image = labels.cpu().numpy().astype(np.int64)
    numbers, count = np.zeros_like(image), 0
    for value, box in enumerate(ndimage.find_objects(image + 1)):
        if box is not None and value != IGNORE:
            inside = image[box] == value
            parts, found = ndimage.label(inside, structure=np.ones((3, 3)))
            numbers[box][inside] = parts[inside] + count
            count += found
    return torch.from_numpy(numbers).to(labels.device)


def match(masks: Tensor, classes: Tensor, found: Segments, terms: Terms) -> tuple[Tensor, Tensor]:
    """Indices of the matched queries and of their segments, (n,) each.

    The cost of a pair is that of its masks, and the probability that the query gives to another class than the
    segment's.
    """
    from scipy.optimize import linear_sum_assignment

    with torch.no_grad():
        costs = terms.pixels * _pairwise_pixels(masks, found, terms.focal) + terms.dice * _pairwise_dice(masks, found)
        costs -= terms.classes * classes.softmax(-1)[:, found.classes]
        # scipy refuses nan. As the cheapest pair it reaches the loss, which stops the training.
        pairs = linear_sum_assignment(costs.nan_to_num(-1e9, 1e9, -1e9).cpu().numpy())
    queries, segments = (torch.from_numpy(indices).to(masks.device) for indices in pairs)
    return queries, segments


def _image_loss(masks: Tensor, classes: Tensor, found: Segments, terms: Terms) -> Tensor:
    """The loss of one image at one step: masks (K, N), classes (K, C + 1)."""
    queries, segments = match(masks, classes, found, terms)
    no_object = classes.shape[-1] - 1
    targets = torch.full((len(classes),), no_object, device=classes.device)
    targets[queries] = found.classes[segments]
    weights = classes.new_ones(no_object + 1)
    weights[no_object] = NO_OBJECT_WEIGHT
    own, inside = masks[queries], found.inside[segments]
    at_inside, at_outside = _pixel_loss(own, terms.focal)
    pixels = (at_inside * inside + at_outside * (found.labeled - inside)).sum(1) / found.labeled.sum()
    probability = own.sigmoid()
    sizes = probability @ found.labeled + inside.sum(1)
    dice = 1 - (2 * (probability * inside).sum(1) + 1) / (sizes + 1)
    masks_loss = terms.pixels * pixels.mean() + terms.dice * dice.mean()
    return terms.classes * F.cross_entropy(classes, targets, weights) + masks_loss


def _pixel_loss(masks: Tensor, focal: bool) -> tuple[Tensor, Tensor]:
    """The loss of a pixel with these logits, if it is inside of the segment and if it is outside."""
    inside, outside = F.softplus(-masks), F.softplus(masks)
    if not focal:
        return inside, outside
    probability = masks.sigmoid()
    return FOCAL_ALPHA * (1 - probability).square() * inside, (1 - FOCAL_ALPHA) * probability.square() * outside


def _pairwise_pixels(masks: Tensor, found: Segments, focal: bool) -> Tensor:
    """The mean loss of the pixels of every pair of a query and a segment, (K, n)."""
    inside, outside = _pixel_loss(masks, focal)
    total = inside @ found.inside.T + outside @ (found.labeled - found.inside).T
    return total / found.labeled.sum()


def _pairwise_dice(masks: Tensor, found: Segments) -> Tensor:
    """The Dice loss of every pair of a query and a segment, (K, n)."""
    probability = masks.sigmoid()
    sizes = (probability @ found.labeled)[:, None] + found.inside.sum(1)
    return 1 - (2 * (probability @ found.inside.T) + 1) / (sizes + 1)
