"""The robustness table over several runs: each run's validation images through the evaluation's own windows.

`perturbation.json` says what was asked, `runs/NAME.json` is what came out for a run, the results stand beside them. A
run whose file is there, and whose weights are still the same, is finished.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depict.analysis.perturbation import (
    NOISE,
    PAPER,
    READINGS,
    ROTATE,
    SEEDS,
    SIGMAS,
    TRANSFORMATIONS,
    Row,
    Tally,
    draw,
    find,
    plan,
    summarize,
)
from depict.data import create_dataset
from depict.data.dataset import Dataset
from depict.data.dataset import random_subset
from depict.errors import UserError
from depict.evaluation import sliding_window_for
from depict.io.files import atomic_path, write_json
from depict.io.hub import PREFIX, local_run
from depict.model import SegmentationModel
from depict.runs import WEIGHTS, load, lock_run, read_run
from depict.viz.style import figure_style, save_figure

FILE = "perturbation.json"
ASIDE = ("runs", "root")
"""What may differ between two calls: runs are added, and data may have moved."""


@dataclass
class Asked:
    """What was asked, kept as perturbation.json."""

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
) -> Asked:
    """The study of the folder `out`, or a new one. What is None is as it was; more runs are added."""
    before = read_study(out)
    if before is None:
        if out.is_dir() and any(path.name != ".lock" for path in out.iterdir()):
            raise UserError(f"'{out}' holds other files and no such study: take an empty or a new folder for --out.")
        if not runs:
            raise UserError("which runs? Name their folders, or hf-hub:user/name.")
        data = data or read_run(local_run(runs[0]))[0].data.name
        if data is None:
            raise UserError(f"'{runs[0]}' does not say what it was trained on: give --data NAME and --root DIR.")
        before = Asked({}, data, None, limit, list(seeds or SEEDS), list(sigmas or SIGMAS))
    asked = Asked(
        before.runs | _named(before.runs, runs),
        data or before.data,
        before.root if root is None else str(root),
        before.limit if limit is None else limit,
        before.seeds if seeds is None else list(seeds),
        before.sigmas if sigmas is None else list(sigmas),
    )
    for name, value in vars(before).items():
        if name not in ASIDE and value != getattr(asked, name):
            raise UserError(
                f"'{out}' was made with {name} = {_words(value)}, not {_words(getattr(asked, name))}: "
                "give the same settings to go on, or another --out."
            )
    if not asked.seeds or len(set(asked.seeds)) < len(asked.seeds) or min(asked.seeds) < 0:
        raise UserError(f"--seeds must be different whole numbers from 0, not {_words(asked.seeds)}.")
    if not asked.sigmas or not all(0 < sigma < float("inf") for sigma in asked.sigmas):
        raise UserError(f"--sigmas must be numbers above 0, not {_words(asked.sigmas)}.")
    if asked.limit is not None and asked.limit < 1:
        raise UserError(f"--limit must be at least 1, not {asked.limit}.")
    return asked


def read_study(out: Path) -> Asked | None:
    """The study of a folder, if there is one."""
    path = out / FILE
    if not path.exists():
        return None
    try:
        return Asked(**_read(path, "take another --out"))
    except TypeError as error:
        raise UserError(f"'{path}' is not of this kind of study: take another --out.") from error


def run(asked: Asked, out: Path, device: str = "cpu") -> str:
    """Perturb every run that is not finished; results are written anew after each. Gives the table."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("a study runs in one process: start it without torchrun or accelerate launch.")
    folders = {name: local_run(source) for name, source in asked.runs.items()}
    digests = {name: _digest(folder) for name, folder in folders.items()}
    images = {name: open_images(asked, folder) for name, folder in folders.items()}  # mistakes are told first
    with lock_run(out):
        write_json(out / FILE, vars(asked))
        for number, (name, folder) in enumerate(folders.items(), 1):
            path = out / "runs" / f"{name}.json"
            if path.exists() and _result(path)["weights"] == digests[name]:
                continue
            print(f"run {number} of {len(folders)}: {name}", file=sys.stderr)
            model = load(folder).to(device)
            found = measure(model, images[name], asked.seeds, asked.sigmas, name)
            config = model.config
            about = {"run": asked.runs[name], "weights": digests[name], "decoder": config.decoder.name}
            write_json(path, about | {"encoder": config.encoder.name} | found)
            write_results(asked, out)
        return write_results(asked, out)


def open_images(asked: Asked, folder: Path) -> Dataset:
    """The validation images of the study for one run, whose classes they must have."""
    config, classes = read_run(folder)
    root = asked.root or (config.data.root if asked.data == config.data.name else None)
    dataset = create_dataset(asked.data, root, "val")
    if len(dataset.classes) != len(classes):
        raise UserError(
            f"'{folder}' has {len(classes)} classes, '{asked.data}' has {len(dataset.classes)}: "
            "a study is on the data set that all of its runs were trained for."
        )
    return dataset if asked.limit is None else random_subset(dataset, asked.limit, 0)


