"""Tables of docs/architecture.md and docs/masks.md: decoders on the levels of EfficientNet-Lite0, on CamVid."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from kept import HERE, Line, by_score, full_name, labeled, lines_of, markdown, merged, percent

THIN = ("pole", "sign", "pedestrian")


def strides(*studies: str) -> str:
    """Decoders on the levels of EfficientNet-Lite0, the best first."""
    return _strides(merged(studies))


def masks() -> str:
    """Mask classification on the levels of EfficientNet-Lite0, next to decoders with one mask per class; seed 0."""
    others = merged(("strides", "decoders", "rest"))
    shown = [line for line in others if line["settings"].get("stride") == "16"]
    shown += [line for line in others if line["label"] in ("linear,stride=4", "linear,stride=8")]
    lines = [*merged(("masks", "maskformer", "maskformer_rest")), *shown]
    return _strides(by_score(lines))


def query_lengths() -> str:
    """Variants of depict_mask with queries that are stored at their full length, and at length 1."""
    [softmax], [exact] = lines_of("tuning_softmax"), lines_of("tuning_queries")
    held_out = {line["label"]: line for line in merged(("tuning_masks", "tuning_softmax_long"))}
    pairs = [("exact", held_out["depict_mask,stride=16,decoder.operator=exact,lr=3e-3"], exact)]
    pairs += [("softmax", held_out[softmax["label"]], softmax)]
    body = [[f"held-out images, 4 epochs: {name}", percent(long), percent(short)] for name, long, short in pairs]
    long = {line["label"]: line for line in merged(("masks_long", "masks_long_rest"))}
    body += [
        [f"validation images, 10 epochs: {_variant(line)}", percent(long[line["label"]]), percent(line)]
        for line in merged(("masks",))
    ]
    return markdown(["mIoU % of `depict_mask`", "full length", "length 1"], body)


def _variant(line: Line) -> str:
    """What sets a row of `depict_mask` apart, such as `softmax, masked attention`."""
    operator, *more = full_name(line).split(", ")[1:] or ["softmax"]
    return ", ".join([operator, *more] if operator in ("exact", "softmax") else ["softmax", operator, *more])


def toward_segformer() -> str:
    """From the linear decoder to SegFormer's head, with seed 0."""
    ends = ("linear,stride=4", "smp_segformer")
    variants = merged(("strides", "rest", "toward_segformer", "toward_segformer_all", "toward_segformer_deep"))
    return _strides([line for line in variants if line["label"] in ends or line["label"].startswith("linear_")])


def _strides(lines: Sequence[Line]) -> str:
    head = ["decoder", "stride", "mIoU %", "boundary IoU %", *(f"{name} %" for name in THIN), "parameters", "GFLOPs"]
    body = [
        [
            full_name(line),
            line["settings"].get("stride", "4"),
            percent(line),
            f"{100 * line['boundary_iou']:.2f}",
            *(f"{100 * line['class_means'][name]:.1f}" for name in THIN),
            f"{line['parameters'] / 1e6:.3f} M",
            f"{line['multiply_adds'] / 1e9:.3f}",
        ]
        for line in lines
    ]
    return markdown(head, body)


def seeds(*studies: str) -> str:
    """mIoU of each seed, of the decoders on the levels of EfficientNet-Lite0 that have several."""
    lines = [line for line in merged(studies) if len(line["seeds"]) > 1]
    body = [
        [
            f"{full_name(line)}, stride {line['settings'].get('stride', 4)}",
            *(f"{100 * miou:.2f}" for miou in line["miou"]),
        ]
        for line in lines
    ]
    return markdown(["mIoU %", *(f"seed {seed}" for seed in lines[0]["seeds"])], body)


def speed(study: str) -> str:
    """Times and memory of decoders on the levels of EfficientNet-Lite0, the fastest to train first."""
    head = ["decoder", "stride", "training images/s", "inference images/s", "forward ms", "training MB", "inference MB"]
    times: dict[str, Line] = json.loads((HERE / study / "times.json").read_text(encoding="utf-8"))
    body = [
        [
            full_name(line := labeled({"label": label})),
            line["settings"].get("stride", "4"),
            f"{own['batch'] / own['step']:.1f}",
            f"{1 / own['image']:.1f}",
            f"{1e3 * own['forward']:.0f}",
            f"{own['training_bytes'] / 1e6:.0f}",
            f"{own['inference_bytes'] / 1e6:.0f}",
        ]
        for label, own in sorted(times.items(), key=lambda item: item[1]["step"] / item[1]["batch"])
    ]
    return markdown(head, body)


TABLES: dict[str, Callable[[], str]] = {
    "strides": lambda: strides("strides", "decoders", "rest", "rest4", "seeds", "segformer_seeds", "nonlinear"),
    "seeds": lambda: seeds("strides", "decoders", "rest", "seeds", "segformer_seeds"),
    "stem": lambda: strides("stem"),
    "toward_segformer": toward_segformer,
    "speed_strides": lambda: speed("speed_strides"),
    "tuning_strides": lambda: strides("tuning_strides"),
    "tuning_masks": lambda: strides("tuning_masks", "tuning_softmax_long"),
    "masks": masks,
    "query_lengths": query_lengths,
    "speed_masks": lambda: speed("speed_masks"),
}
