"""Rewrite the tables of docs/results.md, architecture.md, masks.md and ade20k.md, and the pictures of label maps.

    python docs/results/redraw.py [--take RUNS]

Everything comes from the files next to this script. Each study keeps its study.yaml, the results.json of `depict study`
and the times.json of `benchmarks/peers.py --time`. `--take RUNS` first copies these files of all studies in RUNS.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

HERE = Path(__file__).parent
KEPT = ("study.yaml", "results.json", "times.json")
PAGES = tuple(HERE.parent / name for name in ("results.md", "architecture.md", "masks.md", "ade20k.md"))
IMAGES = HERE.parent / "images"
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
THIN = ("pole", "sign", "pedestrian")
LABEL_ROWS = {
    "1_linear": "linear",
    "2_segmenter": "Segmenter",
    "3_depict_sa": "DEPICT-SA",
    "4_depict_ca": "DEPICT-CA",
    "5_segmenter_finetuned": "Segmenter\nfine-tuned",
    "6_depict_sa_finetuned": "DEPICT-SA\nfine-tuned",
}
"""Strips of six label maps each, and how their row is labeled."""
STRIDE_ROWS = {"7_truth": "truth", "8_stride_16": "stride 16", "9_stride_8": "stride 8", "10_stride_4": "stride 4"}
"""The same with three label maps, of the linear decoder on the levels of EfficientNet-Lite0."""
ADE20K_LONG = ("ade20k_long", "ade20k_seeds", "ade20k_long_attention", "ade20k_segmenter")
ADE20K_LONG += ("ade20k_long_softmax", "ade20k_seeds_ca", "ade20k_long_cbt", "ade20k_long_parts")
"""Studies of 16 epochs on a quarter of ADE20K."""
ADE20K_TUNING = ("ade20k_tuning", "ade20k_tuning_attention", "ade20k_heads", "ade20k_prior")
"""Studies of two epochs on held-out images of ADE20K, with cross-entropy alone but for a few trials."""
ADE20K_TUNING_LOVASZ = ("ade20k_tuning_softmax", "ade20k_tuning_rates", "ade20k_tuning_stride")
"""The same with Lovász, which is not in the labels of these studies."""
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
    lines = [_labeled(line, "group" if results["study"] == "subset" else "label") for line in lines]
    for line in lines if study in ADE20K_TUNING_LOVASZ else ():
        line["settings"]["loss"] = "ce+lovasz"
    return lines


def _labeled(line: Line, key: str = "label") -> Line:
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
    return sorted(lines.values(), key=lambda line: -line["mean"])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, numbers right-aligned."""
    rule = "|---" + "|---:" * (len(head) - 1) + "|"
    first, *others = ("| " + " | ".join(row) + " |" for row in (head, *rows))
    return "\n".join([first, rule, *others])


def percent(line: Line) -> str:
    """mIoU in percent, with the standard deviation over seeds if there are several."""
    spread = f" ± {100 * line['spread']:.2f}" if line["spread"] is not None else ""
    return f"{100 * line['mean']:.2f}{spread}"


def grid(
    studies: Sequence[str],
    rows: dict[str, Callable[[dict[str, str]], bool]],
    head: str = "mIoU % on the held-out quarter",
) -> str:
    """Trials in rows, decoders in columns, the best of each in bold."""
    lines = [line for study in studies for line in lines_of(study)]
    columns = [name for name in NAMES.values() if any(line["decoder"] == name for line in lines)]
    best = {name: max(line["mean"] for line in lines if line["decoder"] == name) for name in columns}
    body = []
    for title, belongs in rows.items():
        cells = []
        for name in columns:
            found = [line for line in lines if line["decoder"] == name and belongs(line["settings"])]
            text = percent(found[0]) if found else "-"
            cells.append(f"**{text}**" if found and found[0]["mean"] == best[name] else text)
        body.append([title, *cells])
    return markdown([head, *columns], body)


