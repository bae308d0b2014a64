"""A picture's way through a decoder, step by step: computed once, then queried patch by patch.

Unlike the segmentation, which averages over windows, the decoder sees the whole picture here, as in `depict analyze`.
"""

from __future__ import annotations

import base64
import gzip
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depict.analysis.attention import MAX_PATCHES, View, view_tokens, whole_view
from depict.analysis.influence import patch_influence
from depict.analysis.pca import as_colors, components
from depict.analysis.steps import mssa_steps
from depict.coding_rate import gram_matrix, subspace_rates_from_gram
from depict.decoders.base import Trace
from depict.inference.resample import argmax_labels, bilinear
from depict.inference.torch_backend import eval_mode
from depict.model import SegmentationModel
from depict.web.segmentation import view_size

CROSS = ("msca", "msca_exact")
"""Steps that move the classes and not the patches."""


@dataclass(frozen=True)
class Unrolled:
    """What is kept of one picture."""

    model: SegmentationModel
    view: View
    trace: Trace
    """Z and Q at every depth, batch 1, on the model's device."""
    closeness: np.ndarray
    """float16 (depths, N, C): of every patch to every class, if the decoder stopped at that depth.

    The cosine with the direction of the class; in a decoder that refines no class directions, the logit.
    """
    facts: dict[str, Any]
    """What the page shows of every step, as plain JSON values."""
    maps: bytes
    """gzip of, for every depth: labels (h, w) uint8 or uint16, token colors (N, 3), movement (N,) * 255 / largest."""

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        tensors = {id(X): X for X in (*self.trace.Z, *self.trace.Q)}.values()
        kept = sum(X.numel() * X.element_size() for X in tensors)
        return kept + len(self.maps) + self.closeness.nbytes

    def ask(self, row: int, column: int) -> dict[str, Any]:
        """What the patch in this row and column does in every step, as plain JSON values.

        `steps`: for each step with attention among patches, the influence of all patches on this one, per head, as
        base64 of uint8 (N,), see `packed`. `closeness`: (depths, C).
        """
        patch = row * self.view.grid[1] + column
        steps = []
        for index in range(len(self.trace.steps)):
            influence = patch_influence(self.model.decoder, self.trace, index, patch)
            if influence is not None:
                steps.append({"step": index, "heads": [packed(head) for head in influence.float().cpu().numpy()]})
        closeness = np.round(self.closeness[:, patch].astype(float), 3).tolist()
        return {"row": row, "column": column, "steps": steps, "closeness": closeness}


@torch.no_grad()
def unroll(model: SegmentationModel, image: np.ndarray, proceed: Callable[[], None]) -> Unrolled:
    """Run the decoder on a whole image uint8 RGB (H, W, 3). `proceed` is called now and then, and may raise."""
    view = whole_view(model, image, MAX_PATCHES)
    with eval_mode(model):
        trace = model.decoder.unroll(*view_tokens(model, view))
        proceed()
        stopped = [model.decoder.stop_after(trace, depth) for depth in range(len(trace.steps) + 1)]
    proceed()
    patches = patches_by_depth(trace)
    moved = [np.zeros(len(patches[0]))] + [relative_change(*pair) for pair in itertools.pairwise(patches)]
    closeness = torch.stack([closeness_at(each) for each in stopped]).half().cpu().numpy()
    facts = {
        "grid": list(view.grid),
        "cells": list(view.cells),
        "depths": depth_facts(model, trace, patches, moved),
        "closeness": "logit" if stopped[0].Q_unit is None else "cosine",
        "queries": stopped[0].query_masks is not None,
    }
    proceed()
    labels = [labels_at(each, view, image.shape[:2]) for each in stopped]
    colors = token_colors(patches)
    parts = []
    for depth in range(len(patches)):
        movement = np.rint(255 * moved[depth] / max(float(moved[depth].max()), 1e-12)).astype(np.uint8)
        parts += [labels[depth].tobytes(), colors[depth].tobytes(), movement.tobytes()]
    keep = Trace(Z0=trace.Z0, Q0=trace.Q0, steps=trace.steps, grid=trace.grid)
    return Unrolled(model, _without_pixels(view), keep, closeness, facts, gzip.compress(b"".join(parts), 3, mtime=0))


