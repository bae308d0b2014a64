"""What a study found: its lines, as JSON, as a table and as a picture.

Needs of every cell config.yaml, metrics.jsonl and evaluation.json, and no weights or images.
"""

from __future__ import annotations

import functools
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from depict.config.paper import SUBSET, paper_rows
from depict.config.resolve import as_pair
from depict.config.schema import Config, EncoderConfig
from depict.costs import decoder_costs
from depict.decoders import decoder_options
from depict.errors import UserError
from depict.io.files import atomic_path, write_json
from depict.runs import read_metrics, read_run
from depict.studies.plan import EVALUATION, EVALUATION_MULTISCALE, START, Cell, Study, plan
from depict.viz.style import COLORS, MARKERS, figure_style, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Line = dict[str, Any]
# Okabe and Ito's colors, which color-blind readers tell apart; shapes differ as well.
TOLD = ("epochs", "batch", "optimizer", "lr")
"""Settings of the training that stand over the table."""
CLASS_COLUMNS = 6
"""Classes are compared for up to so many lines; of more lines, those of the best are told."""


def collect(study: Study, out: Path) -> list[Line]:
    """The lines of the tables, in order, from the cells that are finished; each over its seeds."""
    lines: dict[tuple[str, str], list[Cell]] = {}
    for cell in plan(study):
        seeds = lines.setdefault((cell.group, cell.label), [])
        if cell.finished(out):
            seeds.append(cell)
    return [_line(study, cells, out) for cells in lines.values() if cells]


def _line(study: Study, cells: list[Cell], out: Path) -> Line:
    folders = [cell.folder(out) for cell in cells]
    evaluations = [_read(folder / EVALUATION) for folder in folders]
    scores = [_score(evaluation) for evaluation in evaluations]
    best = max(range(len(cells)), key=scores.__getitem__)
    multiscale = folders[best] / EVALUATION_MULTISCALE
    last = [next((row["miou"] for row in reversed(read_metrics(f)) if "miou" in row), None) for f in folders]
    told = [value for value in last if value is not None]
    times = [training_time(folder, cell.images) for folder, cell in zip(folders, cells, strict=True)]
    seconds = sum(spent for spent, _, _ in times)
    config, classes = read_run(folders[best])
    parameters, multiply_adds = _costs(config, len(classes))
    return {
        "group": cells[0].group,
        "label": cells[0].label,
        "images": cells[0].images,
        "seeds": [cell.config.seed for cell in cells],
        "miou": scores,
        "mean": statistics.fmean(scores),
        "spread": statistics.stdev(scores) if len(scores) > 1 else None,
        "last_step": statistics.fmean(told) if told else None,
        "best": cells[best].name,
        "classes": {row["name"]: row["iou"] for row in evaluations[best]["classes"]},
        "multiscale": _score(_read(multiscale)) if multiscale.is_file() else None,
        "parameters": parameters,
        "multiply_adds": multiply_adds,
        "seconds": seconds / len(cells),
        "images_per_second": sum(seen for _, _, seen in times) / seconds if seconds else None,
        "training": {key: getattr(config.train, key) for key in TOLD},
        "paper": _printed(study, cells[0]),
    }


def best_line(lines: list[Line]) -> Line | None:
    """The line with the best cell of all."""
    return max(lines, key=lambda line: max(line["miou"]), default=None)


