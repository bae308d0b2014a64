"""The robustness table over several runs: their validation images, in the windows of `depict evaluate`.

`perturbation.json` holds the settings, `runs/NAME.json` the result of each run, next to them are the tables and the
figure. A run is finished if its file exists and was made from the same weights.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depict.analysis.perturbation import (
    NOISE,
    READINGS,
    ROTATE,
    SEEDS,
    SIGMAS,
    TRANSFORMATIONS,
    Row,
    Tally,
    find_row,
    plan_changes,
    summarize,
)
from depict.analysis.text.perturbation import PAPER
from depict.data import create_dataset
from depict.data.dataset import Dataset, random_subset
from depict.decoders import need_steps
from depict.errors import UserError
from depict.evaluation import sliding_window_for
from depict.io.files import atomic_path, read_json, write_json, write_text
from depict.io.hub import PREFIX, local_run
from depict.io.shipped import shipped_model
from depict.model import SegmentationModel
from depict.runs import WEIGHTS, load, lock_run, read_run
from depict.studies.tables import markdown_table, mean_and_spread
from depict.terminal import progress_bar, say
from depict.viz.style import figure_style, save_figure

FILE = "perturbation.json"
CHANGEABLE = ("runs", "root")
"""Settings that may differ between two calls: runs are added, and data may have moved."""
METHOD = (
    "P O_K: a random orthogonal mixing of all bases of every attention layer, one for each seed. P'_h O_M: one for "
    "each head, an identity: its column can differ from the unperturbed one by rounding only. Ortho(P'_h): the nearest "
    "orthonormal rows with the same span; no seed. In Segmenter the mixings act on queries, keys and values and their "
    "biases, with the inverse on the output matrix; Ortho acts on the rows of queries, keys and values of each head "
    "separately. In CBT the mixings act on P, with the inverse on the output matrix. "
    "Noise is added to every parameter of the decoder; encoder and neck are never changed."
)
RunResult = dict[str, Any]
"""Contents of runs/NAME.json: run, weights, decoder, encoder, images, rows."""


@dataclass
class Study:
    """The settings of a study, kept as perturbation.json."""

    runs: dict[str, str]
    """Run folders, or hf-hub: names, by the name of their result."""
    data: str
    root: str | None
    limit: int | None
    seeds: list[int]
    sigmas: list[float]


def open_study(
    out: Path,
    runs: Sequence[str] = (),
    data: str | None = None,
    root: Path | None = None,
    limit: int | None = None,
    seeds: Sequence[int] | None = None,
    sigmas: Sequence[float] | None = None,
) -> Study:
    """Open the study in the folder `out`, or plan a new one. None keeps a setting; runs are added to those it has."""
    before = read_study(out)
    base = before or _new_study(out, runs, data)
    given: dict[str, Any] = {
        "data": data,
        "root": None if root is None else str(root),
        "limit": limit,
        "seeds": None if seeds is None else list(seeds),
        "sigmas": None if sigmas is None else list(sigmas),
    }
    given = {name: value for name, value in given.items() if value is not None}
    study = dataclasses.replace(base, runs=base.runs | _named(base.runs, runs), **given)
    for name, value in vars(before or study).items():
        if name not in CHANGEABLE and value != getattr(study, name):
            raise UserError(
                f"'{out}' was made with {name} = {_text(value)}, not {_text(getattr(study, name))}: "
                "give the same settings to continue, or choose another --out."
            )
    if not study.seeds or len(set(study.seeds)) < len(study.seeds) or min(study.seeds) < 0:
        raise UserError(f"--seeds must be different whole numbers from 0, not {_text(study.seeds)}.")
    if not study.sigmas or not all(0 < sigma < float("inf") for sigma in study.sigmas):
        raise UserError(f"--sigmas must be numbers above 0, not {_text(study.sigmas)}.")
    if study.limit is not None and study.limit < 1:
        raise UserError(f"--limit must be at least 1, not {study.limit}.")
    return study


def read_study(out: Path) -> Study | None:
    """The study of a folder, if there is one."""
    path = out / FILE
    if not path.exists():
        return None
    try:
        return Study(**read_json(path, "choose another --out"))
    except TypeError as error:
        raise UserError(f"'{path}' does not belong to this kind of study: choose another --out.") from error


def _new_study(out: Path, runs: Sequence[str], data: str | None) -> Study:
    if out.is_dir() and any(path.name != ".lock" for path in out.iterdir()):
        raise UserError(f"'{out}' holds other files and no such study: choose an empty or a new folder for --out.")
    if not runs:
        raise UserError("no runs given: name their folders, or hf-hub:user/name.")
    data = data or read_run(local_run(runs[0]))[0].data.name
    if data is None:
        raise UserError(f"'{runs[0]}' does not say what it was trained on: give --data NAME and --root DIR.")
    return Study({}, data, root=None, limit=None, seeds=list(SEEDS), sigmas=list(SIGMAS))


def run(study: Study, out: Path, device: str = "cpu") -> str:
    """Measure every run that is not finished and return the table; results are updated after each run."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("a study runs in one process: start it without torchrun or accelerate launch.")
    folders = {name: local_run(source) for name, source in study.runs.items()}
    digests = {name: _weights_digest(folder) for name, folder in folders.items()}
    images = {name: open_images(study, folder) for name, folder in folders.items()}  # all errors come before any work
    with lock_run(out):
        write_json(out / FILE, vars(study))
        table = ""
        for number, (name, folder) in enumerate(folders.items(), 1):
            path = _result_path(out, name)
            if path.exists() and _read_result(path)["weights"] == digests[name]:
                continue
            say(f"run {number} of {len(folders)}: {name}", error=True)
            model = load(folder).to(device)
            measured = measure(model, images[name], study.seeds, study.sigmas, name)
            about = {
                "run": study.runs[name],
                "weights": digests[name],
                "decoder": model.config.decoder.name,
                "encoder": model.config.encoder.name,
            }
            write_json(path, about | measured)
            table = write_results(study, out)
        return table or write_results(study, out)


