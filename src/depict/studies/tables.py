"""The results of a study as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

from depict.config.paper import SUBSET
from depict.config.schema import EncoderConfig
from depict.studies.collect import TRAINING_SETTINGS, Line, best_line
from depict.studies.plan import Study

COLUMNS = (
    *("n", "mIoU %", "pixels %", "boundary IoU %", "last step %", "multi-scale %", "parameters", "GFLOPs"),
    *("training", "images/s", "paper"),
)
MAX_CLASS_COLUMNS = 6
"""The IoU of each class is shown for all lines up to this many; beyond, for the best line only."""
EXPLANATION = (
    "mIoU of the validation images, single-scale, of the best weights by validation: mean ± standard deviation "
    "over n seeds. Pixels: the share that is labeled right. Last step: mean mIoU of the last weights. Multi-scale: of "
    "the best seed. Parameters and GFLOPs (multiply-adds, one window) are those of neck and decoder; training time is "
    "without validations."
)
PAPER_EXPLANATION = "Paper: printed for ADE20K, fine-tuned at 512 pixels, not for the data and settings of this study."


def results_text(study: Study, lines: list[Line], planned: int, missing: int) -> str:
    """The content of results.md; of `planned` cells, `missing` are not finished."""
    settings = study.settings
    encoder = f"{settings.encoder.name} ({_encoder_text(settings.encoder, settings.train.cache_features)})"
    parts = [
        f"# Study: {study.name}",
        f"Data {settings.data.name}, {study.images} training images; encoder {encoder}; {_training_text(lines)}. "
        f"{planned - missing} of {planned} cells finished.",
    ]
    for group in dict.fromkeys(line["group"] for line in lines):
        parts.append(f"## {group[:1].upper() + group[1:]}" if study.name == "ablation" else f"## {group}")
        head = ["images" if study.name == "subset" else "decoder", *COLUMNS]
        parts.append(markdown_table(head, [_cells(line) for line in lines if line["group"] == group]))
    parts.append(EXPLANATION)
    if any(line["paper"] for line in lines):
        parts.append(PAPER_EXPLANATION)
    if study.name == "subset":
        curves = (f"{name} " + ", ".join(f"{n}: {miou}" for n, miou in SUBSET[name].items()) for name in SUBSET)
        parts.append("Paper (ADE20K, ViT-S, other settings), mIoU by training images: " + "; ".join(curves) + ".")
    if (best := best_line(lines)) is not None:
        shown = lines if len(lines) <= MAX_CLASS_COLUMNS else [best]
        parts.append(_class_table(shown, with_group=study.name == "subset"))
    return "\n\n".join(parts) + "\n"


def duration(seconds: float) -> str:
    """A time as text, in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _encoder_text(encoder: EncoderConfig, cached: bool) -> str:
    weights = "random weights" if encoder.pretrained is False else "pretrained"
    return weights + (", frozen" if encoder.freeze else ", fine-tuned") + (", cached features" if cached else "")


def _training_text(lines: list[Line]) -> str:
    """The settings of all lines: `epochs 20; batch 8; optimizer adamw; lr 0.001, 0.003`."""
    values = {key: dict.fromkeys(f"{line['training'][key]}" for line in lines) for key in TRAINING_SETTINGS}
    return "; ".join(f"{key} {', '.join(different)}" for key, different in values.items())


def _cells(line: Line) -> list[str]:
    """The cells of a line in the main table."""
    speed = line["images_per_second"]
    return [
        line["label"],
        f"{len(line['seeds'])}",
        mean_and_spread(line["mean"], line["spread"]),
        _percent(line["pixel_accuracy"]),
        _percent(line["boundary_iou"]),
        _percent(line["last_step"]),
        _percent(line["multiscale"]),
        f"{line['parameters'] / 1e6:.3f} M",
        f"{line['multiply_adds'] / 1e9:.3f}",
        duration(line["seconds"]),
        f"{speed:.1f}" if speed else "-",
        line["paper"] or "-",
    ]


def _class_table(lines: list[Line], with_group: bool) -> str:
    names = [f"{line['group']} {line['label']}" if with_group else line["label"] for line in lines]
    rows = [[name, *(_percent(line["classes"].get(name)) for line in lines)] for name in lines[0]["classes"]]
    return markdown_table(["IoU % of the best seed", *names], rows)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def mean_and_spread(mean: float, spread: float | None) -> str:
    """A score over seeds in percent: `51.43 ± 1.40`, or the mean alone for one seed."""
    return _percent(mean) + ("" if spread is None else f" ± {100 * spread:.2f}")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, all columns but the first right-aligned."""
    first, *others = ("| " + " | ".join(cells) + " |" for cells in (head, *rows))
    return "\n".join([first, "|---|" + "---:|" * (len(head) - 1), *others])
