"""Report text: R(Z), R(Q) and R(Q_bar)."""

from __future__ import annotations

from torch import Tensor

from depict.analysis.base import Result
from depict.analysis.low_rank import FORMS
from depict.analysis.verdict import Verdict, by_share, together
from depict.coding_rate import EPSILON

TITLE = "Is R(Z) at least R(Q̄), so that the class embeddings are a low-rank approximation of the patches?"
ABOUT = (
    "The class embeddings are derived as a low-rank approximation of the patches: |R(Z) − R(Q̄)| is minimized (paper, "
    "eq. 14). Q̄ repeats every class embedding once for each patch of that class, and R(Z) ≥ R(Q̄) is assumed. The "
    "paper's figure “RQRZ” shows R(Q) as an upper bound of R(Q̄). All three rates are measured on every image, both "
    "for the embeddings after the last step and for those normalized to unit length, as the masks use them. Rates are "
    f"in nats at distortion ε = {EPSILON}; the paper states neither its own nor whether its Q is normalized."
)
CAPTIONS = {
    "images": "Every image is a point: R(Q̄) (filled) and R(Q) (open) against R(Z). Below the dashed line R(Z) is "
    "larger, as the paper assumes.",
    "depth": "The three rates at every depth, mean and standard deviation over the images, for raw embeddings (left) "
    "and embeddings scaled to unit length (right). DEPICT-CA normalizes its patches once, between MSSA and MSCA.",
}


def verdict(result: Result) -> Verdict:
    """On which share of the images the inequality holds, for each form of the embeddings."""
    final = result.measured.final
    shares = {form: float((rates[:, 0] >= rates[:, 2]).double().mean()) for form, rates in final.items()}
    raw, unit = (f"{100 * share:.0f} %" for share in shares.values())
    number = f"on {raw} of the images for the embeddings after the last step, on {unit} for those of unit length"
    return Verdict(together(*map(by_share, shares.values())), number)


def findings(result: Result) -> list[str]:
    """On how many images the inequality holds, for each form of the embeddings, and how the gap changes with depth."""
    measured = result.measured
    return [
        *(_inequality(rates, FORMS[form]) for form, rates in measured.final.items()),
        _gap_over_depth(measured.depths),
    ]


def _inequality(rates: Tensor, label: str) -> str:
    """The inequality for rates (images, 3)."""
    of_Z, of_Q, of_Q_bar = rates.unbind(1)
    count, holds = len(rates), int((of_Z >= of_Q_bar).sum())
    means = [f"{mean:.1f}" for mean in rates.mean(0).tolist()]
    if holds == count:
        verdict = "R(Z) ≥ R(Q̄) holds on every image"
    elif not holds:
        verdict = "R(Z) ≥ R(Q̄) holds on no image"
    else:
        verdict = f"R(Z) ≥ R(Q̄) fails on {count - holds:,} of {count:,} images"
    return (
        f"Embeddings {label}: {verdict}. On average R(Z) = {means[0]}, R(Q) = {means[1]} and R(Q̄) = {means[2]} nats. "
        f"R(Z) ≥ R(Q), which the paper's figure shows, holds on {int((of_Z >= of_Q).sum()):,} of {count:,} images, and "
        f"R(Q) ≥ R(Q̄), the upper bound, on {int((of_Q >= of_Q_bar).sum()):,}."
    )


def _gap_over_depth(depths: dict[str, Tensor]) -> str:
    """Whether R(Z) − R(Q) shrinks from the input to the last step, (images, depths, 3)."""
    parts = []
    for form, label in (("raw", "raw embeddings"), ("unit", "embeddings of unit length")):
        gap = (depths[form][..., 0] - depths[form][..., 1]).mean(0)
        change = "shrinks" if gap[-1].abs() < gap[0].abs() else "grows"
        parts.append(f"{change} from {gap[0]:.1f} to {gap[-1]:.1f} nats for {label}")
    agrees = all("shrinks" in part for part in parts)
    end = "as the paper reports" if agrees else "while the paper reports that it roughly decreases with depth"
    return f"From the input to the last step, R(Z) − R(Q) {' and '.join(parts)}, {end}."