def open_images(study: Study, folder: Path) -> Dataset:
    """The validation images of the study for one run; it must have their classes."""
    config, classes = read_run(folder)
    need_steps(config.decoder.name, folder)
    root = study.root or (config.data.root if study.data == config.data.name else None)
    dataset = create_dataset(study.data, root, "val")
    if len(dataset.classes) != len(classes):
        raise UserError(
            f"'{folder}' has {len(classes)} classes, '{study.data}' has {len(dataset.classes)}: "
            "all runs of a study must be trained for its data set."
        )
    return dataset if study.limit is None else random_subset(dataset, study.limit, 0)


def measure(
    model: SegmentationModel, dataset: Dataset, seeds: Sequence[int], sigmas: Sequence[float], title: str = ""
) -> dict[str, Any]:
    """`images` and `rows` of one model on all images of a data set. The encoder runs once per window."""
    tally = Tally(model.eval(), plan_changes(model.decoder, seeds, sigmas))
    sliding = sliding_window_for(model, dataset)
    for index in progress_bar(range(len(dataset)), desc=f"{title}, {len(tally.decoders)} decoders", unit="image"):
        tally.add(*dataset.read(index), sliding)
    return {"images": len(dataset), "rows": summarize(tally.scores(), sigmas)}


def write_results(study: Study, out: Path) -> str:
    """Write results.json, .md, .csv, .png and .svg of the finished runs, and return the table."""
    paths = {name: _result_path(out, name) for name in study.runs}
    results = {name: _read_result(path) for name, path in paths.items() if path.exists()}
    missing = [name for name in paths if name not in results]
    write_json(out / "results.json", {"study": vars(study), "runs": results, "missing": missing})
    text = results_table(study, results)
    write_text(out / "results.md", text)
    if results:
        _write_csv(out / "results.csv", results)
        _write_figure(out / "results", study, results)
    return text


def results_table(study: Study, results: dict[str, RunResult]) -> str:
    """The results as Markdown."""
    images = ", ".join(dict.fromkeys(str(result["images"]) for result in results.values()))
    columns = [f"{kind} (identity)" if kind == ROTATE else kind for kind in TRANSFORMATIONS]
    columns[0] = "unperturbed"
    transformed = [
        [name, result["decoder"], *(_cell(find_row(result["rows"], kind)) for kind in TRANSFORMATIONS)]
        for name, result in results.items()
    ]
    parts = [
        "# Study: perturbation",
        f"Data {study.data}, {images or 'no'} validation images, single-scale windows; seeds {_text(study.seeds)}. "
        f"{len(results)} of {len(study.runs)} runs finished. mIoU in %, mean ± standard deviation over the seeds.",
        markdown_table(["run", "decoder", *columns], transformed),
    ]
    for reading in READINGS:
        noisy = [
            [name, *(_cell(find_row(result["rows"], NOISE, reading, sigma)) for sigma in study.sigmas)]
            for name, result in results.items()
        ]
        parts.append(markdown_table([f"noise, sigma as {reading}", *(f"{s:g}" for s in study.sigmas)], noisy))
    return "\n\n".join([*parts, METHOD, PAPER]) + "\n"


def _named(known: dict[str, str], runs: Sequence[str]) -> dict[str, str]:
    """The runs that are not known yet, each by the name of its folder and as many parents as make the name unique."""
    named: dict[str, str] = {}
    for run_ in runs:
        source = run_ if run_.startswith(PREFIX) or shipped_model(run_) else str(Path(run_).resolve())
        if source in known.values() or source in named.values():
            continue
        words = [re.sub(r"[^\w.=,-]+", "_", word) for word in re.split(r"[/\\:]", source) if word]
        names = ("-".join(words[-count:]) for count in range(1, len(words) + 1))
        taken = {name.casefold() for name in (*known, *named)}
        named[next(name for name in names if name.casefold() not in taken)] = source
    return named


def _weights_digest(folder: Path) -> str:
    path = folder / WEIGHTS
    if not path.is_file():
        raise UserError(f"'{folder}' has no {WEIGHTS}: the run is not trained yet, or is not a run folder.")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _result_path(out: Path, name: str) -> Path:
    return out / "runs" / f"{name}.json"


def _read_result(path: Path) -> RunResult:
    return read_json(path, "remove it to measure its run again")


def _write_csv(path: Path, results: dict[str, RunResult]) -> None:
    columns = ["run", "decoder", "perturbation", "reading", "sigma", "seeds", "mean", "spread", "change"]
    with (
        atomic_path(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for name, result in results.items():
            for row in result["rows"]:
                seeds = {"seeds": " ".join(map(str, row["seeds"]))}
                writer.writerow(row | seeds | {"run": name, "decoder": result["decoder"]})


def _write_figure(stem: Path, study: Study, results: dict[str, RunResult]) -> None:
    from depict.analysis.figures.perturbation import miou_after_perturbation  # matplotlib is slow to import

    with figure_style(font_size=9):
        figure = miou_after_perturbation({name: result["rows"] for name, result in results.items()})
        figure.suptitle(f"{study.data}: mean ± standard deviation over seeds {_text(study.seeds)}", fontsize=10)
        save_figure(figure, stem)


def _cell(row: Row | None) -> str:
    return "-" if row is None else mean_and_spread(row["mean"], row["spread"])


def _text(value: object) -> str:
    return ", ".join(f"{item:g}" for item in value) if isinstance(value, list) else str(value)