def tuning() -> str:
    """The trials with a frozen encoder."""

    def trial(rate: str | None, gain: str, warmup: bool, step: bool = False) -> Callable[[dict[str, str]], bool]:
        def belongs(s: dict[str, str]) -> bool:
            settings = (s.get("decoder.logit_gain", "4"), "warmup" in s, "decoder.step_size" in s)
            return rate in (None, s["lr"]) and settings == (gain, warmup, step)

        return belongs

    rates = ("1e-3", "3e-3", "1e-2")
    rows = {f"rate {rate}, gain 4": trial(rate, "4", False) for rate in rates}
    rows |= {"best rate, gain 1": trial(None, "1", False)}
    rows |= {f"rate {rate}, gain 4, warm-up": trial(rate, "4", True) for rate in rates}
    rows |= {"best rate, gain 1, warm-up": trial(None, "1", True)}
    step = (trial(None, "4", True, True), trial(None, "4", False, True))
    rows |= {"best with gain 4, all step sizes 0.1": lambda s: any(one(s) for one in step)}
    return grid(["tuning_baselines", "tuning_depict"], rows)


def union() -> str:
    """Exact steps and class subspaces on the patches, next to the best trials of the other decoders."""
    lines = lines_of("tuning_union")
    labels = {
        ("linear", "subspaces"): "class subspaces, no steps",
        ("depict_us", "linear"): "two exact steps, then linear",
        ("depict_us", "subspaces"): "**DEPICT-US**: two exact steps, then class subspaces",
    }
    body = []
    for kind, label in labels.items():
        own = [
            line
            for line in lines
            if (line["label"].split(",")[0], line["settings"].get("decoder.head", "subspaces")) == kind
        ]
        body.append(_best_trial(label, own))
    others = [line for study in ("tuning_baselines", "tuning_depict") for line in lines_of(study)]
    body += [_best_trial(name, [line for line in others if line["decoder"] == name]) for name in NAMES.values()]
    return markdown(["mIoU % on the held-out quarter", "best trial", "trials", "parameters", "GFLOPs"], body)


def union_seeds() -> str:
    """Exact steps and class subspaces on the validation images, next to the four decoders of the frozen study."""
    lines = merged(("frozen", "frozen_union"))
    body = [
        [
            _name(line),
            percent(line),
            ", ".join(f"{100 * miou:.2f}" for miou in line["miou"]),
            f"{line['parameters'] / 1e6:.3f} M",
            f"{line['multiply_adds'] / 1e9:.3f}",
        ]
        for line in lines
    ]
    return markdown(["decoder", "mIoU %", "each seed", "parameters", "GFLOPs"], body)


def _name(line: Line) -> str:
    """A decoder's name, with its head if it is not its own."""
    head = line["settings"].get("decoder.head")
    return NEWER.get(line["decoder"], line["decoder"]) + (f", head {head}" if head else "")


def _best_trial(label: str, lines: Sequence[Line]) -> list[str]:
    best = max(lines, key=lambda line: line["mean"])
    sizes = [f"{best['parameters'] / 1e6:.3f} M", f"{best['multiply_adds'] / 1e9:.3f}"]
    return [label, percent(best), str(len(lines)), *sizes]


def start() -> str:
    """Classes started at random and from the data, with all and with few training images."""
    studies = {"46 images": lines_of("start_46"), "275 images": lines_of("start_275")}
    body = []
    for decoder in ("linear", "depict_us"):
        for how, title in (("random", "random"), ("data", "from the data")):
            cells = []
            for lines in studies.values():
                own = [line for line in lines if line["label"].startswith(f"{decoder},")]
                own = [line for line in own if line["settings"].get("start", "random") == how]
                best = max(own, key=lambda line: line["mean"])
                cells.append(f"{percent(best)} (rate {best['settings']['lr']})")
            body.append([NEWER.get(decoder, decoder), title, *cells])
    return markdown(["decoder", "start", *studies], body)


def strides(*studies: str) -> str:
    """Decoders on the levels of EfficientNet-Lite0, the best first."""
    return _strides(merged(studies))


def masks() -> str:
    """Mask classification on the levels of EfficientNet-Lite0, next to decoders with one mask per class; seed 0."""
    others = merged(("strides", "decoders", "rest"))
    shown = [line for line in others if line["settings"].get("stride") == "16"]
    shown += [line for line in others if line["label"] in ("linear,stride=4", "linear,stride=8")]
    lines = [*merged(("masks", "maskformer", "maskformer_rest")), *shown]
    return _strides(sorted(lines, key=lambda line: -line["mean"]))


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
    operator, *more = _full_name(line).split(", ")[1:] or ["softmax"]
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
            _full_name(line),
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
            f"{_full_name(line)}, stride {line['settings'].get('stride', 4)}",
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
            _full_name(line := _labeled({"label": label})),
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


