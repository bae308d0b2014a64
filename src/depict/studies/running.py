"""Running a study: every missing cell is trained and evaluated, one after the other."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from depict.config.resolve import resolve
from depict.devices import best_device
from depict.errors import UserError
from depict.evaluation import Result, evaluate, evaluation_record, sliding_window_for, validation_window_for
from depict.io.files import write_json
from depict.io.yaml import to_dict, write_yaml
from depict.runs import load, lock_run
from depict.studies.collect import best_line, collect
from depict.studies.plan import EVALUATION, EVALUATION_MULTISCALE, FILE, Cell, Study, distinct_cells
from depict.studies.results import write_results
from depict.terminal import say
from depict.training.loop import train
from depict.training.window_cache import WindowCache


def run(study: Study, out: Path, multiscale: bool = False) -> None:
    """Train and evaluate every cell that is not finished; the results are updated after each.

    `multiscale` also evaluates the best cell at several scales.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("a study runs in one process: start it without torchrun or accelerate launch.")
    cells = distinct_cells(study)
    for cell in cells:
        resolve(cell.config)  # an error in the last cell is raised before the first is trained
    with lock_run(out):
        write_yaml(out / FILE, to_dict(study))
        for number, cell in enumerate(cells, 1):
            if not cell.finished(out):
                say(f"cell {number} of {len(cells)}: {cell.name}", error=True)
                validated = train(cell.config, cell.folder(out))
                _evaluate(cell, out, EVALUATION, validated)
                write_results(study, out)
        if multiscale and (best := best_line(collect(study, out))):
            cell = next(cell for cell in cells if cell.name == best["best"])
            if not (cell.folder(out) / EVALUATION_MULTISCALE).exists():
                _evaluate(cell, out, EVALUATION_MULTISCALE)
        write_results(study, out)


def _evaluate(cell: Cell, out: Path, name: str, validated: Result | None = None) -> None:
    """Write the evaluation of a cell's best weights to the file `name`; with evaluation.json the cell is finished.

    `validated` is their validation in the training, which need not be repeated where it used the same windows.
    """
    validation = resolve(cell.config).validation
    model = load(cell.folder(out)).to(cell.config.train.device or best_device())
    sliding = sliding_window_for(model, validation, multiscale=name == EVALUATION_MULTISCALE)
    if validated is None or sliding != validation_window_for(model, validation):
        with WindowCache(model) if cell.config.train.cache_features else contextlib.nullcontext() as windows:
            predictor = model.predictor(sliding, network=windows.network(model) if windows else None)
            validated = evaluate(predictor, validation, progress=True)
    record = evaluation_record(validated, validation.name, validation.split, sliding)
    write_json(cell.folder(out) / name, record)
