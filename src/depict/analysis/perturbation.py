"""Robustness: how much mIoU is left after the decoder's parameters are perturbed (paper section 4.2, its last table).

Perturbed copies of the decoder run on the same tokens of the encoder; the model itself is never touched.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from depict.analysis.base import Result, Analysis, Sample
from depict.config.paper import PERTURBATION
from depict.decoders.base import Decoder, Grid
from depict.decoders.blocks import MHSABlock
from depict.evaluation import Counts, class_iou, confusion_matrix
from depict.inference.sliding import SlidingWindow
from depict.operators import SubspaceAttention
from depict.viz.style import COLORS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from depict.model import SegmentationModel

NONE, MIX, ROTATE, ORTHO, NOISE = "none", "P O_K", "P'_h O_M", "Ortho(P'_h)", "noise"
TRANSFORMATIONS = (NONE, MIX, ROTATE, ORTHO)
READINGS: dict[str, Callable[[float], float]] = {"variance": math.sqrt, "standard deviation": float}
"""What the paper's sigma may be, and the standard deviation that follows."""
LONGEST = 70
"""Letters of a run's name that fit into the figure."""
SEEDS = (0, 1, 2)
SIGMAS = (1e-4, 1e-3, 1e-2, 1e-1)
Row = dict[str, Any]
Tokens = list[tuple[Tensor, Grid]]
"""What the encoder gave for the windows of an image, call by call."""


@dataclass(frozen=True)
class Change:
    """One perturbation with its seed."""

    kind: str
    """none, P O_K, P'_h O_M, Ortho(P'_h) or noise."""
    seed: int = 0
    deviation: float = 0.0
    """Standard deviation of the noise."""


def plan(decoder: Decoder, seeds: Sequence[int] = SEEDS, sigmas: Sequence[float] = SIGMAS) -> list[Change]:
    """The changes that make the table and the curve of a decoder, its own self first.

    Ortho needs no seed, and P'_h O_M one only, since it is an identity. Both readings of sigma share deviations.
    """
    changes = [Change(NONE)]
    if any(isinstance(part, (SubspaceAttention, MHSABlock)) for part in decoder.modules()):
        changes += [*(Change(MIX, seed) for seed in seeds), Change(ROTATE, seeds[0]), Change(ORTHO)]
    deviations = sorted({deviation(sigma, reading) for sigma in sigmas for reading in READINGS})
    return changes + [Change(NOISE, seed, std) for std in deviations for seed in seeds]


def deviation(sigma: float, reading: str) -> float:
    """The standard deviation of the noise, to six digits so that equal ones are found equal."""
    return float(f"{READINGS[reading](sigma):.6g}")


@torch.no_grad()
def perturbed(decoder: Decoder, change: Change) -> Decoder:
    """A changed copy of the decoder, in evaluation mode.

    In MSSA and MSCA the change acts on P (K, D), whose rows are the bases: O P is the paper's P O_K or P'_h O_M. In
    MHSA, for which nothing was published, O acts on the rows of queries, keys and values alike and on their biases, and
    its inverse on the columns of the output matrix; Ortho acts on the rows of queries, keys and values of each head
    separately, and not on biases and output. Noise is added to every parameter of the decoder; a seed draws the same
    directions for every deviation.
    """
    changed = copy.deepcopy(decoder).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(change.seed)
    if change.kind == NOISE:
        for parameter in changed.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter), alpha=change.deviation)
    elif change.kind != NONE:
        for part in changed.modules():
            if isinstance(part, SubspaceAttention):
                _transform_subspaces(part, change.kind, generator)
            elif isinstance(part, MHSABlock):
                _transform_attention(part, change.kind, generator)
    return changed


def _transform_subspaces(part: SubspaceAttention, kind: str, generator: torch.Generator) -> None:
    P = part.bases().double()  # (heads, M, D)
    if kind == ORTHO:
        part.P.copy_(orthonormal(P).flatten(0, 1))
    else:
        O = _orthogonal(kind, part.heads, P.shape[1], generator).to(P)  # noqa: E741 - the paper's name
        part.P.copy_(O @ P.flatten(0, 1))


