"""How long a study will take: the steps that are left, and the time of a step measured on this machine."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from depict.config.resolve import ResolvedConfig, resolve
from depict.data.dataset import Dataset, random_subset
from depict.data.loading import Schedule
from depict.devices import best_device
from depict.evaluation import evaluate, sliding_window_for
from depict.model import SegmentationModel
from depict.runs import read_metrics
from depict.studies.collect import training_time
from depict.studies.plan import Cell, Study, distinct_cells
from depict.studies.tables import duration
from depict.training.losses import plain_loss
from depict.training.optim import create_optimizer

MEASURED_STEPS = 3
MEASURED_IMAGES = 2


@dataclass(frozen=True)
class CellForecast:
    """What a cell will take."""

    cell: Cell
    epochs: int
    steps: int
    steps_left: int
    seconds: float
    """Estimated time of the steps and evaluations that are left; 0 if the cell is finished."""


def forecast(study: Study, out: Path) -> list[CellForecast]:
    """The steps of every cell, and an estimate of the time that it will take on this machine.

    The time of a step is that of a finished cell with the same encoder, decoder and batch, or else of a few steps on
    random images. The time of an evaluated image is always measured. Loading images and caching features are not
    included.
    """
    forecasts: list[CellForecast] = []
    measured: dict[str, tuple[float, float]] = {}
    cells = distinct_cells(study)
    finished = {_speed_key(cell): cell for cell in cells if cell.finished(out)}
    for cell in cells:
        config, training, validation = resolve(cell.config)
        epochs, every = config.train.epochs, config.train.validate_every
        steps = len(Schedule(len(training), config.train.batch, epochs))
        left = steps - max((line["iteration"] for line in read_metrics(cell.folder(out))), default=0)
        seconds = 0.0
        if not cell.finished(out):
            key = repr((config.decoder, config.stride, config.neck, config.encoder, config.train))
            if key not in measured:
                measured[key] = _measure(config, validation)
            step, image = measured[key]
            if (alike := finished.get(_speed_key(cell))) is not None:
                spent, done, _ = training_time(alike.folder(out), alike.images)
                step = spent / max(1, done)
            validations = len({*range(every, epochs + 1, every), epochs})
            evaluations = validations * left / steps + (validations > 1)  # the best weights may be evaluated again
            seconds = left * step + evaluations * len(validation) * image
        forecasts.append(CellForecast(cell, epochs, steps, left, seconds))
    return forecasts


def forecast_text(forecasts: list[CellForecast]) -> str:
    """A table of the cells and the total time that is left."""
    rows: list[tuple[str, ...]] = [("cell", "decoder", "seed", "images", "epochs", "steps", "time left")]
    for one in forecasts:
        numbers = (one.cell.config.seed, one.cell.images, one.epochs, one.steps)
        left = duration(one.seconds) if one.seconds else "finished"
        rows.append((one.cell.name, one.cell.config.decoder.name, *map(str, numbers), left))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    missing = sum(one.seconds > 0 for one in forecasts)
    total = duration(sum(one.seconds for one in forecasts))
    lines.append(f"\n{missing} of {len(forecasts)} cells to do, about {total} on this machine under its current load.")
    lines.append("Loading images, and encoding them once for --cache-features, is not included.")
    return "\n".join(lines)


def _speed_key(cell: Cell) -> str:
    """Equal for cells whose steps take the same time."""
    config = cell.config
    return repr((config.encoder, config.stride, config.neck, config.decoder, config.train.batch))


def _measure(config: ResolvedConfig, validation: Dataset) -> tuple[float, float]:
    """Seconds of a training step and of an evaluated image, from a few of each with random weights."""
    random_encoder = dataclasses.replace(config.encoder, pretrained=False)
    model = SegmentationModel(dataclasses.replace(config, encoder=random_encoder), validation.classes)
    model = model.to(config.train.device or best_device()).train()
    images = torch.randn(config.train.batch, 3, *model.image_size, device=model.device)
    shape = (config.train.batch, *model.image_size)
    labels = torch.randint(model.num_classes, shape, device=model.device, dtype=torch.uint8)
    optimizer = create_optimizer(model, config.train, 1e-6)
    features = model.features(images) if config.train.cache_features else None
    times = []
    for _ in range(1 + MEASURED_STEPS):  # the first warms up
        start = time.perf_counter()
        outputs = model.head()(*features) if features else model.masks(images)
        optimizer.zero_grad()
        plain_loss(model, outputs, labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    some = random_subset(validation, min(MEASURED_IMAGES, len(validation)), 0)
    predictor = model.predictor(sliding_window_for(model, validation))
    evaluate(predictor, some)
    start = time.perf_counter()
    evaluate(predictor, some)
    return min(times[1:]), (time.perf_counter() - start) / len(some)
