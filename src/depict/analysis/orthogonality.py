"""Are the learned bases P and the class embeddings Q orthonormal?

Paper figures "gram", "more-para-dot" and "more-cls-dot".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depict.analysis.base import Result, Analysis, Sample
from depict.analysis.steps import sub_blocks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from depict.model import SegmentationModel

COLUMNS = 3
"""Panels beside each other in a figure."""
NAMED_CLASSES = 30
"""Up to so many classes stand with their names on the axes."""


def row_measures(rows: Tensor) -> dict[str, float]:
    """How far the rows (K, D) are from orthonormal ones.

    mean_abs_cosine: mean |cosine| of two different rows. mean_norm, norm_spread: of the rows, spread = standard
    deviation / mean. distance: |rows rows^T - I|_F / sqrt(K), 0 for orthonormal rows; unit_distance: the same for rows
    of unit length. effective_rank: see there.
    """
    rows = rows.double()
    K = len(rows)
    norms = rows.norm(dim=1)
    unit = rows / norms[:, None].clamp_min(torch.finfo(rows.dtype).tiny)
    identity = torch.eye(K, dtype=rows.dtype)
    cosines = unit @ unit.mT
    return {
        "mean_abs_cosine": (cosines.abs().sum() - cosines.diagonal().abs().sum()).item() / max(1, K * (K - 1)),
        "mean_norm": norms.mean().item(),
        "norm_spread": (norms.std(correction=0) / norms.mean()).item(),
        "distance": (rows @ rows.mT - identity).norm().item() / K**0.5,
        "unit_distance": (cosines - identity).norm().item() / K**0.5,
        "effective_rank": effective_rank(rows).item(),
    }


def effective_rank(rows: Tensor) -> Tensor:
    """exp of the entropy of the singular values s / sum(s): (..., N, D) -> (...), between 1 and min(N, D).

    After Roy and Vetterli (2007): r equal singular values and otherwise zeros give r.
    """
    wide = rows.double()
    gram = wide.mT @ wide if rows.shape[-1] <= rows.shape[-2] else wide @ wide.mT
    singular = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    return torch.special.entr(singular / singular.sum(-1, keepdim=True)).sum(-1).exp()


def span(rows: Tensor) -> Tensor:
    """An orthonormal basis, as rows, of what the rows (K, D) span: (rank, D)."""
    _, singular, directions = torch.linalg.svd(rows.double(), full_matrices=False)
    threshold = singular[0] * max(rows.shape) * torch.finfo(torch.float64).eps
    return directions[singular > threshold]


def principal_angles(U: Tensor, V: Tensor) -> Tensor:
    """Angles in degrees between the subspaces of orthonormal rows U (a, D) and V (b, D), ascending: (min(a, b),)."""
    return torch.linalg.svdvals(U @ V.mT).clamp(max=1).arccos().rad2deg()


def random_cosine(D: int) -> float:
    """Mean |cosine| of two directions drawn at random in D dimensions."""
    return math.exp(math.lgamma(D / 2) - math.lgamma((D + 1) / 2)) / math.sqrt(math.pi)


@functools.cache
def random_angle(a: int, b: int, D: int) -> float:
    """Mean principal angle in degrees of subspaces of a and b dimensions, drawn at random, from 4 seeded draws."""
    g = torch.Generator().manual_seed(0)
    draws = [[span(torch.randn(k, D, generator=g, dtype=torch.float64)) for k in (a, b)] for _ in range(4)]
    return torch.stack([principal_angles(U, V).mean() for U, V in draws]).mean().item()


class Orthogonality(Analysis):
    """P P^T of every layer and head, Q Q^T of every image."""

    name = "orthogonality"
    title = "Are the bases P and the class embeddings Q orthonormal?"
    about = (
        "The derivation assumes orthonormal bases P, and principal directions, which the class embeddings Q stand "
        "for, are orthonormal too (paper, figures “gram”, “more-para-dot” and “more-cls-dot”). Measured on P as "
        "trained, for every head and for all heads of a layer, and on the final class embeddings of every image, at "
        "unit length as the masks use them. The figure of Q shows the mean of Q Qᵀ over the images. A picture of a "
        "Gram matrix looks like the identity even for random rows in many dimensions, so every number stands beside "
        "that of random directions. Segmenter has no P: as in the paper, the rows of its query matrix stand in."
    )

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        bases = [(block.name, block.bases()) for block in sub_blocks(model.decoder)]
        found = [(name, P.detach().double().cpu()) for name, P in bases if P is not None]
        self.layers = {f"{name} {number}": P for number, (name, P) in enumerate(found, 1)}
        self.classes: list[dict[str, float]] = []
        self.gram = torch.zeros(model.num_classes, model.num_classes, dtype=torch.float64)

    def update(self, sample: Sample) -> None:
        """Measure the final class embeddings."""
        if sample.trace.Q_unit is not None:
            Q = sample.trace.Q_unit[0].double()
            self.classes.append(row_measures(Q))
            self.gram += Q @ Q.mT

    def compute(self) -> Result:
        """Numbers, tables and Gram matrices."""
        result = Result()
        if not self.layers and not self.classes:
            result.text = [f"The decoder '{self.model.config.decoder.name}' has neither bases nor class embeddings."]
        if self.layers:
            self._bases(result)
        if self.classes:
            self._embeddings(result)
        return result

    def _bases(self, result: Result) -> None:
        layers, heads = [], []
        for label, P in self.layers.items():
            layers.append({"layer": label, "bases": P.shape[0] * P.shape[1], **row_measures(P.flatten(0, 1))})
            heads += [{"layer": label, "head": head, **_head_row(rows)} for head, rows in enumerate(P, 1)]
        angles = head_angles(self.layers)
        result.tables |= {"layers": layers, "heads": heads, "angles": angles}
        result.data["bases"] = {"layers": layers, "heads": heads, "angles": angles}
        D = next(iter(self.layers.values())).shape[-1]
        within, across = _mean_angle(angles, True), _mean_angle(angles, False)
        result.numbers |= {
            "mean |cosine| of two bases of a head": _mean(heads, "mean_abs_cosine"),
            "the same, directions drawn at random": random_cosine(D),
            "mean |cosine| of two bases of a layer": _mean(layers, "mean_abs_cosine"),
            "mean norm of a basis": _mean(heads, "mean_norm"),
            "spread of the norms in a head (standard deviation / mean)": _mean(heads, "norm_spread"),
            "distance of a head to orthonormal (0 = orthonormal)": _mean(heads, "distance"),
            "distance of a head at unit length to orthonormal": _mean(heads, "unit_distance"),
            "effective rank of a head / largest possible": _mean(heads, "relative_rank"),
            "mean principal angle between heads of a layer (degrees)": within.get("mean"),
            "mean principal angle between heads of different layers (degrees)": across.get("mean"),
        }
        result.text += _words_on_bases(self.layers, heads, within, across)
        result.figures["bases"] = draw_bases(self.layers)
        result.captions["bases"] = (
            "P Pᵀ of every layer, rows as trained; lines part the heads. Orthonormal bases give an identity: full "
            "color on the diagonal, nothing beside it. Full color is the mean squared norm of a basis."
        )
        if angles:  # a single head has nothing to be compared with
            result.figures["angles"] = draw_angles(angles)
            result.captions["angles"] = (
                "Mean principal angle between the spans of any two heads, in degrees; lines part the layers. "
                "0 is the same subspace, 90 an orthogonal one."
            )

    def _embeddings(self, result: Result) -> None:
        C, D = self.model.num_classes, self.model.decoder.dim
        mean, spread = _mean(self.classes, "mean_abs_cosine"), _spread(self.classes, "mean_abs_cosine")
        distance, rank = _mean(self.classes, "unit_distance"), _mean(self.classes, "effective_rank")
        result.numbers |= {
            "mean |cosine| of two class embeddings": mean,
            "distance of the class embeddings to orthonormal": distance,
            "effective rank of the class embeddings / number of classes": rank / C,
        }
        gram = self.gram / len(self.classes)
        result.data["classes"] = {"per_image": self.classes, "mean_gram": gram.tolist(), "names": self.model.classes}
        result.text.append(
            f"Class embeddings, {len(self.classes):,} images: two of them have a mean |cosine| of {mean:.3f} "
            f"(± {spread:.3f} over images; random directions {random_cosine(D):.3f}), and their effective rank is "
            f"{rank:.1f} of {min(C, D)}. {_verdict(mean, random_cosine(D), 'class embeddings')} The paper calls "
            "DEPICT's very close to orthonormal and Segmenter's excessively related."
        )
        result.figures["classes"] = draw_classes(gram, self.model.classes)
        result.captions["classes"] = (
            f"Mean of Q Qᵀ over {len(self.classes):,} images, class embeddings at unit length. "
            "Orthogonal classes give an identity."
        )


def head_angles(layers: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Principal angles in degrees between any two heads (heads, M, D) of all layers; overlap = mean squared cosine."""
    spans = [(label, head, span(rows)) for label, P in layers.items() for head, rows in enumerate(P, 1)]
    found: list[dict[str, Any]] = []
    for index, (layer, head, U) in enumerate(spans):
        for other_layer, other_head, V in spans[index + 1 :]:
            angles = principal_angles(U, V)
            found.append(
                {
                    "layer": layer,
                    "head": head,
                    "other_layer": other_layer,
                    "other_head": other_head,
                    "smallest": angles.min().item(),
                    "mean": angles.mean().item(),
                    "largest": angles.max().item(),
                    "random_mean": random_angle(len(U), len(V), U.shape[1]),
                    "overlap": angles.deg2rad().cos().square().mean().item(),
                    "random_overlap": max(len(U), len(V)) / U.shape[1],
                }
            )
    return found