def _transform_attention(part: MHSABlock, kind: str, generator: torch.Generator) -> None:
    rows = part.qkv.weight.double().unflatten(0, (3, part.heads, -1))  # (queries keys values, heads, M, D)
    if kind == ORTHO:
        part.qkv.weight.copy_(orthonormal(rows).flatten(0, 2))
        return
    O = _orthogonal(kind, part.heads, rows.shape[2], generator).to(rows)  # noqa: E741
    part.qkv.weight.copy_((O @ rows.flatten(1, 2)).flatten(0, 1))
    part.qkv.bias.copy_((part.qkv.bias.double().unflatten(0, (3, -1)) @ O.T).flatten())
    part.proj.weight.copy_(part.proj.weight.double() @ O.T)


def _orthogonal(kind: str, heads: int, head_dim: int, generator: torch.Generator) -> Tensor:
    """O_K (K, K), or one O_M for each head on the diagonal; uniformly drawn, float64."""
    sizes = [heads * head_dim] if kind == MIX else [head_dim] * heads
    drawn = (torch.empty(size, size, dtype=torch.float64) for size in sizes)
    return torch.block_diag(*(nn.init.orthogonal_(one, generator=generator) for one in drawn))


def orthonormal(P: Tensor) -> Tensor:
    """The orthonormal rows nearest to those of P (..., M, D), with the same span: its polar factor.

    In MSSA and MSCA any other orthonormal basis of the span would give the same function; in MHSA it would not. Where
    M > D there are no M such rows; the columns become orthonormal instead.
    """
    U, _, V = torch.linalg.svd(P, full_matrices=False)
    return U @ V


def predict_with(
    decoder: Decoder, tokens: Tokens, image: Tensor, model: SegmentationModel, sliding: SlidingWindow
) -> Tensor:
    """Labels (H, W) of an image uint8 (3, H, W) by another decoder, from the tokens of the encoder that are there.

    With no `tokens` the encoder is run, and they are kept: it gives the same ones for every decoder.
    """
    fill, calls = not tokens, iter(tokens)

    def network(pixels: Tensor) -> Tensor:
        if fill:
            tokens.append(model.tokens(pixels))
        return decoder(*(tokens[-1] if fill else next(calls)))

    return torch.from_numpy(model.predictor(sliding, network=network).labels(image.permute(1, 2, 0).numpy()))


class Tally:
    """The confusion matrix of every changed decoder over the images that were added."""

    def __init__(self, model: SegmentationModel, changes: Iterable[Change]):
        self.model = model
        self.decoders = {change: perturbed(model.decoder, change) for change in changes}
        self.confusions: dict[Change, Counts] = {
            change: np.zeros((model.num_classes, model.num_classes), np.int64) for change in self.decoders
        }

    def add(self, image: Tensor, truth: Tensor, sliding: SlidingWindow, tokens: Tokens | None = None) -> None:
        """Let every decoder segment an image uint8 (3, H, W); the encoder runs once, or not if its tokens are given."""
        kept: Tokens = [] if tokens is None else tokens
        for change, decoder in self.decoders.items():
            labels = predict_with(decoder, kept, image, self.model, sliding)
            self.confusions[change] += confusion_matrix(truth, labels, self.model.num_classes)

    def scores(self) -> dict[Change, float]:
        """mIoU in 0..1 of every change; classes that appear nowhere are left out."""
        found = {}
        for change, confusion in self.confusions.items():
            iou = class_iou(confusion)
            found[change] = float(iou[~np.isnan(iou)].mean()) if confusion.any() else math.nan
        return found