def init() -> str:
    """DEPICT-US on CamVid, started from ImageNet weights and from the shipped model."""
    few = {(line["settings"]["lr"], "init" in line["settings"]): line for line in lines_of("init_46")}
    body = [
        [f"46 images, learning rate {rate}", *(percent(few[rate, init]) for init in (False, True))]
        for rate in ("1e-3", "3e-3")
    ]
    [without] = [line for line in lines_of("strides") if line["label"] == "depict_us,stride=8"]
    [started] = lines_of("init")
    body.append(["all 367 images, learning rate 3e-3", percent(without), percent(started)])
    return markdown(["mIoU %", "from ImageNet weights", "`--init depict-ade20k`"], body)


def ade20k_heads() -> str:
    """Decoders in rows, their heads in columns: the best trial of each with cross-entropy."""
    rows = {
        "no steps": ("linear", "linear", None),
        "two exact steps on the patches": ("depict_us", "subspaces", None),
        "exact DEPICT-SA": ("DEPICT-SA", "cosine", "exact"),
        "exact DEPICT-CA": ("DEPICT-CA", "cosine", "exact"),
        "Segmenter": ("Segmenter", "cosine", None),
    }
    lines = [line for line in merged(ADE20K_TUNING) if not {"loss", "start"} & line["settings"].keys()]
    body = []
    for title, (decoder, own, operator) in rows.items():
        found = [
            line for line in lines if (line["decoder"], line["settings"].get("decoder.operator")) == (decoder, operator)
        ]
        cells = []
        for head in ("cosine", "linear", "subspaces"):
            best = next((line for line in found if line["settings"].get("decoder.head", own) == head), None)
            cells.append(percent(best) if best else "-")
        body.append([title, *cells])
    return markdown(["mIoU %", "cosine", "linear", "subspaces"], body)


def _full_name(line: Line) -> str:
    """A decoder's name with the settings in which it differs from the others of its study."""
    settings = line["settings"]
    parts = [_name(line), settings.get("decoder.operator")]
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


def ade20k(*studies: str) -> str:
    """Decoders on the tokens of a frozen ViT-T, the best first."""
    head = ["decoder", "mIoU %", "pixels %", "boundary IoU %", "parameters", "GFLOPs"]
    body = [
        [
            _full_name(line)
            + (f", gain {gain}" if (gain := line["settings"].get("decoder.logit_gain")) else "")
            + (f", stride {stride}" if (stride := line["settings"].get("stride")) else ""),
            percent(line),
            f"{100 * line['pixel_accuracy']:.2f}",
            f"{100 * line['boundary_iou']:.2f}",
            f"{line['parameters'] / 1e6:.3f} M",
            f"{line['multiply_adds'] / 1e9:.3f}",
        ]
        for line in merged(studies)
    ]
    return markdown(head, body)


def ade20k_epochs() -> str:
    """mIoU of decoders on the tokens of a frozen ViT-T over the number of epochs."""
    short = {line["label"]: line for line in merged(ADE20K_LONG)}
    body = [[_name(line), percent(short[line["label"]]), percent(line)] for line in merged(("ade20k_converged",))]
    return markdown(["mIoU %", "16 epochs", "32 epochs"], body)


def ade20k_sizes() -> str:
    """mIoU of decoders on the tokens of a frozen ViT-T over the number of training images."""
    less = ("ade20k_less", "ade20k_less_segmenter", "ade20k_less_segmenter_316")
    lines = [line for studies in (less, ADE20K_LONG, ("ade20k_all",)) for line in merged(studies)]
    found: dict[tuple[str, int], Line] = {}
    for line in lines:  # of several trials the best comes first
        found.setdefault((_name(line), int(line["settings"].get("data.limit", line["images"]))), line)
    names, sizes = (list(dict.fromkeys(values)) for values in zip(*found, strict=True))
    body = [
        [name, *(percent(line) if (line := found.get((name, size))) else "-" for size in sorted(sizes))]
        for name in names
        if sum(one == name for one, _ in found) > 1
    ]
    return markdown(["mIoU %", *(f"{size:,} images" for size in sorted(sizes))], body)


