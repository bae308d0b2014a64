"""Tables of docs/results.md: five decoders on CamVid, with a frozen and a fine-tuned ViT-T."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kept import NAMES, NEWER, Line, lines_of, markdown, merged, minutes, percent, short_name


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


def tuning_finetuned() -> str:
    """The trials with a trained encoder."""
    pairs = (("2e-4", "1"), ("1e-3", "0.75"), ("3e-3", "0.65"))

    def trial(rate: str, decay: str) -> Callable[[dict[str, str]], bool]:
        return lambda s: (s["lr"], s.get("layer_decay", "1"), s.get("decoder.logit_gain", "4")) == (rate, decay, "4")

    rows = {f"rate {rate}, layer decay {decay}, gain 4": trial(rate, decay) for rate, decay in pairs}
    rows["best of these, gain 1"] = lambda s: s.get("decoder.logit_gain") == "1"
    return grid(["tuning_finetuned"], rows)


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
            short_name(line),
            percent(line),
            ", ".join(f"{100 * miou:.2f}" for miou in line["miou"]),
            f"{line['parameters'] / 1e6:.3f} M",
            f"{line['multiply_adds'] / 1e9:.3f}",
        ]
        for line in lines
    ]
    return markdown(["decoder", "mIoU %", "each seed", "parameters", "GFLOPs"], body)


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
            f"{minutes(line, idle[line['decoder']]):.1f} min",
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
}
