"""Robustness: the mIoU that is left after the decoder's parameters are perturbed (paper section 4.2, last table).

Perturbed copies of the decoder run on the same tokens; the model itself is never changed. A neck makes these tokens, as
the encoder does, and is not perturbed, so that models with and without a neck can be compared.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from depict.analysis.base import Analysis, Result, Sample
from depict.decoders.base import Decoder, Grid
from depict.decoders.blocks import MHSABlock
from depict.evaluation import Counts, class_iou, confusion_matrix
from depict.inference.sliding import SlidingWindow
from depict.operators import CBSA, SubspaceAttention

if TYPE_CHECKING:
    from depict.model import SegmentationModel

NONE, MIX, ROTATE, ORTHO, NOISE = "none", "P O_K", "P'_h O_M", "Ortho(P'_h)", "noise"
TRANSFORMATIONS = (NONE, MIX, ROTATE, ORTHO)
READINGS: dict[str, Callable[[float], float]] = {"variance": math.sqrt, "standard deviation": float}
"""What the paper's sigma can mean, each with the function from sigma to the standard deviation of the noise."""
SEEDS = (0, 1, 2)
SIGMAS = (1e-4, 1e-3, 1e-2, 1e-1)
HEADLINE_SIGMA = 1e-2
Row = dict[str, Any]
Tokens = list[tuple[Tensor, Grid]]
"""Tokens Z0 and grid of the windows of an image, one entry per call of the encoder and the neck."""


@dataclass(frozen=True)
class Change:
    """One perturbation with its seed."""

    kind: str
    """none, P O_K, P'_h O_M, Ortho(P'_h) or noise."""
    seed: int = 0
    deviation: float = 0.0
    """Standard deviation of the noise."""


def plan_changes(decoder: Decoder, seeds: Sequence[int] = SEEDS, sigmas: Sequence[float] = SIGMAS) -> list[Change]:
    """The changes behind the table and the curve of a decoder; the unchanged decoder comes first.

    Ortho needs no seed, and P'_h O_M only one, since it is an identity. Both readings of sigma share deviations.
    """
    changes = [Change(NONE)]
    if any(isinstance(part, (SubspaceAttention, CBSA, MHSABlock)) for part in decoder.modules()):
        changes += [*(Change(MIX, seed) for seed in seeds), Change(ROTATE, seeds[0]), Change(ORTHO)]
    deviations = sorted({noise_deviation(sigma, reading) for sigma in sigmas for reading in READINGS})
    return changes + [Change(NOISE, seed, deviation) for deviation in deviations for seed in seeds]


def noise_deviation(sigma: float, reading: str) -> float:
    """The standard deviation of the noise, rounded to six digits so that equal ones compare equal."""
    return float(f"{READINGS[reading](sigma):.6g}")


@torch.no_grad()
def perturb(decoder: Decoder, change: Change) -> Decoder:
    """Return a changed copy of the decoder, in evaluation mode.

    In MSSA and MSCA the change acts on P (K, D), whose rows are the bases: O P is the paper's P O_K or P'_h O_M. In
    CBSA the inverse of O also acts on the columns of the output matrix, which is not tied to P; Ortho leaves it alone.
    For MHSA nothing was published. Here O acts on the rows of queries, keys and values and on their biases, and its
    inverse on the columns of the output matrix; Ortho acts on the rows of queries, keys and values of each head
    separately, not on biases and output. Noise is added to every parameter; one seed draws the same directions for
    every deviation.
    """
    changed = copy.deepcopy(decoder).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(change.seed)
    if change.kind == NOISE:
        for parameter in changed.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter), alpha=change.deviation)
    elif change.kind != NONE:
        for part in changed.modules():
            if isinstance(part, (SubspaceAttention, CBSA)):
                _transform_subspaces(part, change.kind, generator)
            elif isinstance(part, MHSABlock):
                _transform_attention(part, change.kind, generator)
    return changed


def _transform_subspaces(part: SubspaceAttention | CBSA, kind: str, generator: torch.Generator) -> None:
    P = part.bases().double()  # (heads, M, D)
    if kind == ORTHO:
        part.P.copy_(nearest_orthonormal(P).flatten(0, 1))
    else:
        O = _orthogonal(kind, part.heads, P.shape[1], generator).to(P)  # noqa: E741 - the paper's name
        part.P.copy_(O @ P.flatten(0, 1))
        if isinstance(part, CBSA):
            part.to_out.weight.copy_(part.to_out.weight.double() @ O.T)


def _transform_attention(part: MHSABlock, kind: str, generator: torch.Generator) -> None:
    rows = part.qkv.weight.double().unflatten(0, (3, part.heads, -1))  # (queries keys values, heads, M, D)
    if kind == ORTHO:
        part.qkv.weight.copy_(nearest_orthonormal(rows).flatten(0, 2))
        return
    O = _orthogonal(kind, part.heads, rows.shape[2], generator).to(rows)  # noqa: E741
    part.qkv.weight.copy_((O @ rows.flatten(1, 2)).flatten(0, 1))
    part.qkv.bias.copy_((part.qkv.bias.double().unflatten(0, (3, -1)) @ O.T).flatten())
    part.proj.weight.copy_(part.proj.weight.double() @ O.T)


def _orthogonal(kind: str, heads: int, head_dim: int, generator: torch.Generator) -> Tensor:
    """O_K (K, K), or one O_M for each head on the diagonal; drawn uniformly, float64."""
    sizes = [heads * head_dim] if kind == MIX else [head_dim] * heads
    blocks = (torch.empty(size, size, dtype=torch.float64) for size in sizes)
    return torch.block_diag(*(nn.init.orthogonal_(block, generator=generator) for block in blocks))


