"""Do the class embeddings take fewer nats than the patches they stand for? (paper figure "RQRZ", eq. 14)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depict.analysis.base import Result, Analysis, Sample
from depict.coding_rate import EPSILON, coding_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from depict.model import SegmentationModel

FORMS = {"raw": "as they leave the last step", "masks": "normalized to unit length, as the masks use them"}
"""Embeddings at the end of the decoder, in the words of the report."""
LINES = (("R(Z)", "o", 0), ("R(Q)", "s", 1), ("R(Q̄)", "D", 2))
"""Name, marker and color of the three rates."""


def repeated_rate(Q: Tensor, counts: Tensor, epsilon: float = EPSILON) -> Tensor:
    """R(Q_bar) of centroids Q (C, D) repeated counts (C,) times each, without making the repetitions.

    Weighting row c by sqrt(C n_c / N) gives D / (N epsilon^2) Q_bar^T Q_bar from C rows.
    """
    return coding_rate(Q * (counts * len(Q) / counts.sum()).sqrt()[:, None], epsilon)


def three_rates(Z: Tensor, Q: Tensor, counts: Tensor, epsilon: float = EPSILON) -> Tensor:
    """R(Z), R(Q), R(Q_bar) of patches (N, D), classes (C, D) and the patches that each class won (C,): (3,)."""
    Z, Q = Z.double(), Q.double()
    return torch.stack([coding_rate(Z, epsilon), coding_rate(Q, epsilon), repeated_rate(Q, counts, epsilon)])


class LowRank(Analysis):
    """R(Z), R(Q) and R(Q_bar) of every image."""

    name = "low_rank"
    title = "Is R(Z) at least R(Q̄): are class embeddings a low-rank picture of the patches?"
    about = (
        "The class embeddings are meant to be a low-rank approximation of the patches: |R(Z) − R(Q̄)| is minimized "
        "(paper, eq. 14), where Q̄ repeats every class embedding once for each patch that its mask wins, and R(Z) ≥ "
        "R(Q̄) is taken for granted. The paper's figure “RQRZ” shows R(Q) in place of R(Q̄), as an upper bound. All "
        "three are measured on every image, with embeddings as they leave the last step, and normalized to unit "
        f"length as the masks use them. Rates are in nats at distortion ε = {EPSILON}; the paper states neither its "
        "own nor whether its Q is normalized."
    )

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        self.names: list[str] = []
        self.final: dict[str, list[Tensor]] = {form: [] for form in FORMS}
        self.depths: dict[str, list[Tensor]] = {"raw": [], "unit": []}

    @torch.no_grad()
    def update(self, sample: Sample) -> None:
        """Measure at every depth, and at the end."""
        trace = sample.trace
        if trace.Q_unit is None or trace.Z_unit is None or trace.masks is None:
            return
        C = trace.Q_unit.shape[1]
        counts = torch.bincount(trace.masks[0].argmax(0).flatten(), minlength=C).double()
        pairs = [(Z[0].double(), Q[0].double()) for Z, Q in zip(trace.Z, trace.Q, strict=True)]
        raw = torch.stack([three_rates(Z, Q, counts) for Z, Q in pairs])
        unit = torch.stack([three_rates(_unit(Z), _unit(Q), counts) for Z, Q in pairs])
        self.names.append(sample.name)
        self.depths["raw"].append(raw)
        self.depths["unit"].append(unit)
        self.final["raw"].append(raw[-1])
        self.final["masks"].append(three_rates(trace.Z_unit[0], trace.Q_unit[0], counts))

    def compute(self) -> Result:
        """Counts, scatter and curves."""
        if not self.names:
            return Result(skipped=f"The decoder '{self.model.config.decoder.name}' has no class embeddings.")
        final = {form: torch.stack(rates) for form, rates in self.final.items()}
        depths = {form: torch.stack(rates) for form, rates in self.depths.items()}
        result = Result(
            data={
                "epsilon": EPSILON,
                "axes": "depth; R(Z), R(Q), R(Q_bar)",
                **{f"{form}_mean": rates.mean(0).tolist() for form, rates in depths.items()},
                **{f"{form}_spread": rates.std(0, correction=0).tolist() for form, rates in depths.items()},
            },
            tables={"images": image_rows(self.names, final)},
            figures={"images": draw_images(final), "depth": draw_depth(depths)},
            captions={
                "images": "Every image is a point: R(Z) against R(Q̄) (filled) and R(Q) (open). Below the line, "
                "R(Z) is the larger one, as the paper expects.",
                "depth": "The three rates at every depth, mean and standard deviation over the images: embeddings "
                "as they are (left) and every one scaled to unit length (right). DEPICT-CA normalizes its patches "
                "once, between MSSA and MSCA.",
            },
        )
        for form, rates in final.items():
            of_Z, of_Q, of_Q_bar = rates.unbind(1)
            label = FORMS[form]
            result.numbers |= {
                f"R(Z) ≥ R(Q̄) (% of images), {label}": 100 * (of_Z >= of_Q_bar).double().mean().item(),
                f"R(Z) (nats), {label}": of_Z.mean().item(),
                f"R(Q) (nats), {label}": of_Q.mean().item(),
                f"R(Q̄) (nats), {label}": of_Q_bar.mean().item(),
            }
            result.text.append(words(rates, label))
        result.text.append(words_on_depth(depths))
        return result


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)


def image_rows(names: list[str], final: dict[str, Tensor]) -> list[dict[str, Any]]:
    """A row for every image."""
    rows = []
    for index, name in enumerate(names):
        row: dict[str, Any] = {"image": name}
        for form, rates in final.items():
            of_Z, of_Q, of_Q_bar = rates[index].tolist()
            row |= {f"{form}_R_Z": of_Z, f"{form}_R_Q": of_Q, f"{form}_R_Q_bar": of_Q_bar}
            row[f"{form}_holds"] = of_Z >= of_Q_bar
        rows.append(row)
    return rows


def words(rates: Tensor, label: str) -> str:
    """What came out for rates (images, 3)."""
    of_Z, of_Q, of_Q_bar = rates.unbind(1)
    count, holds, bound = len(rates), int((of_Z >= of_Q_bar).sum()), int((of_Q >= of_Q_bar).sum())
    larger = int((of_Z >= of_Q).sum())
    mean = rates.mean(0).tolist()
    verdict = (
        "the paper's inequality holds on every image"
        if holds == count
        else "the paper's inequality holds on no image"
        if not holds
        else f"the paper's inequality fails on {count - holds:,} of {count:,} images"
    )
    return (
        f"Embeddings {label}: R(Z) = {mean[0]:.1f}, R(Q) = {mean[1]:.1f}, R(Q̄) = {mean[2]:.1f} nats on average. "
        f"R(Z) ≥ R(Q̄) on {holds:,} of {count:,} images: {verdict}. R(Z) ≥ R(Q), which the paper's figure shows, on "
        f"{larger:,}; R(Q) ≥ R(Q̄), which it takes as an upper bound, on {bound:,}."
    )


def words_on_depth(depths: dict[str, Tensor]) -> str:
    """Whether R(Z) and R(Q) come closer to each other, (images, depths, 3)."""
    parts = []
    for form, label in (("raw", "as they are"), ("unit", "at unit length")):
        gap = (depths[form][..., 0] - depths[form][..., 1]).mean(0)
        way = "shrinks" if gap[-1].abs() < gap[0].abs() else "grows"
        parts.append(f"{way} from {gap[0]:.1f} to {gap[-1]:.1f} nats for embeddings {label}")
    agrees = all("shrinks" in part for part in parts)
    end = "as the paper reports." if agrees else "while the paper reports that it roughly decreases with depth."
    return f"From the input to the last step, R(Z) − R(Q) {' and '.join(parts)}, {end}"


def draw_images(final: dict[str, Tensor]) -> Figure:
    """R(Q_bar) and R(Q) over R(Z), a point for every image (images, 3)."""
    from matplotlib.figure import Figure

    from depict.viz.style import COLORS

    figure = Figure(figsize=(7, 3.7), layout="constrained")
    for place, (form, rates) in zip(figure.subplots(1, 2), final.items(), strict=True):
        of_Z, of_Q, of_Q_bar = rates.numpy().T
        place.plot(of_Z, of_Q_bar, "o", color=COLORS[2], ms=4, label="R(Q̄)")
        place.plot(of_Z, of_Q, "s", mec=COLORS[1], mfc="none", ms=4, label="R(Q)")
        low, high = rates.min().item(), rates.max().item()
        margin = 0.05 * (high - low) + 1e-6
        ends = [low - margin, high + margin]
        place.plot(ends, ends, "--", color="#666666", lw=1, label="equal")
        place.set(xlim=ends, ylim=ends, xlabel="R(Z) (nats)")
        place.set_title(
            {"raw": "as they leave the last step", "masks": "at unit length, as in the masks"}[form], fontsize=10
        )
        place.grid(color="#dddddd")
        place.set_axisbelow(True)
    figure.axes[0].set_ylabel("R(Q̄), R(Q) (nats)")
    figure.axes[0].legend()
    return figure


def draw_depth(depths: dict[str, Tensor]) -> Figure:
    """The three rates over depth, (images, depths, 3)."""
    from matplotlib.figure import Figure

    from depict.viz.style import COLORS

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    for place, (form, rates) in zip(figure.subplots(1, 2), depths.items(), strict=True):
        mean, spread = rates.mean(0).numpy(), rates.std(0, correction=0).numpy()
        x = list(range(len(mean)))
        for index, (name, marker, color) in enumerate(LINES):
            y, error = mean[:, index], spread[:, index]
            place.plot(x, y, marker=marker, ms=4, color=COLORS[color], label=name)
            place.fill_between(x, y - error, y + error, color=COLORS[color], alpha=0.2, lw=0)
        place.set_xticks(x)
        place.set_xlabel("depth (steps taken)")
        place.set_title({"raw": "as they are", "unit": "at unit length"}[form], fontsize=10)
        place.grid(color="#dddddd")
        place.set_axisbelow(True)
    figure.axes[0].set_ylabel("coding rate (nats)")
    figure.axes[0].legend()
    return figure
