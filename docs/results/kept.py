"""The studies kept in this folder: take the small files of new ones, read their lines, write Markdown tables."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT = ("study.yaml", "results.json", "times.json")
NAMES = {"linear": "linear", "segmenter": "Segmenter", "depict_sa": "DEPICT-SA", "depict_ca": "DEPICT-CA"}
NEWER = {"depict_us": "DEPICT-US", "cbt": "CBT", "depict_mask": "DEPICT-Mask", "maskformer": "MaskFormer"}
NEWER |= {"smp_fpn": "FPN of smp", "smp_unet": "Unet of smp", "smp_segformer": "SegFormer of smp"}
NEWER |= {
    "us_orthonormal": "DEPICT-US, orthonormal bases",
    "us_compress": "DEPICT-US, steps that only compress",
    "us_principal": "DEPICT-US, bases from principal directions",
    "us_scaled": "DEPICT-US, scaled cosine",
    "us_prior": "DEPICT-US, biases from class frequencies",
    "sparse": "linear on sparse codes",
    "linear_fine": "linear, with the level of stride 2",
    "linear_relu": "linear after BatchNorm and ReLU",
    "linear_raw": "linear, neck without LayerNorms",
    "linear_all": "linear with all of these but the two maps",
    "linear_deep": "linear, two maps in a row for each level",
}
"""Variants of our decoders: benchmarks/levers.py."""
Line = dict[str, Any]


def take(runs: Path) -> None:
    """Copy the small files of all studies below `runs`, with the last part of paths to data and weights only."""
    for study in sorted(runs.glob("*/study.yaml")):
        target = HERE / study.parent.name
        target.mkdir(exist_ok=True)
        for name in KEPT:
            if (study.parent / name).exists():
                text = (study.parent / name).read_text(encoding="utf-8")
                if name.endswith(".json"):
                    text = _small(json.loads(text))
                (target / name).write_text(re.sub(r"\b(root|pretrained): /\S*/", r"\1: ", text), encoding="utf-8")


def _small(results: Line) -> str:
    """JSON on one line. The class means of a single seed are left out: they equal its classes."""
    for line in results.get("lines", ()):
        if len(line["seeds"]) == 1:
            line.pop("class_means", None)
    return json.dumps(results) + "\n"


def lines_of(study: str) -> list[Line]:
    """The lines of a study, each with its decoder's name and the settings in its label."""
    results = json.loads((HERE / study / "results.json").read_text(encoding="utf-8"))
    lines: list[Line] = results["lines"]
    return [labeled(line, "group" if results["study"] == "subset" else "label") for line in lines]


def labeled(line: Line, key: str = "label") -> Line:
    decoder, *settings = line[key].split(",")
    return line | {"decoder": NAMES.get(decoder, decoder), "settings": dict(one.split("=") for one in settings)}


def merged(studies: Sequence[str]) -> list[Line]:
    """The lines of several studies, the best first; the seeds of a decoder become one line."""
    lines: dict[str, Line] = {}
    for line in (line for study in studies for line in lines_of(study)):
        if len(line["seeds"]) == 1:
            line["class_means"] = line["classes"]
        if (other := lines.get(line["label"])) is None:
            lines[line["label"]] = line
            continue
        if both := set(line["seeds"]) & set(other["seeds"]):
            raise ValueError(f"{line['label']}: seeds {sorted(both)} are in two of the studies {', '.join(studies)}")
        miou = [*other["miou"], *line["miou"]]
        every = [one for one in (other, line) for _ in one["seeds"]]
        lines[line["label"]] = line | {
            "seeds": [*other["seeds"], *line["seeds"]],
            "miou": miou,
            "mean": statistics.fmean(miou),
            "spread": statistics.stdev(miou),
            **{
                key: statistics.fmean(one[key] for one in every)
                for key in ("boundary_iou", "pixel_accuracy")
                if all(key in one for one in every)  # older studies were kept without pixel accuracy
            },
            "class_means": {
                name: statistics.fmean(one["class_means"][name] for one in every) for name in line["class_means"]
            },
        }
    return by_score(lines.values())


def by_score(lines: Iterable[Line]) -> list[Line]:
    """The best first."""
    return sorted(lines, key=lambda line: -line["mean"])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, numbers right-aligned."""
    rule = "|---" + "|---:" * (len(head) - 1) + "|"
    first, *others = ("| " + " | ".join(row) + " |" for row in (head, *rows))
    return "\n".join([first, rule, *others])


def percent(line: Line) -> str:
    """mIoU in percent, with the standard deviation over seeds if there are several."""
    spread = f" ± {100 * line['spread']:.2f}" if line["spread"] is not None else ""
    return f"{100 * line['mean']:.2f}{spread}"


def short_name(line: Line) -> str:
    """A decoder's name, with its head if it is not its own."""
    head = line["settings"].get("decoder.head")
    return NEWER.get(line["decoder"], line["decoder"]) + (f", head {head}" if head else "")


def full_name(line: Line) -> str:
    """A decoder's name with the settings in which it differs from the others of its study."""
    settings = line["settings"]
    parts = [short_name(line), settings.get("decoder.operator")]
    parts += [f"{dim} dimensions per head"] if (dim := settings.get("decoder.head_dim")) else []
    parts += [f"rate {settings['lr']}"] if "lr" in settings else []
    parts += [f"steps from {step}"] if (step := settings.get("decoder.step_size")) else []
    parts += ["warm-up"] if "warmup" in settings else []
    parts += ["clipped gradients"] if "clip_grad" in settings else []
    parts += ["Lovász"] if "lovasz" in settings.get("loss", "") else []
    parts += ["no dropout"] if settings.get("decoder.dropout") == "0" else []
    parts += ["stem"] if settings.get("neck.stem") == "true" else []
    parts += ["masked attention"] if settings.get("decoder.masked_attention") == "true" else []
    parts += ["no deep supervision"] if settings.get("decoder.deep_supervision") == "false" else []
    parts += ["loss of MaskFormer"] if settings.get("decoder.matching") == "maskformer" else []
    parts += ["started from the data"] if settings.get("start") == "data" else []
    return ", ".join(part for part in parts if part)


def minutes(line: Line, images_per_second: float) -> float:
    return line["images"] * line["training"]["epochs"] / images_per_second / 60
