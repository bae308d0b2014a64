"""R(Z), R(Q) and R(Q_bar): do the class embeddings take fewer nats than the patches? (paper figure "RQRZ", eq. 14)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depict.analysis.base import Analysis, Result, Sample
from depict.analysis.steps import why_no_class_embeddings
from depict.coding_rate import EPSILON, coding_rate

if TYPE_CHECKING:
    from depict.model import SegmentationModel

FORMS = {"raw": "after the last step", "masks": "normalized for the masks"}
"""The final embeddings: unchanged, and scaled to unit length as the masks use them."""


@dataclass
class MeasuredRates:
    """R(Z), R(Q), R(Q_bar) of all images, for figures and text."""

    final: dict[str, Tensor]
    """(images, 3) of the final embeddings, for each of `FORMS`."""
    depths: dict[str, Tensor]
    """(images, depths, 3), for `raw` embeddings and for embeddings of `unit` length."""


def repeated_rate(Q: Tensor, counts: Tensor, epsilon: float = EPSILON) -> Tensor:
    """R(Q_bar) of centroids Q (C, D) repeated counts (C,) times each, without making the repetitions.

    Weighting row c by sqrt(C n_c / N) gives D / (N epsilon^2) Q_bar^T Q_bar from C rows.
    """
    return coding_rate(Q * (counts * len(Q) / counts.sum()).sqrt()[:, None], epsilon)


def three_rates(Z: Tensor, Q: Tensor, counts: Tensor, epsilon: float = EPSILON) -> Tensor:
    """R(Z), R(Q), R(Q_bar) of patches (N, D), classes (C, D) and the number of patches of each class (C,): (3,)."""
    Z, Q = Z.double(), Q.double()
    return torch.stack([coding_rate(Z, epsilon), coding_rate(Q, epsilon), repeated_rate(Q, counts, epsilon)])


class LowRank(Analysis):
    """R(Z), R(Q) and R(Q_bar) of every image."""

    name = "low_rank"

    def __init__(self, model: SegmentationModel):
        super().__init__(model)
        self.names: list[str] = []
        self.final: dict[str, list[Tensor]] = {form: [] for form in FORMS}
        self.depths: dict[str, list[Tensor]] = {"raw": [], "unit": []}

    @torch.no_grad()
    def update(self, sample: Sample) -> None:
        """Measure at every depth, and the embeddings of the masks."""
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
        """Mean rates, and on how many images the inequality holds."""
        if not self.names:
            return Result(skipped=why_no_class_embeddings(self.model.config.decoder.name))
        final = {form: torch.stack(rates) for form, rates in self.final.items()}
        depths = {form: torch.stack(rates) for form, rates in self.depths.items()}
        numbers: dict[str, float | None] = {}
        for form, label in FORMS.items():
            of_Z, of_Q, of_Q_bar = final[form].unbind(1)
            numbers |= {
                f"R(Z) ≥ R(Q̄) (% of images), {label}": 100 * (of_Z >= of_Q_bar).double().mean().item(),
                f"R(Z) (nats), {label}": of_Z.mean().item(),
                f"R(Q) (nats), {label}": of_Q.mean().item(),
                f"R(Q̄) (nats), {label}": of_Q_bar.mean().item(),
            }
        return Result(
            numbers=numbers,
            data={
                "epsilon": EPSILON,
                "axes": "depth; R(Z), R(Q), R(Q_bar)",
                **{f"{form}_mean": rates.mean(0).tolist() for form, rates in depths.items()},
                **{f"{form}_spread": rates.std(0, correction=0).tolist() for form, rates in depths.items()},
            },
            tables={"images": image_rows(self.names, final)},
            measured=MeasuredRates(final, depths),
        )


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