def summarize(scores: dict[Change, float], sigmas: Sequence[float] = SIGMAS) -> list[Row]:
    """The lines of the table: each transformation, then each reading of each sigma, over the seeds."""
    own = scores[Change(NONE)]

    def line(kind: str, std: float = 0.0, **about: Any) -> list[Row]:
        found = {c.seed: score for c, score in scores.items() if (c.kind, c.deviation) == (kind, std)}
        if not found:
            return []
        values = list(found.values())
        mean = statistics.fmean(values)
        spread = statistics.stdev(values) if len(values) > 1 else None
        row: Row = {"perturbation": kind, "reading": None, "sigma": None} | about
        return [row | {"seeds": list(found), "miou": values, "mean": mean, "spread": spread, "change": mean - own}]

    rows = [row for kind in TRANSFORMATIONS for row in line(kind)]
    for reading in READINGS:
        for sigma in sigmas:
            rows += line(NOISE, deviation(sigma, reading), reading=reading, sigma=sigma)
    return rows


def find(rows: list[Row], kind: str, reading: str | None = None, sigma: float | None = None) -> Row | None:
    """The line of a perturbation, if the decoder can have it."""
    wanted = (kind, reading, sigma)
    return next((row for row in rows if (row["perturbation"], row["reading"], row["sigma"]) == wanted), None)


class Perturbation(Analysis):
    """The four perturbations of the paper on one run."""

    name = "perturbation"
    title = "How much perturbation of its decoder does the model bear?"
    about = (
        "The paper perturbs trained decoders in four ways (table “Investigating robustness”): 1) P O_K mixes all bases "
        "of an attention layer by a random orthogonal matrix; 2) P'_h O_M does so within each head; 3) Ortho(P'_h) "
        "replaces each head's bases by the nearest orthonormal ones of the same span; 4) Gaussian noise on every "
        "parameter of the decoder. 2) is an identity: scores are inner products within a head, and values are turned "
        "back on their way out, so the function stays the same by construction, in DEPICT and in Segmenter. The paper "
        "says that sigma is the variance of the noise, its plot only “noise level”; both readings are measured. The "
        f"authors drew anew at every call; here each perturbation is drawn once for each of {len(SEEDS)} seeds (2 for "
        "one of them, and 3 needs none). They published nothing on how Segmenter was perturbed; here 1) and 2) act on "
        "queries, keys and values and their biases alike, with the inverse on the output matrix, and 3) on queries, "
        "keys and values of each head separately, biases and output untouched. "
        "Images are seen whole, so mIoU differs a little from “depict evaluate”, which uses windows."
    )

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        self.tally = Tally(model, plan(model.decoder))
        self.sliding = dataclasses.replace(model.sliding_window(), full_image=True)
        self.images = 0

    def update(self, sample: Sample) -> None:
        """Let every perturbed decoder segment one labeled image from the tokens of the trace."""
        if sample.labels is None or sample.trace.tokens is None:
            return
        image = torch.from_numpy(np.ascontiguousarray(sample.image)).permute(2, 0, 1)
        self.tally.add(image, sample.labels, self.sliding, [(sample.trace.tokens, sample.trace.grid)])
        self.images += 1

    def compute(self) -> Result:
        """mIoU before and after, with the spread over the seeds."""
        if not self.images:
            return Result(skipped="The images have no ground truth, without which there is no mIoU.")
        rows = summarize(self.tally.scores())
        result = Result(data={"images": self.images, "rows": rows}, tables={"perturbations": rows})
        told: list[tuple[str, str | None, float | None]] = [(kind, None, None) for kind in TRANSFORMATIONS]
        told += [(NOISE, reading, 1e-2) for reading in READINGS]
        for key in told:
            row = find(rows, *key)
            result.numbers[_label(*key)] = None if row is None else 100 * row["mean"]
        name = self.model.config.decoder.name
        result.figures["mIoU"] = draw({name: rows})
        result.captions["mIoU"] = (
            f"mIoU over {self.images} images. Above: the transformations; bars span the standard deviation over seeds. "
            "Below: noise on every parameter of the decoder, sigma read as variance and as standard deviation."
        )
        result.text = self._words(rows)
        return result

    def _words(self, rows: list[Row]) -> list[str]:
        own, mix, rotate, ortho = (find(rows, kind) for kind in TRANSFORMATIONS)
        assert own is not None
        words = [f"Unperturbed the model has {100 * own['mean']:.1f} % mIoU on these {self.images} images."]
        if mix and rotate and ortho:
            words[0] += (
                f" P O_K leaves {_told(mix)}, Ortho(P'_h) {_told(ortho)}. P'_h O_M leaves {_told(rotate)}: an identity "
                "up to rounding, whose line in the paper shows nothing but that."
            )
        else:
            words[0] += " It has no attention, so only noise can be added."
        for reading in READINGS:
            curve = [row for row in rows if row["reading"] == reading]
            half = next((row["sigma"] for row in curve if row["mean"] < own["mean"] / 2), None)
            lost = f"half of it is lost from sigma = {half:g}" if half else "no sigma takes half of it"
            told = ", ".join(f"{row['sigma']:g}: {_told(row)}" for row in curve)
            words.append(f"With sigma as {reading} of the noise, {lost} ({told}).")
        words.append(PAPER)
        return words