def patches_by_depth(trace: Trace) -> list[np.ndarray]:
    """Patch embeddings (N, D) at every depth. An MSCA step moves only the classes: its patches are those before it."""
    patches = [trace.Z[0][0].float().cpu().numpy()]
    for step in trace.steps:
        patches.append(patches[-1] if step.operator in CROSS else step.Z[0].float().cpu().numpy())
    return patches


def relative_change(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """How far each row moved, as a share of its length before: (N, D) twice -> (N,)."""
    lengths = np.linalg.norm(before, axis=1)
    return np.linalg.norm(after - before, axis=1) / np.maximum(lengths, 1e-12)


def depth_facts(
    model: SegmentationModel, trace: Trace, patches: list[np.ndarray], moved: list[np.ndarray]
) -> list[dict[str, Any]]:
    """For Z0 and after every step: its operator, step size, movement, and the coding rate in its own subspaces."""
    depths: list[dict[str, Any]] = [{"operator": None, "step_size": None, "moved": 0.0, "largest": 0.0, "rates": None}]
    classes = [Q[0].float().cpu().numpy() for Q in trace.Q]
    for index, step in enumerate(trace.steps):
        cross = step.operator in CROSS
        change = relative_change(classes[index], classes[index + 1]) if cross else moved[index + 1]
        depths.append(
            {
                "operator": step.operator,
                # CBSA has a step per head, without a common sign.
                "step_size": step.step_size.item() if step.step_size is not None and len(step.step_size) == 1 else None,
                "moved": float(change.mean()),
                "largest": float(moved[index + 1].max()),
                "rates": None,
            }
        )
    derived = mssa_steps(model.decoder, trace)
    if derived:
        grams = torch.stack([gram_matrix(torch.from_numpy(Z)) for Z in patches[: derived[-1].depth + 2]])
        for mssa in derived:
            rates, _ = subspace_rates_from_gram(grams, len(patches[0]), mssa.P.cpu())
            depths[mssa.depth + 1]["rates"] = rates.mT.tolist()  # (heads, depths)
    return depths


def labels_at(stopped: Trace, view: View, size: tuple[int, int]) -> np.ndarray:
    """Labels of the maps' size, from the masks on the patch grid as the model interpolates them."""
    assert stopped.masks is not None
    height, width = view_size(*size)
    axes = zip((height, width), view.layout.size, view.grid, view.model.stride, strict=True)
    # The grid covers the padded picture: interpolate to its own pixels first, then to those of the maps.
    rows, columns = (
        bilinear(inside, outputs).after(bilinear(cells, cells * stride)[:inside])
        for outputs, inside, cells, stride in axes
    )
    masks = stopped.masks[0].permute(1, 2, 0).float().cpu().contiguous().numpy()
    labels = argmax_labels(masks, rows, columns)
    return labels if labels.dtype == np.uint8 else labels.astype(np.uint16)


def token_colors(patches: list[np.ndarray]) -> list[np.ndarray]:
    """The first three principal components of the tokens at every depth as uint8 (N, 3).

    The sign of a component is arbitrary: it is chosen such that colors change little from one depth to the next.
    """
    colors, before = [], None
    for Z in patches:
        values = components(Z)
        if before is not None:
            values *= np.where((values * before).sum(0) < 0, -1, 1)
        before = values
        colors.append(np.rint(255 * as_colors(values)).astype(np.uint8))
    return colors


def packed(values: np.ndarray) -> dict[str, Any]:
    """Values (N,) in one byte each: 128 is 0, 255 is the largest absolute value `scale`."""
    scale = max(float(np.abs(values).max()), 1e-12)
    steps = np.rint(127 * values / scale + 128).astype(np.uint8)
    return {"scale": scale, "values": base64.b64encode(steps.tobytes()).decode()}


def closeness_at(stopped: Trace) -> Tensor:
    """Cosines of patches and classes (N, C), or the logits if the classes have no direction of their own."""
    if stopped.Z_unit is not None and stopped.Q_unit is not None:
        return (stopped.Z_unit @ stopped.Q_unit.mT)[0]
    assert stopped.masks is not None
    return stopped.masks[0].flatten(1).mT


def _without_pixels(view: View) -> View:
    return View(np.empty((0, 0, 3), np.uint8), view.layout, view.model)