def measure(
    model: SegmentationModel, dataset: Dataset, seeds: Sequence[int], sigmas: Sequence[float], title: str = ""
) -> dict[str, Any]:
    """The table of one model on all images of a data set: `images` and `rows`. The encoder runs once per window."""
    from tqdm import tqdm

    tally = Tally(model.eval(), plan(model.decoder, seeds, sigmas))
    sliding = sliding_window_for(model, dataset)
    for index in tqdm(range(len(dataset)), desc=f"{title}, {len(tally.decoders)} decoders", unit="image"):
        tally.add(*dataset.read(index), sliding)
    return {"images": len(dataset), "rows": summarize(tally.scores(), sigmas)}


def write_results(asked: Asked, out: Path) -> str:
    """Write results.json, .md, .csv, .png and .svg of the runs that are finished; gives the table."""
    paths = {name: out / "runs" / f"{name}.json" for name in asked.runs}
    found = {name: _result(path) for name, path in paths.items() if path.exists()}
    missing = [name for name in paths if name not in found]
    write_json(out / "results.json", {"asked": vars(asked), "runs": found, "missing": missing})
    text = table(asked, found, len(missing))
    with atomic_path(out / "results.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    if found:
        _write_csv(out / "results.csv", found)
        _write_pictures(out, {name: result["rows"] for name, result in found.items()}, asked)
    return text


def table(asked: Asked, found: dict[str, dict[str, Any]], missing: int) -> str:
    """The results as Markdown."""
    images = ", ".join(dict.fromkeys(str(result["images"]) for result in found.values()))
    parts = [
        "# Study: perturbation",
        f"Data {asked.data}, {images or 'no'} validation images, single-scale windows; seeds {_words(asked.seeds)}. "
        f"{len(found)} of {len(found) + missing} runs finished. mIoU in %, mean ± standard deviation over the seeds.",
    ]
    names = [f"{kind} (identity)" if kind == ROTATE else kind for kind in TRANSFORMATIONS]
    lines = [_row(["run", "decoder", "unperturbed", *names[1:]]), "|---|---|" + "---:|" * len(names)]
    for name, result in found.items():
        cells = [_cell(find(result["rows"], kind)) for kind in TRANSFORMATIONS]
        lines.append(_row([name, result["decoder"], *cells]))
    parts.append("\n".join(lines))
    for reading in READINGS:
        lines = [_row([f"noise, sigma as {reading}", *(f"{s:g}" for s in asked.sigmas)])]
        lines.append("|---|" + "---:|" * len(asked.sigmas))
        for name, result in found.items():
            cells = [_cell(find(result["rows"], NOISE, reading, sigma)) for sigma in asked.sigmas]
            lines.append(_row([name, *cells]))
        parts.append("\n".join(lines))
    parts.append(
        "P O_K: a random orthogonal mixing of all bases of every attention layer, one for each seed. P'_h O_M: one for "
        "each head, which leaves the function as it is; its column can differ from the unperturbed one by rounding "
        "only. Ortho(P'_h): the nearest orthonormal rows with the same span; no seed. In Segmenter the mixings act on "
        "queries, keys and values and their biases alike, with the inverse on the output matrix; Ortho acts on the "
        "rows of queries, keys and values of each head separately. Noise is added to every parameter of the decoder."
    )
    return "\n\n".join([*parts, PAPER]) + "\n"


def _named(known: dict[str, str], runs: Sequence[str]) -> dict[str, str]:
    """Runs that are not known yet, each under its own name, with as many parents as it takes to be a new one."""
    named: dict[str, str] = {}
    for run_ in runs:
        source = run_ if run_.startswith(PREFIX) else str(Path(run_).resolve())
        if source in known.values() or source in named.values():
            continue
        words = [re.sub(r"[^\w.=,-]+", "_", word) for word in re.split(r"[/\\:]", source) if word]
        names = ("-".join(words[-count:]) for count in range(1, len(words) + 1))
        taken = {name.casefold() for name in (*known, *named)}
        named[next(name for name in names if name.casefold() not in taken)] = source
    return named


def _digest(folder: Path) -> str:
    """What tells the weights of a run from others."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise UserError(f"'{folder}' has no {WEIGHTS}: the run was not trained yet, or is not a run folder.")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _result(path: Path) -> dict[str, Any]:
    return _read(path, "remove it, and its run is measured again")


def _read(path: Path, way_out: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' is damaged or unreadable: {way_out}.") from error
    return found


def _write_csv(path: Path, found: dict[str, dict[str, Any]]) -> None:
    columns = ["run", "decoder", "perturbation", "reading", "sigma", "seeds", "mean", "spread", "change"]
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for name, result in found.items():
            for row in result["rows"]:
                seeds = {"seeds": " ".join(map(str, row["seeds"]))}
                writer.writerow(row | seeds | {"run": name, "decoder": result["decoder"]})


def _write_pictures(out: Path, rows: dict[str, list[Row]], asked: Asked) -> None:
    with figure_style(font_size=9):
        figure = draw(rows)
        figure.suptitle(f"{asked.data}: mean ± standard deviation over seeds {_words(asked.seeds)}", fontsize=10)
        save_figure(figure, out / "results")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    spread = "" if row["spread"] is None else f" ± {100 * row['spread']:.2f}"
    return f"{100 * row['mean']:.2f}{spread}"


def _words(value: object) -> str:
    return ", ".join(f"{item:g}" for item in value) if isinstance(value, list) else str(value)