def ade20k_finetuned() -> str:
    """Decoders fine-tuned with the encoder, next to the frozen runs that they start from, the best first."""

    def name(line: Line) -> str:
        return ", ".join(part for part in (_name(line), line["settings"].get("decoder.operator")) if part)

    frozen = {name(line): line for line in merged(ADE20K_LONG)}
    body = [
        [
            name(line),
            f"{100 * frozen[name(line)]['mean']:.2f}",
            percent(line),
            f"{100 * line['pixel_accuracy']:.2f}",
            f"{100 * line['boundary_iou']:.2f}",
        ]
        for line in merged(("ade20k_finetuned", "ade20k_finetuned_ca"))
    ]
    return markdown(["decoder", "frozen mIoU %", "fine-tuned mIoU %", "pixels %", "boundary IoU %"], body)


def own_images() -> str:
    """Rates and gains on other pictures."""

    def trial(rate: str, gain: str) -> Callable[[dict[str, str]], bool]:
        return lambda s: (s["lr"], s.get("decoder.logit_gain", "4")) == (rate, gain)

    rows = {
        f"rate {rate}, gain {gain}": trial(rate, gain) for rate, gain in (("1e-3", "4"), ("3e-3", "4"), ("3e-3", "1"))
    }
    return grid(["own_images"], rows | {"rate 1e-2": trial("1e-2", "4")}, "mIoU %, 12 generated landscapes")


def augmentation() -> str:
    """Augmentation of cached features, and epochs."""
    titles = {
        "no flip, no crop": {"data.flip": "false"},
        "flip": {},
        "flip, 3/4 crops": {"cache_crop": "0.75"},
        "flip, 1/2 crops": {"cache_crop": "0.5"},
        "no cache: scale, crop, flip, color jitter": {"cache_features": "false"},
        "flip, 20 epochs": {"epochs": "20"},
        "flip, 1/2 crops, 20 epochs": {"epochs": "20", "cache_crop": "0.5"},
        "flip, 1/2 crops, 60 epochs": {"epochs": "60", "cache_crop": "0.5"},
    }
    keys = {key for wanted in titles.values() for key in wanted}

    def trial(wanted: dict[str, str]) -> Callable[[dict[str, str]], bool]:
        return lambda s: {key: s[key] for key in keys & s.keys()} == wanted

    studies = ["augmentation_baselines", "augmentation_depict", "longer"]
    return grid(studies, {title: trial(wanted) for title, wanted in titles.items()})


def tuning_finetuned() -> str:
    """The trials with a trained encoder."""
    pairs = (("2e-4", "1"), ("1e-3", "0.75"), ("3e-3", "0.65"))

    def trial(rate: str, decay: str) -> Callable[[dict[str, str]], bool]:
        return lambda s: (s["lr"], s.get("layer_decay", "1"), s.get("decoder.logit_gain", "4")) == (rate, decay, "4")

    rows = {f"rate {rate}, layer decay {decay}, gain 4": trial(rate, decay) for rate, decay in pairs}
    rows["best of these, gain 1"] = lambda s: s.get("decoder.logit_gain") == "1"
    return grid(["tuning_finetuned"], rows)


def decoders(study: str, speed: str) -> str:
    """One row per decoder: quality, size, cost. Times come from the study `speed`, run on an idle machine."""
    head = ["decoder", "mIoU %", "each seed", "multi-scale", "parameters", "GFLOPs", "training", "images/s"]
    order = list(NAMES.values())
    idle = {line["decoder"]: line["images_per_second"] for line in lines_of(speed)}
    body = [
        [
            line["decoder"],
            percent(line),
            ", ".join(f"{100 * miou:.2f}" for miou in line["miou"]),
            f"{100 * line['multiscale']:.2f}" if line["multiscale"] else "-",
            f"{line['parameters'] / 1e6:.3f} M",
            f"{line['multiply_adds'] / 1e9:.3f}",
            f"{line['images'] * line['training']['epochs'] / idle[line['decoder']] / 60:.1f} min",
            f"{idle[line['decoder']]:.1f}",
        ]
        for line in sorted(lines_of(study), key=lambda line: order.index(line["decoder"]))
    ]
    return markdown(head, body)


def classes() -> str:
    """IoU of each class, of the best seed of every decoder, frozen and fine-tuned."""
    order = list(NAMES.values())
    lines = [
        (line["decoder"] + tuned, line["classes"])
        for study, tuned in (("frozen", ""), ("finetuned", ", fine-tuned"))
        for line in sorted(lines_of(study), key=lambda line: order.index(line["decoder"]))
    ]
    names = list(lines[0][1])
    body = [[name, *(f"{100 * found[name]:.1f}" for _, found in lines)] for name in names]
    body.append(["mean", *(f"{100 * np.mean(list(found.values())):.1f}" for _, found in lines)])
    return markdown(["IoU %", *(title for title, _ in lines)], body)