def _head_row(rows: Tensor) -> dict[str, float]:
    found = row_measures(rows)
    return {"bases": len(rows), **found, "relative_rank": found["effective_rank"] / min(rows.shape)}


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float:
    return sum(row[key] for row in rows) / len(rows)


def _spread(rows: Sequence[dict[str, Any]], key: str) -> float:
    return torch.tensor([row[key] for row in rows], dtype=torch.float64).std(correction=0).item()


def _mean_angle(angles: list[dict[str, Any]], same_layer: bool) -> dict[str, float]:
    """Means over pairs of heads of the same layer or of different ones; empty if there is no such pair."""
    rows = [row for row in angles if (row["layer"] == row["other_layer"]) == same_layer]
    keys = ("mean", "random_mean", "overlap", "random_overlap")
    return {key: _mean(rows, key) for key in keys} if rows else {}


def _verdict(cosine: float, chance: float, what: str) -> str:
    """In words, against random directions."""
    if cosine < 0.9 * chance:
        return f"The {what} are more orthogonal than random directions."
    if cosine <= 1.1 * chance:
        return f"The {what} are as orthogonal as random directions, no more."
    return f"The {what} are less orthogonal than random directions: they share directions."


def _words_on_bases(
    layers: dict[str, Tensor],
    heads: list[dict[str, Any]],
    within: dict[str, float],
    across: dict[str, float],
) -> list[str]:
    P = next(iter(layers.values()))
    M, D = P.shape[1:]
    most = min(M, D)
    rows = "query rows" if next(iter(layers)).startswith("mhsa") else "bases"
    cosine, distance = _mean(heads, "mean_abs_cosine"), _mean(heads, "distance")
    unit = _mean(heads, "unit_distance")
    random_unit = sum(math.sqrt((row["bases"] - 1) / D) for row in heads) / len(heads)
    norm, spread = _mean(heads, "mean_norm"), _mean(heads, "norm_spread")
    close = "close to orthonormal" if distance < 0.1 else "not orthonormal in the strict sense"
    words = [
        f"Two {rows} of a head have a mean |cosine| of {cosine:.3f}; random directions in {D} dimensions have "
        f"{random_cosine(D):.3f}. {_verdict(cosine, random_cosine(D), rows)} Norms: {norm:.2f} on average, spread "
        f"{100 * spread:.0f} %. The distance of P'P'ᵀ to the identity is {distance:.2f} per row ({unit:.2f} at unit "
        f"length; random directions {random_unit:.2f}; orthonormal 0): {close}, while the paper reads “very close to "
        "being orthonormal” for DEPICT, and norms that are “too small” for Segmenter, from the picture."
    ]
    if P.shape[0] * M > D:
        words.append(
            f"A layer has {P.shape[0] * M} {rows} in {D} dimensions, so they cannot all be orthogonal"
            + (f", and any two heads of {M} share at least {2 * most - D} dimensions." if 2 * most > D else ".")
        )
    told = [("of a layer", within), ("of different layers", across)]
    parts = [
        f"heads {which} {pair['mean']:.1f}° (random subspaces {pair['random_mean']:.1f}°), overlap "
        f"{pair['overlap'] / pair['random_overlap']:.2f} times that of random ones"
        for which, pair in told
        if pair
    ]
    if parts:
        words.append(
            f"Mean principal angles: {'; '.join(parts)}. Above 1 the spans share more than chance, below 1 they avoid "
            "each other."
        )
    return words