PAPER = (
    "The paper (ADE20K, single-scale; Segmenter in brackets, from the printed differences): "
    + "; ".join(
        f"{backbone}: " + ", ".join(f"{kind} {own} ({other})" for kind, (own, other) in kinds.items())
        for backbone, kinds in PERTURBATION.items()
    )
    + "."
)


def _label(kind: str, reading: str | None, sigma: float | None) -> str:
    if kind == NONE:
        return "mIoU unperturbed (%)"
    if kind == NOISE:
        return f"after noise of {reading} {sigma:g} (%)"
    return f"after {kind}{' (identity)' if kind == ROTATE else ''} (%)"


def _told(row: Row) -> str:
    spread = "" if row["spread"] is None else f" ± {100 * row['spread']:.1f}"
    return f"{100 * row['mean']:.1f}{spread} %"


def draw(results: dict[str, list[Row]]) -> Figure:
    """The transformations above, the curves over sigma below; a color for each run."""
    from matplotlib.figure import Figure

    # Cells of a study have long names: each then has a line of the legend to itself.
    columns = 3 if max(map(len, results)) <= 22 else 1
    figure = Figure(figsize=(6.5, 6.2 + 0.2 * (len(results) // columns)), layout="constrained")
    above, below = figure.subplots(2, 1)
    for index, (name, rows) in enumerate(results.items()):
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        aside = 0.5 * (index - (len(results) - 1) / 2) / max(1, len(results))
        found = [(place, row) for place, kind in enumerate(TRANSFORMATIONS) if (row := find(rows, kind))]
        above.errorbar(
            [place + aside for place, _ in found],
            [100 * row["mean"] for _, row in found],
            yerr=[100 * (row["spread"] or 0) for _, row in found],
            fmt=marker,
            color=color,
            capsize=3,
            label=name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…",
        )
        for reading, style in zip(READINGS, ("-", ":"), strict=True):
            curve = [row for row in rows if row["reading"] == reading]
            below.errorbar(
                [row["sigma"] for row in curve],
                [100 * row["mean"] for row in curve],
                yerr=[100 * (row["spread"] or 0) for row in curve],
                fmt=marker + style,
                color=color,
                capsize=3,
                ms=4,
                label=f"sigma is the {reading}" if len(results) == 1 else None,
            )
    labels = ("unperturbed", r"$P\,O_K$", r"$P'_h\,O_M$" + "\n(identity)", r"$\mathrm{Ortho}(P'_h)$")
    above.set_xticks(range(len(labels)), labels)
    above.set_xlim(-0.5, len(labels) - 0.5)
    below.set_xscale("log")
    below.set_xlabel("sigma of the noise on every parameter of the decoder")
    for axes in (above, below):
        axes.set_ylabel("mIoU (%)")
        axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
        axes.grid(color="#dddddd", axis="y")
        axes.set_axisbelow(True)
    if len(results) == 1:
        below.legend(fontsize=8)
    else:
        above.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, fontsize=8)
        _styles(below)
    return figure


def _styles(axes: Axes) -> None:
    """A legend of the line styles alone, where colors stand for runs."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color="#444444", ls=style, label=f"sigma is the {reading}")
        for reading, style in zip(READINGS, ("-", ":"), strict=True)
    ]
    axes.legend(handles=handles, fontsize=8)