def less_data() -> str:
    """Decoders in rows, numbers of training images in columns."""
    lines = lines_of("less_data")
    counts = sorted({line["images"] for line in lines})
    body = []
    for name in dict.fromkeys(line["decoder"] for line in lines):
        cells = [next(percent(x) for x in lines if (x["decoder"], x["images"]) == (name, count)) for count in counts]
        body.append([name, *cells])
    return markdown(["mIoU %", *(f"{count} images" for count in counts)], body)


def ablation(group: str) -> str:
    """One of the two ablation tables."""
    head = [group, "mIoU %", "parameters", "GFLOPs", "training", "images/s"]
    body = [
        [
            line["label"],
            percent(line),
            f"{line['parameters'] / 1e6:.3f} M",
            f"{line['multiply_adds'] / 1e9:.3f}",
            f"{line['seconds'] / 60:.1f} min",
            f"{line['images_per_second']:.1f}",
        ]
        for line in lines_of("ablation")
        if line["group"] == group
    ]
    return markdown(head, body)


TABLES: dict[str, Callable[[], str]] = {
    "tuning": tuning,
    "tuning_finetuned": tuning_finetuned,
    "union": union,
    "union_seeds": union_seeds,
    "frozen": lambda: decoders("frozen", "speed_frozen"),
    "finetuned": lambda: decoders("finetuned", "speed_finetuned"),
    "classes": classes,
    "own_images": own_images,
    "augmentation": augmentation,
    "less_data": less_data,
    "mixtures": lambda: ablation("mixtures"),
    "heads": lambda: ablation("heads x head dimension"),
    "start": start,
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
    "init": init,
    "ade20k_frozen": lambda: ade20k("ade20k_frozen", "ade20k_attention", "ade20k_softmax", "ade20k_cbt"),
    "ade20k_long": lambda: ade20k(*ADE20K_LONG),
    "ade20k_epochs": ade20k_epochs,
    "ade20k_sizes": ade20k_sizes,
    "ade20k_finetuned": ade20k_finetuned,
    "ade20k_heads": ade20k_heads,
    "ade20k_tuning": lambda: ade20k(*ADE20K_TUNING, "ade20k_tuning_segmenter", *ADE20K_TUNING_LOVASZ),
}
"""The tables of the pages, each between `<!-- table: NAME -->` and `<!-- end -->`."""


def filled(text: str) -> str:
    """A page with all its tables rewritten."""
    block = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
    return block.sub(lambda found: f"<!-- table: {found[1]} -->\n\n{TABLES[found[1]]()}\n\n<!-- end -->", text)


def draw_labels(rows: dict[str, str], columns: int, picture: Path) -> None:
    """Draw strips of label maps: images in columns, decoders in rows."""
    from depict.data.camvid import CamVid

    row = 8.7 / columns
    height = row * len(rows) + 0.4
    figure = Figure(figsize=(11.4, height))
    for axes, (name, label) in zip(figure.subplots(len(rows), 1), rows.items(), strict=True):
        with Image.open(HERE / "labels" / f"{name}.png") as strip:
            axes.imshow(np.array(strip.convert("RGB")), interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_ylabel(label, fontsize=9)
        for column in range(1, columns):
            axes.axvline(480 * column, color="white", lw=2)
    pairs = zip(CamVid.classes, CamVid.palette, strict=True)
    patches = [Patch(color=np.array(color) / 255, label=name) for name, color in pairs]
    figure.legend(handles=patches, loc="lower center", ncols=len(patches), frameon=False, fontsize=8, handlelength=1)
    figure.subplots_adjust(left=0.04, right=0.995, top=0.99, bottom=0.4 / height, wspace=0.03, hspace=0.03)
    figure.savefig(picture, dpi=110, metadata={"Software": None})


def main() -> None:
    """Copy if requested, then rewrite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, metavar="RUNS")
    options = parser.parse_args()
    if options.take:
        take(options.take)
    draw_labels(LABEL_ROWS, 6, IMAGES / "camvid_labels.png")
    draw_labels(STRIDE_ROWS, 3, IMAGES / "strides.png")
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