def training_time(folder: Path, images: int) -> tuple[float, int, int]:
    """Seconds, steps and images of a training on so many images, without its validations.

    Each step at the speed that metrics.jsonl tells; the last step of an epoch may be smaller than the others.
    """
    batch = int(read_run(folder)[0].train.batch or 1)
    seconds, steps, seen = 0.0, 0, 0
    for row in read_metrics(folder):
        if row.get("images_per_second"):
            epochs, rest = divmod(row["iteration"], -(-images // batch))
            before, seen, steps = seen, epochs * images + rest * batch, row["iteration"]
            seconds += (seen - before) / row["images_per_second"]
    return seconds, steps, seen


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"'{path}' is damaged or unreadable: remove it, and the study evaluates its cell again."
        ) from error


def _score(evaluation: dict[str, Any]) -> float:
    return evaluation["miou"] or 0.0


def _costs(config: Config, classes: int) -> tuple[int, int]:
    """Parameters and multiply-adds of the decoder for one window."""
    encoder, size = config.encoder, as_pair(config.image_size)
    dim, patch = _shape_of(encoder.name, size, encoder.patch_size, encoder.dim, encoder.depth)
    height, width = (-(-side // length) for side, length in zip(size, patch, strict=True))
    return decoder_costs(config.decoder.name, dim, classes, (height, width), **config.decoder.options())


@functools.cache
def _shape_of(name: str, size: tuple[int, int], *changes: int | None) -> tuple[int, tuple[int, int]]:
    """Dimension and patch of an encoder, of which nothing is computed."""
    from depict.encoder import Encoder

    with torch.device("meta"):
        encoder = Encoder(name, size, False, 0.0, *changes)
    return encoder.dim, encoder.patch_size


def _printed(study: Study, cell: Cell) -> str:
    """The paper's single-scale mIoU of this decoder on ADE20K, by backbone, where a row has it; '' elsewhere."""
    decoder = cell.config.decoder
    tables = {"mixtures": "Ablation, left", "heads x head dimension": "Ablation, right", "decoders": "Table 1"}
    if cell.group not in tables:
        return ""
    defaults = decoder_options(decoder.name)
    options = {name: value for name, value in decoder.options().items() if name not in START}
    found = {
        row.backbone: row.miou.split("/")[0]
        for row in paper_rows()
        if row.table.startswith(tables[cell.group])
        and row.decoder == decoder.name
        and defaults | row.options == defaults | options
    }
    return ", ".join(f"{miou} {backbone}" for backbone, miou in found.items())


def write_results(study: Study, out: Path) -> str:
    """Write results.json, results.md, results.png and results.svg; gives the table."""
    lines = collect(study, out)
    cells = {cell.name: cell.finished(out) for cell in plan(study)}
    missing = [name for name, finished in cells.items() if not finished]
    write_json(out / "results.json", {"study": study.name, "lines": lines, "missing": missing})
    text = table(study, lines, len(cells), len(missing))
    with atomic_path(out / "results.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    if lines:
        draw(study, lines, out)
    return text


def table(study: Study, lines: list[Line], planned: int, missing: int) -> str:
    """The results as Markdown."""
    settings, train = study.settings, study.settings.train
    encoder = f"{settings.encoder.name} ({_encoder_words(settings.encoder, train.cache_features)})"
    told = [", ".join(dict.fromkeys(f"{line['training'][key]}" for line in lines)) for key in TOLD]
    training = "; ".join(f"{key} {values}" for key, values in zip(TOLD, told, strict=True))
    parts = [
        f"# Study: {study.name}",
        f"Data {settings.data.name}, {study.images} training images; encoder {encoder}; {training}. "
        f"{planned - missing} of {planned} cells finished.",
    ]
    for group in dict.fromkeys(line["group"] for line in lines):
        rows = [line for line in lines if line["group"] == group]
        parts += [f"## {group[:1].upper() + group[1:]}" if study.name == "ablation" else f"## {group}"]
        parts += ["\n".join([*_header("images" if study.name == "subset" else "decoder"), *map(_row, rows)])]
    parts.append(
        "mIoU of the validation images, single-scale, of the best weights by validation: mean ± standard deviation "
        "over n seeds. Last step: mean mIoU of the last weights. Multi-scale: of the best seed. Parameters and GFLOPs "
        "(multiply-adds, one window) are the decoder's; training time is without validations."
    )
    if any(line["paper"] for line in lines):
        parts.append(
            "Paper: printed for ADE20K, fine-tuned at 512 pixels, not for the data and settings of this study."
        )
    if study.name == "subset":
        curves = (f"{name} " + ", ".join(f"{n}: {miou}" for n, miou in SUBSET[name].items()) for name in SUBSET)
        parts.append("Paper (ADE20K, ViT-S, other settings), mIoU by training images: " + "; ".join(curves) + ".")
    if (best := best_line(lines)) is not None:
        parts.append(_class_table(lines if len(lines) <= CLASS_COLUMNS else [best], study.name == "subset"))
    return "\n\n".join(parts) + "\n"


def _encoder_words(encoder: EncoderConfig, cached: bool) -> str:
    weights = "random weights" if encoder.pretrained is False else "pretrained"
    return weights + (", frozen" if encoder.freeze else ", fine-tuned") + (", cached features" if cached else "")


def _header(first: str) -> list[str]:
    names = ["n", "mIoU %", "last step %", "multi-scale %", "parameters", "GFLOPs", "training", "images/s", "paper"]
    return [f"| {first} | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]


def _row(line: Line) -> str:
    spread = "" if line["spread"] is None else f" ± {100 * line['spread']:.2f}"
    speed = line["images_per_second"]
    values = [
        line["label"],
        len(line["seeds"]),
        f"{100 * line['mean']:.2f}{spread}",
        _percent(line["last_step"]),
        _percent(line["multiscale"]),
        f"{line['parameters'] / 1e6:.3f} M",
        f"{line['multiply_adds'] / 1e9:.3f}",
        duration(line["seconds"]),
        f"{speed:.1f}" if speed else "-",
        line["paper"] or "-",
    ]
    return "| " + " | ".join(map(str, values)) + " |"


def _class_table(lines: list[Line], with_group: bool) -> str:
    names = [f"{line['group']} {line['label']}" if with_group else line["label"] for line in lines]
    rows = ["| IoU % of the best seed | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for name in lines[0]["classes"]:
        values = [_percent(line["classes"].get(name)) for line in lines]
        rows += [f"| {name} | " + " | ".join(values) + " |"]
    return "\n".join(rows)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def draw(study: Study, lines: list[Line], out: Path) -> None:
    """Write the picture as PNG and SVG: a curve over sizes, or a point for every line, with its spread and seeds."""
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(line["group"] for line in lines))
    settings = study.settings
    title = f"{settings.data.name}, {settings.encoder.name}{', frozen' if settings.encoder.freeze else ''}"
    with figure_style(font_size=9):
        if study.name == "subset":
            figure = Figure(figsize=(6, 4), layout="constrained")
            _curves(figure.subplots(), lines, groups)
        else:
            heights = [sum(line["group"] == group for line in lines) for group in groups]
            width = 4.5 + 0.075 * max(len(name) for name in _short([line["label"] for line in lines]))
            figure = Figure(figsize=(width, 1 + 0.5 * len(groups) + 0.3 * sum(heights)), layout="constrained")
            axes = figure.subplots(len(groups), 1, squeeze=False, sharex=True, height_ratios=[h + 1 for h in heights])
            for index, group in enumerate(groups):
                _points(axes[index, 0], [line for line in lines if line["group"] == group], COLORS[index])
                axes[index, 0].set_title(group if len(groups) > 1 else "", loc="left", fontsize=9)
            axes[-1, 0].set_xlabel("validation mIoU (%)")
        several = any(len(line["seeds"]) > 1 for line in lines)
        figure.suptitle(f"{title}\n{'mean ± standard deviation over seeds' if several else 'one seed'}", fontsize=10)
        save_figure(figure, out / "results")


def _short(texts: list[str]) -> list[str]:
    """Decoders by their names, and by the settings that tell those of one name apart."""
    parts = [text.split(",") for text in texts]
    common = {name: set.intersection(*(set(part) for part in parts if part[0] == name)) for name, *_ in parts}
    return [",".join([name, *(one for one in settings if one not in common[name])]) for name, *settings in parts]


def _points(axes: Axes, lines: list[Line], color: str) -> None:
    heights = range(len(lines))
    for height, line in zip(heights, lines, strict=True):
        scores = [100 * score for score in line["miou"]]
        axes.plot(scores, [height] * len(scores), "o", mfc="none", mec="#888888", ms=4, zorder=1)
        axes.errorbar(
            100 * line["mean"], height, xerr=100 * (line["spread"] or 0), fmt="D", color=color, capsize=3, ms=5
        )
    axes.set_yticks(heights, _short([line["label"] for line in lines]))
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)


def _curves(axes: Axes, lines: list[Line], groups: list[str]) -> None:
    for index, (group, name) in enumerate(zip(groups, _short(groups), strict=True)):
        rows = sorted((line for line in lines if line["group"] == group), key=lambda line: line["images"])
        aside = 1.012 ** (index - (len(groups) - 1) / 2)  # so that error bars do not cover each other
        axes.errorbar(
            [line["images"] * aside for line in rows],
            [100 * line["mean"] for line in rows],
            yerr=[100 * (line["spread"] or 0) for line in rows],
            color=COLORS[index % len(COLORS)],
            marker=MARKERS[index % len(MARKERS)],
            capsize=3,
            label=name,
        )
    sizes = sorted({line["images"] for line in lines})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axes.set_xlabel("training images")
    axes.set_ylabel("validation mIoU (%)")
    axes.grid(color="#dddddd")
    axes.legend()
