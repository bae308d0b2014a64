"""The scores, times and costs of a study's finished cells, one line per row of its tables.

Reads config.yaml, metrics.jsonl and evaluation.json of every cell; weights and images are not needed.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, TypedDict

import torch

from depict.config.paper import paper_rows
from depict.config.schema import Config
from depict.costs import parameters
from depict.decoders import decoder_options
from depict.errors import UserError
from depict.io.files import read_json
from depict.model import SegmentationModel
from depict.runs import read_metrics, read_run
from depict.studies.plan import EVALUATION, EVALUATION_MULTISCALE, INITIALIZATION, Cell, Study, plan

TRAINING_SETTINGS = ("epochs", "batch", "optimizer", "lr")
"""Settings of the training that a line records."""
PAPER_TABLES = {"mixtures": "Ablation, left", "heads x head dimension": "Ablation, right", "decoders": "Table 1"}
"""The paper's table that corresponds to each group of cells."""


class Line(TypedDict):
    """One row of a table: a decoder on a number of images, over its seeds. Written to results.json."""

    group: str
    label: str
    images: int
    seeds: list[int]
    miou: list[float]
    """Of each seed's best weights, in 0..1."""
    mean: float
    spread: float | None
    """Sample standard deviation over the seeds; None for one seed."""
    last_step: float | None
    """Mean mIoU of the last weights."""
    pixel_accuracy: float | None
    """Mean over the seeds of the share of pixels that are right."""
    boundary_iou: float | None
    """Mean over the seeds of the mean boundary IoU of the best weights."""
    best: str
    """The cell with the best seed."""
    classes: dict[str, float | None]
    """IoU of each class, best seed."""
    class_means: dict[str, float | None]
    """IoU of each class, mean over the seeds."""
    multiscale: float | None
    """mIoU at several scales, best seed."""
    parameters: int
    """Of neck and decoder."""
    multiply_adds: int
    seconds: float
    """Mean time of a training, without validations."""
    images_per_second: float | None
    training: dict[str, Any]
    paper: str
    """What the paper prints for this decoder on ADE20K."""


def collect(study: Study, out: Path) -> list[Line]:
    """The lines of the tables, in order, from the cells that are finished."""
    lines: dict[tuple[str, str], list[Cell]] = {}
    for cell in plan(study):
        seeds = lines.setdefault((cell.group, cell.label), [])
        if cell.finished(out):
            seeds.append(cell)
    return [_line(cells, out) for cells in lines.values() if cells]


def best_line(lines: list[Line]) -> Line | None:
    """The line with the best cell of all."""
    return max(lines, key=lambda line: max(line["miou"]), default=None)


def training_time(folder: Path, images: int) -> tuple[float, int, int]:
    """Seconds, steps and images seen in the training of a run on this many images, without its validations.

    metrics.jsonl has the speed of every few steps; the last step of an epoch may be smaller than the others.
    """
    batch = read_run(folder)[0].train.batch
    if batch is None:
        raise UserError(f"'{folder}/config.yaml' has no train.batch: it is not the configuration of a training.")
    seconds, steps, seen = 0.0, 0, 0
    for row in read_metrics(folder):
        if row.get("images_per_second"):
            epochs, rest = divmod(row["iteration"], -(-images // batch))
            before, seen, steps = seen, epochs * images + rest * batch, row["iteration"]
            seconds += (seen - before) / row["images_per_second"]
    return seconds, steps, seen


def _line(cells: list[Cell], out: Path) -> Line:
    """The line of a decoder's cells, one per seed."""
    folders = [cell.folder(out) for cell in cells]
    evaluations = [_read(folder / EVALUATION) for folder in folders]
    scores = [_score(evaluation) for evaluation in evaluations]
    best = max(range(len(cells)), key=scores.__getitem__)
    multiscale = folders[best] / EVALUATION_MULTISCALE
    last_scores = [_last_score(folder) for folder in folders]
    times = [training_time(folder, cell.images) for folder, cell in zip(folders, cells, strict=True)]
    seconds = sum(spent for spent, _, _ in times)
    iou = [{row["name"]: row["iou"] for row in evaluation["classes"]} for evaluation in evaluations]
    config, classes = read_run(folders[best])
    size, multiply_adds = _costs(config, len(classes))
    return {
        "group": cells[0].group,
        "label": cells[0].label,
        "images": cells[0].images,
        "seeds": [cell.config.seed for cell in cells],
        "miou": scores,
        "mean": statistics.fmean(scores),
        "spread": statistics.stdev(scores) if len(scores) > 1 else None,
        "last_step": _mean(last_scores),
        "pixel_accuracy": _mean([evaluation["aacc"] for evaluation in evaluations]),
        "boundary_iou": _mean([evaluation["boundary_iou"] for evaluation in evaluations]),
        "best": cells[best].name,
        "classes": iou[best],
        "class_means": {name: _mean([seed[name] for seed in iou]) for name in iou[best]},
        "multiscale": _score(_read(multiscale)) if multiscale.is_file() else None,
        "parameters": size,
        "multiply_adds": multiply_adds,
        "seconds": seconds / len(cells),
        "images_per_second": sum(seen for _, _, seen in times) / seconds if seconds else None,
        "training": {key: getattr(config.train, key) for key in TRAINING_SETTINGS},
        "paper": paper_miou(cells[0]),
    }


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, "remove it, and the study evaluates its cell again")


def _score(evaluation: dict[str, Any]) -> float:
    return evaluation["miou"] or 0.0  # null without a labeled pixel


def _mean(values: list[float | None]) -> float | None:
    """Of the values that are defined; None if there is none."""
    defined = [value for value in values if value is not None]
    return statistics.fmean(defined) if defined else None


def _last_score(folder: Path) -> float | None:
    """mIoU of a run's last validation, if there was one."""
    return next((row["miou"] for row in reversed(read_metrics(folder)) if "miou" in row), None)


def _costs(config: Config, classes: int) -> tuple[int, int]:
    """Parameters and multiply-adds of neck and decoder for one window, without computing anything."""
    config.encoder.pretrained = False
    with torch.device("meta"):
        model = SegmentationModel(config, [f"class {index}" for index in range(classes)])
    parts = [part for part in (model.decoder, model.neck, model.stem) if part is not None]
    return sum(map(parameters, parts)), model.head_multiply_adds(model.image_size)


def paper_miou(cell: Cell) -> str:
    """The paper's single-scale mIoU of this decoder on ADE20K, by backbone; '' where it prints none."""
    if cell.group not in PAPER_TABLES:
        return ""
    decoder = cell.config.decoder
    defaults = decoder_options(decoder.name)
    options = {name: value for name, value in decoder.options().items() if name not in INITIALIZATION}
    printed = {
        row.backbone: row.miou.split("/")[0]
        for row in paper_rows()
        if row.table.startswith(PAPER_TABLES[cell.group])
        and row.decoder == decoder.name
        and defaults | row.options == defaults | options
    }
    return ", ".join(f"{miou} {backbone}" for backbone, miou in printed.items())
