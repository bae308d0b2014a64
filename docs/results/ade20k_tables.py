"""Tables of docs/ade20k.md and shipped-model.md: decoders on ViT-T; CamVid from the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from depict.config.paper import paper_rows
from kept import Line, by_score, full_name, lines_of, markdown, merged, minutes, percent, short_name

ADE20K_LONG = ("ade20k_long", "ade20k_seeds", "ade20k_long_attention", "ade20k_segmenter")
ADE20K_LONG += ("ade20k_long_softmax", "ade20k_seeds_ca", "ade20k_seeds_ca_2", "ade20k_long_cbt", "ade20k_long_parts")
"""Studies of 16 epochs on a quarter of ADE20K, some of whose runs were fine-tuned later."""
ADE20K_LATER = ("ade20k_long_ca_vit_t",)
"""The same, of runs that were not."""
ADE20K_CONVERGED = ("ade20k_converged", "ade20k_converged_ca")
"""Studies of 32 epochs."""
ADE20K_FINETUNED = ("ade20k_finetuned", "ade20k_finetuned_ca")
ADE20K_TUNING = ("ade20k_tuning", "ade20k_tuning_attention", "ade20k_heads", "ade20k_prior")
"""Studies of two epochs on held-out images of ADE20K, with cross-entropy alone but for a few trials."""
ADE20K_TUNING_LOVASZ = ("ade20k_tuning_softmax", "ade20k_tuning_rates", "ade20k_tuning_stride")
"""The same with Lovász, which is not in the labels of these studies."""


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


def ade20k(lines: Sequence[Line], speed: str | None = None) -> str:
    """Decoders on the tokens of a frozen ViT-T; with times if the study `speed` measured them on an idle machine."""
    head = ["decoder", "mIoU %", "pixels %", "boundary IoU %", "parameters", "GFLOPs", *(["training"] if speed else [])]
    idle = {_kind(line): line["images_per_second"] for line in lines_of(speed)} if speed else {}
    body = [
        [
            full_name(line)
            + (f", gain {gain}" if (gain := line["settings"].get("decoder.logit_gain")) else "")
            + (f", stride {stride}" if (stride := line["settings"].get("stride")) else ""),
            percent(line),
            f"{100 * line['pixel_accuracy']:.2f}",
            f"{100 * line['boundary_iou']:.2f}",
            f"{line['parameters'] / 1e6:.3f} M",
            f"{line['multiply_adds'] / 1e9:.3f}",
            *([f"{minutes(line, idle[_kind(line)]):.0f} min"] if speed else []),
        ]
        for line in lines
    ]
    return markdown(head, body)


def ade20k_tuning() -> str:
    """All trials on held-out images."""
    lovasz = merged(ADE20K_TUNING_LOVASZ)
    for line in lovasz:
        line["settings"]["loss"] = "ce+lovasz"
    return ade20k(by_score([*merged((*ADE20K_TUNING, "ade20k_tuning_segmenter")), *lovasz]))


def _kind(line: Line) -> tuple[str | None, ...]:
    """What a decoder's speed depends on."""
    settings = ("decoder.operator", "decoder.head", "decoder.head_dim")
    return line["decoder"], *(line["settings"].get(name) for name in settings)


def ade20k_epochs() -> str:
    """mIoU of decoders on the tokens of a frozen ViT-T over the number of epochs."""
    short = {line["label"]: line for line in merged(ADE20K_LONG)}
    body = [[short_name(line), percent(short[line["label"]]), percent(line)] for line in merged(ADE20K_CONVERGED)]
    return markdown(["mIoU %", "16 epochs", "32 epochs"], body)


def ade20k_sizes() -> str:
    """mIoU of decoders on the tokens of a frozen ViT-T over the number of training images."""
    less = ("ade20k_less", "ade20k_less_segmenter", "ade20k_less_segmenter_316", "ade20k_less_ca")
    lines = [line for studies in (less, ADE20K_LONG, ("ade20k_all",)) for line in merged(studies)]
    found: dict[tuple[str, int], Line] = {}
    for line in lines:  # of several trials the best comes first
        found.setdefault((short_name(line), int(line["settings"].get("data.limit", line["images"]))), line)
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
        return ", ".join(part for part in (short_name(line), line["settings"].get("decoder.operator")) if part)

    frozen = {name(line): line for line in merged(ADE20K_LONG)}
    body = [
        [
            name(line),
            f"{100 * frozen[name(line)]['mean']:.2f}",
            percent(line),
            f"{100 * line['pixel_accuracy']:.2f}",
            f"{100 * line['boundary_iou']:.2f}",
        ]
        for line in merged(ADE20K_FINETUNED)
    ]
    return markdown(["decoder", "frozen mIoU %", "fine-tuned mIoU %", "pixels %", "boundary IoU %"], body)


def ade20k_paper() -> str:
    """What the paper prints for decoders on ViT-T, next to the same decoders here."""
    printed = {row.label: row for row in paper_rows() if row.config.endswith("_vit_t")}
    frozen = {full_name(line).split(", rate")[0]: line for line in merged((*ADE20K_LONG, *ADE20K_LATER))}
    tuned = {short_name(line): line for line in merged(ADE20K_FINETUNED) if "decoder.operator" not in line["settings"]}
    rows = {
        "DEPICT-SA": "DEPICT-SA",
        "DEPICT-CA": "DEPICT-CA, 50 dimensions per head",
        "CBT": "CBT",
        "Segmenter": "Segmenter",
    }
    head = ["decoder", "paper: mIoU %", "here, frozen", "here, fine-tuned", "paper: parameters", "here"]
    body = [
        [
            name,
            (row := printed[name]).miou.split("/")[0],
            percent(line := frozen[ours]),
            percent(tuned[ours]) if ours in tuned else "-",
            f"{row.parameters} M" if row.parameters else "-",
            f"{line['parameters'] / 1e6:.3f} M",
            row.flops or "-",
            f"{line['multiply_adds'] / 1e9:.3f}",
        ]
        for name, ours in rows.items()
    ]
    return markdown([*head, "paper: GFLOPs at 512 pixels", "here, at 384"], body)


TABLES: dict[str, Callable[[], str]] = {
    "init": init,
    "ade20k_frozen": lambda: ade20k(merged(("ade20k_frozen", "ade20k_attention", "ade20k_softmax", "ade20k_cbt"))),
    "ade20k_long": lambda: ade20k(merged((*ADE20K_LONG, *ADE20K_LATER)), speed="ade20k_speed"),
    "ade20k_paper": ade20k_paper,
    "ade20k_epochs": ade20k_epochs,
    "ade20k_sizes": ade20k_sizes,
    "ade20k_finetuned": ade20k_finetuned,
    "ade20k_heads": ade20k_heads,
    "ade20k_tuning": ade20k_tuning,
}
