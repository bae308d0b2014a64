"""Report text: robustness."""

from __future__ import annotations

from depict.analysis.base import Result
from depict.analysis.perturbation import READINGS, SEEDS, TRANSFORMATIONS, Row, find_row
from depict.analysis.verdict import Verdict, by_share, together
from depict.config.paper import PERTURBATION

TITLE = "Does the model survive perturbations of its decoder?"
ABOUT = (
    "The paper perturbs trained decoders in four ways (table “Investigating robustness”): 1) P O_K mixes all bases of "
    "an attention layer by a random orthogonal matrix; 2) P'_h O_M does so within each head; 3) Ortho(P'_h) replaces "
    "each head's bases by the nearest orthonormal ones of the same span; 4) Gaussian noise is added to every "
    "parameter of the decoder; encoder and neck are never changed. 2) is an identity by construction, in DEPICT and in "
    "Segmenter: scores are inner products within a head, and values are rotated back on the way out. The paper calls "
    "sigma the variance of the noise, its plot only “noise level”; both readings are measured. The authors drew new "
    f"perturbations at every call; here each is drawn once for each of {len(SEEDS)} seeds (one seed for 2, none needed "
    "for 3). How they perturbed Segmenter is not published: here 1) and 2) act on queries, keys and values and "
    "their biases, with the inverse on the output matrix, and 3) on queries, keys and values of each head separately, "
    "leaving biases and output unchanged. Images are segmented whole, so the mIoU differs slightly from that of "
    "“depict evaluate”, which uses windows."
)
CAPTIONS = {
    "mIoU": "mIoU over the images. Top: the transformations; bars show the standard deviation over seeds. Bottom: "
    "noise on every parameter of the decoder, with sigma read as variance and as standard deviation."
}
PAPER = (
    "The paper reports (ADE20K, single-scale; Segmenter in brackets, computed from the printed differences): "
    + "; ".join(
        f"{backbone}: " + ", ".join(f"{kind} {depict} ({segmenter})" for kind, (depict, segmenter) in kinds.items())
        for backbone, kinds in PERTURBATION.items()
    )
    + "."
)


def verdict(result: Result) -> Verdict:
    """Which part of the mIoU is left after the transformations, or after the least noise if there are none."""
    rows = result.data["rows"]
    unperturbed, mix, _, ortho = (find_row(rows, kind) for kind in TRANSFORMATIONS)
    assert unperturbed is not None
    if mix and ortho:
        changed = {"P O_K": mix["mean"], "Ortho(P'_h)": ortho["mean"]}
    else:
        least = min((row for row in rows if row["sigma"]), key=lambda row: row["sigma"])
        changed = {f"noise of {least['reading']} {least['sigma']:g}": least["mean"]}
    left = [by_share(score / unperturbed["mean"]) if unperturbed["mean"] else "holds" for score in changed.values()]
    scores = ", ".join(f"{100 * score:.1f} % after {change}" for change, score in changed.items())
    return Verdict(together(*left), f"mIoU {100 * unperturbed['mean']:.1f} %; {scores}")


def findings(result: Result) -> list[str]:
    """What the transformations and the noise leave, and the paper's numbers."""
    rows = result.data["rows"]
    return [_transformations(rows, result.data["images"]), *(_noise(rows, reading) for reading in READINGS), PAPER]


def _transformations(rows: list[Row], images: int) -> str:
    unperturbed, mix, rotate, ortho = (find_row(rows, kind) for kind in TRANSFORMATIONS)
    assert unperturbed is not None
    text = f"Unperturbed, the model has {100 * unperturbed['mean']:.1f} % mIoU on these {images} images."
    if mix and rotate and ortho:
        return text + (
            f" P O_K leaves {_percent(mix)}, Ortho(P'_h) {_percent(ortho)}. P'_h O_M leaves {_percent(rotate)}: it is "
            "an identity up to rounding, and the paper's row shows just that."
        )
    return text + " It has no attention, so only noise can be added."


def _noise(rows: list[Row], reading: str) -> str:
    unperturbed = find_row(rows, TRANSFORMATIONS[0])
    assert unperturbed is not None
    curve = [row for row in rows if row["reading"] == reading]
    half = next((row["sigma"] for row in curve if row["mean"] < unperturbed["mean"] / 2), None)
    verdict = f"half of the mIoU is lost from sigma = {half:g}" if half else "no tested sigma costs half of the mIoU"
    levels = ", ".join(f"{row['sigma']:g}: {_percent(row)}" for row in curve)
    return f"With sigma as the {reading} of the noise, {verdict} ({levels})."


def _percent(row: Row) -> str:
    spread = "" if row["spread"] is None else f" ± {100 * row['spread']:.1f}"
    return f"{100 * row['mean']:.1f}{spread} %"