def nearest_orthonormal(P: Tensor) -> Tensor:
    """The orthonormal rows nearest to those of P (..., M, D), with the same span: its polar factor.

    In MSSA and MSCA any other orthonormal basis of the span would give the same function; in MHSA it would not. If
    M > D there are no M such rows, and the columns become orthonormal instead.
    """
    U, _, V = torch.linalg.svd(P, full_matrices=False)
    return U @ V


def predict_with(
    decoder: Decoder, tokens: Tokens, image: Tensor, model: SegmentationModel, sliding: SlidingWindow
) -> Tensor:
    """Labels (H, W) of an image uint8 (3, H, W) by another decoder, from cached tokens.

    If `tokens` is empty, encoder and neck run and fill it: the tokens are the same for every decoder.
    """
    fill, cached = not tokens, iter(tokens)

    def network(pixels: Tensor) -> Tensor:
        if fill:
            tokens.append(model.tokens(pixels))
        return decoder(*(tokens[-1] if fill else next(cached)))

    return torch.from_numpy(model.predictor(sliding, network=network).labels(image.permute(1, 2, 0).numpy()))


class Tally:
    """The confusion matrix of every changed decoder over the images added so far."""

    def __init__(self, model: SegmentationModel, changes: Iterable[Change]):
        self.model = model
        self.decoders = {change: perturb(model.decoder, change) for change in changes}
        self.confusions: dict[Change, Counts] = {
            change: np.zeros((model.num_classes, model.num_classes), np.int64) for change in self.decoders
        }

    def add(self, image: Tensor, truth: Tensor, sliding: SlidingWindow, tokens: Tokens | None = None) -> None:
        """Segment an image uint8 (3, H, W) with every decoder; the encoder runs once, unless its `tokens` are given."""
        cache: Tokens = [] if tokens is None else tokens
        for change, decoder in self.decoders.items():
            labels = predict_with(decoder, cache, image, self.model, sliding)
            self.confusions[change] += confusion_matrix(truth, labels, self.model.num_classes)

    def scores(self) -> dict[Change, float]:
        """mIoU in 0..1 of every change, over the classes that appear in the truth or the prediction."""
        scores = {}
        for change, confusion in self.confusions.items():
            iou = class_iou(confusion)
            scores[change] = float(iou[~np.isnan(iou)].mean()) if confusion.any() else math.nan
        return scores


def summarize(scores: dict[Change, float], sigmas: Sequence[float] = SIGMAS) -> list[Row]:
    """The rows of the table: each transformation, then each reading of each sigma, over the seeds."""
    unperturbed = scores[Change(NONE)]

    def summary(kind: str, deviation: float = 0.0, **about: Any) -> list[Row]:
        by_seed = {c.seed: score for c, score in scores.items() if (c.kind, c.deviation) == (kind, deviation)}
        if not by_seed:
            return []
        values = list(by_seed.values())
        mean = statistics.fmean(values)
        row: Row = {"perturbation": kind, "reading": None, "sigma": None} | about
        row |= {"seeds": list(by_seed), "miou": values, "mean": mean}
        return [row | {"spread": statistics.stdev(values) if len(values) > 1 else None, "change": mean - unperturbed}]

    rows = [row for kind in TRANSFORMATIONS for row in summary(kind)]
    for reading in READINGS:
        for sigma in sigmas:
            rows += summary(NOISE, noise_deviation(sigma, reading), reading=reading, sigma=sigma)
    return rows


def find_row(rows: list[Row], kind: str, reading: str | None = None, sigma: float | None = None) -> Row | None:
    """The row of a perturbation; None if the decoder cannot have it."""
    key = (kind, reading, sigma)
    return next((row for row in rows if (row["perturbation"], row["reading"], row["sigma"]) == key), None)


class Perturbation(Analysis):
    """The four perturbations of the paper on one run."""

    name = "perturbation"

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        self.tally = Tally(model, plan_changes(model.decoder))
        self.sliding = model.sliding_window(full_image=True)
        self.images = 0

    def update(self, sample: Sample) -> None:
        """Segment one labeled image with every perturbed decoder, from the tokens of the trace."""
        if sample.labels is None or sample.trace.tokens is None:
            return
        image = torch.from_numpy(np.ascontiguousarray(sample.image)).permute(2, 0, 1)
        self.tally.add(image, sample.labels, self.sliding, [(sample.trace.tokens, sample.trace.grid)])
        self.images += 1

    def compute(self) -> Result:
        """mIoU before and after, with the spread over the seeds."""
        if not self.images:
            return Result(skipped="The images have no ground truth, so there is no mIoU.")
        rows = summarize(self.tally.scores())

        def percent(kind: str, reading: str | None = None, sigma: float | None = None) -> float | None:
            row = find_row(rows, kind, reading, sigma)
            return None if row is None else 100 * row["mean"]

        numbers = {
            "mIoU unperturbed (%)": percent(NONE),
            f"after {MIX} (%)": percent(MIX),
            f"after {ROTATE} (identity) (%)": percent(ROTATE),
            f"after {ORTHO} (%)": percent(ORTHO),
        }
        for reading in READINGS:
            label = f"after noise of {reading} {HEADLINE_SIGMA:g} (%)"
            numbers[label] = percent(NOISE, reading, HEADLINE_SIGMA)
        return Result(
            numbers=numbers,
            data={"images": self.images, "rows": rows},
            tables={"perturbations": rows},
            measured={self.model.config.decoder.name: rows},
        )
