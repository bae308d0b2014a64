"""Filling a study: every missing cell trained and evaluated in turn, or the time that it would take."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from depict.config.resolve import resolve
from depict.config.schema import Config
from depict.data.dataset import Dataset, random_subset
from depict.data.loading import Schedule
from depict.errors import UserError
from depict.evaluation import Result, evaluate, sliding_window_for
from depict.io.files import write_json
from depict.io.yaml import to_dict, write_yaml
from depict.model import SegmentationModel
from depict.runs import load, lock_run, read_metrics
from depict.studies.plan import EVALUATION, EVALUATION_MULTISCALE, FILE, Cell, Study, plan
from depict.studies.results import best_line, collect, training_time, write_results
from depict.training.loop import train
from depict.training.losses import cross_entropy
from depict.training.optim import create_optimizer

TRIED_STEPS = 3
TRIED_IMAGES = 2


def run(study: Study, out: Path, multiscale: bool = False) -> None:
    """Train and evaluate what is missing, one cell after the other; the results are written anew after each.

    `multiscale` evaluates the best cell at several scales, too.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("a study runs in one process: start it without torchrun or accelerate launch.")
    cells = distinct(study)
    for cell in cells:
        resolve(cell.config)  # a mistake in the last cell is told before the first is trained
    with lock_run(out):
        write_yaml(out / FILE, to_dict(study))
        for number, cell in enumerate(cells, 1):
            if not cell.finished(out):
                print(f"cell {number} of {len(cells)}: {cell.name}", file=sys.stderr)
                result = train(cell.config, cell.folder(out))
                _evaluate(cell, out, EVALUATION, result)
                write_results(study, out)
        if multiscale and (best := best_line(collect(study, out))):
            cell = next(cell for cell in cells if cell.name == best["best"])
            if not (cell.folder(out) / EVALUATION_MULTISCALE).exists():
                _evaluate(cell, out, EVALUATION_MULTISCALE)
        write_results(study, out)


def distinct(study: Study) -> list[Cell]:
    """The cells to train: what two tables share once."""
    return list({cell.name: cell for cell in plan(study)}.values())


def _evaluate(cell: Cell, out: Path, name: str, last: Result | None = None) -> None:
    """Evaluate the kept model of a cell on the validation images; written last, this marks the cell as finished.

    `last` is the validation of the last step: where that was the best one, it was the kept model's.
    """
    folder = cell.folder(out)
    validation = resolve(cell.config)[2]
    model = load(folder).to(_device(cell.config))
    sliding = sliding_window_for(model, validation, multiscale=name == EVALUATION_MULTISCALE)
    scores = [line["miou"] for line in read_metrics(folder) if "miou" in line]
    if last is None or scores.index(max(scores)) < len(scores) - 1:
        last = evaluate(model.predictor(sliding), validation, progress=True)
    about = {
        "data": validation.name,
        "split": validation.split,
        "protocol": dataclasses.asdict(sliding),
        "processes": 1,
    }
    write_json(folder / name, about | last.to_dict())


def _device(config: Config) -> str:
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return config.train.device or best


def alike(cell: Cell) -> tuple[object, ...]:
    """What cells have in common whose steps take the same time."""
    return cell.config.encoder, cell.config.decoder, cell.config.train.batch


@dataclass(frozen=True)
class Planned:
    """What a cell would take."""

    cell: Cell
    epochs: int
    steps: int
    left: int
    """Steps that are not trained yet."""
    seconds: float
    """For those and the evaluations to come, about."""


def forecast(study: Study, out: Path) -> list[Planned]:
    """Every cell with its steps and the time that it would take on this machine, about.

    The time of a step is that of a finished cell of the same decoder, else of a few steps on random images; the time
    of an evaluated image is tried. Waiting for images to be read, and filling a cache of features, come on top.
    """
    planned: list[Planned] = []
    tried: dict[str, tuple[float, float]] = {}
    cells = distinct(study)
    for cell in cells:
        config, training, validation = resolve(cell.config)
        settings = config.train
        epochs, every = int(settings.epochs or 1), int(settings.validate_every or 1)
        steps = len(Schedule(len(training), int(settings.batch or 1), epochs))
        left = steps - max((line["iteration"] for line in read_metrics(cell.folder(out))), default=0)
        seconds = 0.0
        if not cell.finished(out):
            kind = repr((config.decoder, config.encoder, settings))
            if kind not in tried:
                tried[kind] = _try(config, validation)
            step, image = tried[kind]
            for peer in cells:
                if peer.finished(out) and alike(peer) == alike(cell):
                    spent, done, _ = training_time(peer.folder(out), peer.images)
                    step = spent / max(1, done)
            validations = len({*range(every, epochs + 1, every), epochs})
            evaluations = validations * left / steps + (validations > 1)  # and of the best, if it was not the last
            seconds = left * step + evaluations * len(validation) * image
        planned.append(Planned(cell, epochs, steps, left, seconds))
    return planned


def _try(config: Config, validation: Dataset) -> tuple[float, float]:
    """Seconds of a training step and of an evaluated image, by doing a few of each with random weights."""
    bare = dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, pretrained=False))
    model = SegmentationModel(bare, validation.classes).to(_device(config)).train()
    batch = int(config.train.batch or 1)
    images = torch.randn(batch, 3, *model.image_size, device=model.device)
    labels = torch.randint(model.num_classes, (batch, *model.image_size), device=model.device, dtype=torch.uint8)
    optimizer = create_optimizer(model, config.train, 1e-6)
    features = model.tokens(images) if config.train.cache_features else None
    times = []
    for _ in range(1 + TRIED_STEPS):  # the first warms up
        start = time.perf_counter()
        masks = model.decoder(*features) if features else model.masks(images)
        summed, pixels = cross_entropy(masks, labels, model.patch_size)
        optimizer.zero_grad()
        (summed / pixels).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    some = random_subset(validation, min(TRIED_IMAGES, len(validation)), 0)
    predictor = model.predictor(sliding_window_for(model, validation))
    evaluate(predictor, some)
    start = time.perf_counter()
    evaluate(predictor, some)
    return min(times[1:]), (time.perf_counter() - start) / len(some)