def draw_bases(layers: dict[str, Tensor]) -> Figure:
    """P P^T of every layer."""
    from matplotlib.figure import Figure

    grams = {label: P.flatten(0, 1) @ P.flatten(0, 1).mT for label, P in layers.items()}
    top = torch.cat([gram.diagonal() for gram in grams.values()]).mean().item()
    columns = min(COLUMNS, len(grams))
    lines = -(-len(grams) // columns)
    figure = Figure(figsize=(min(7.0, 2.2 * columns + 1.2), 2.3 * lines + 0.3), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for place, (label, gram) in zip(axes, grams.items(), strict=False):
        picture = place.imshow(gram.numpy(), cmap="RdBu_r", vmin=-top, vmax=top, interpolation="nearest")
        heads, M = layers[label].shape[:2]
        for border in range(1, heads):
            place.axhline(border * M - 0.5, color="black", lw=0.6)
            place.axvline(border * M - 0.5, color="black", lw=0.6)
        place.set_xticks([M * (head + 0.5) - 0.5 for head in range(heads)], [f"{head}" for head in range(1, heads + 1)])
        place.set_yticks([])
        place.set_title(label)
    for place in axes[len(grams) :]:
        place.set_axis_off()
    figure.supxlabel("bases, by head", fontsize=10)
    figure.colorbar(picture, ax=axes, label="inner product of two bases", shrink=0.8)
    return figure


def draw_angles(angles: list[dict[str, Any]]) -> Figure:
    """The mean principal angle of any two heads."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys((row[layer], row[head]) for row in angles for layer, head in _ENDS))
    matrix = torch.zeros(len(names), len(names))
    for row in angles:
        one, other = (names.index((row[layer], row[head])) for layer, head in _ENDS)
        matrix[one, other] = matrix[other, one] = row["mean"]
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    place = figure.subplots()
    picture = place.imshow(matrix.numpy(), cmap="cividis", vmin=0, vmax=90)
    labels = [f"{layer}.{head}" for layer, head in names]
    place.set_xticks(range(len(names)), labels, rotation=90)
    place.set_yticks(range(len(names)), labels)
    for index in range(1, len(names)):
        if names[index][0] != names[index - 1][0]:
            place.axhline(index - 0.5, color="white", lw=1.5)
            place.axvline(index - 0.5, color="white", lw=1.5)
    if len(names) <= 12:
        for i in range(len(names)):
            for j in range(len(names)):
                color = "white" if matrix[i, j] < 50 else "black"
                place.text(j, i, f"{matrix[i, j]:.0f}", ha="center", va="center", color=color, fontsize=8)
    place.set_xlabel("layer.head")
    place.set_ylabel("layer.head")
    figure.colorbar(picture, label="mean principal angle (degrees)")
    return figure


_ENDS = (("layer", "head"), ("other_layer", "other_head"))


def draw_classes(gram: Tensor, names: Sequence[str]) -> Figure:
    """The mean of Q Q^T over the images."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.8), layout="constrained")
    place = figure.subplots()
    picture = place.imshow(gram.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    if len(names) <= NAMED_CLASSES:
        place.set_xticks(range(len(names)), names, rotation=90)
        place.set_yticks(range(len(names)), names)
    else:
        place.set_xlabel("class")
        place.set_ylabel("class")
    figure.colorbar(picture, label="cosine of two class embeddings, mean over images")
    return figure
