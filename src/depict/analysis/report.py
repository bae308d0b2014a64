"""What a pass found, on the disk: data, pictures, and one page for people that needs nothing beside itself.

FOLDER/RUN/STEM.json             everything that a question measured, and its words
FOLDER/RUN/STEM_NAME.csv         each of its tables
FOLDER/RUN/STEM_NAME.png, .svg   each of its figures
FOLDER/RUN/STEM/IMAGE.png        each of its pictures of single images
FOLDER/report.html               all of it for all runs, side by side
"""

from __future__ import annotations

import base64
import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from depict.analysis.question import Answer
from depict.analysis.running import Finding, Pass
from depict.costs import parameters
from depict.io.files import atomic_path, write_json
from depict.viz.style import save_figure

if TYPE_CHECKING:
    from depict.model import SegmentationModel

REPORT = "report.html"
MISSING, NOT_EVALUATED = "–", "not evaluated"
LARGEST_SVG = 500_000
"""Bytes; of a larger drawing, such as one of many thousand points, the page holds the PNG."""
CSS_PIXELS = 96
"""Per inch."""


@dataclass
class Subject:
    """One run in the report."""

    name: str
    """Its folder in the report's, and the head of its column."""
    facts: dict[str, str]
    """What it is, by label."""
    outcome: Pass


def describe(model: SegmentationModel, source: str, folder: Path | None, seen: str) -> dict[str, str]:
    """What the top of the report tells of a run; `folder` may hold its evaluation, `seen` says which images."""
    config = model.config
    sizes = {"patch": config.encoder.patch_size, "dim": config.encoder.dim, "depth": config.encoder.depth}
    changed = {size: value for size, value in sizes.items() if value is not None}
    return {
        "run": source,
        "decoder": config.decoder.name + _in_brackets(config.decoder.options()),
        "decoder's parameters": f"{parameters(model.decoder):,}",
        "encoder": config.encoder.name + _in_brackets(changed) + ", frozen" * config.encoder.freeze,
        "encoder's parameters": f"{parameters(model.encoder):,}",
        "classes": f"{model.num_classes:,}",
        "trained on": config.data.name or "not recorded",
        "mIoU (depict evaluate)": NOT_EVALUATED if folder is None else evaluated(folder / "evaluation.json"),
        "images looked at": seen,
    }


def evaluated(path: Path) -> str:
    """The mIoU that `depict evaluate` left beside a run, and on which images."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        where = f"{len(found['images'])} images of {found['data']}, {found['split']}"
        return f"{100 * float(found['miou']):.2f} % ({where})"
    except (OSError, ValueError, KeyError, TypeError):
        return NOT_EVALUATED


def _in_brackets(options: dict[str, Any]) -> str:
    told = ", ".join(f"{option.replace('_', ' ')} {value}" for option, value in options.items())
    return f" ({told})" if told else ""


def write_answers(folder: Path, about: dict[str, Any], findings: Iterable[Finding]) -> None:
    """Write the files of every question to one run; `about` says which run and images."""
    for finding in findings:
        stem, answer = finding.kind.stem, finding.answer
        if answer is None:
            write_json(folder / f"{stem}.json", {**about, "question": finding.kind.title, "error": finding.error})
            continue
        words = {"question": finding.kind.title, "text": answer.text, "captions": answer.captions}
        values = {"numbers": answer.numbers, "data": answer.data}
        write_json(folder / f"{stem}.json", {**about, **words, **plain(values)})
        for name, rows in answer.tables.items():
            _write_table(folder / f"{stem}_{name}.csv", plain(rows))
        _write_figures(folder, stem, answer)
        for name, content in answer.pictures.items():
            with atomic_path(folder / stem / f"{name}.png") as temporary:
                temporary.write_bytes(content)


def plain(value: Any) -> Any:
    """The same as values of JSON: numbers of numpy and torch become Python's, those that are not finite None."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.generic) or hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    columns = dict.fromkeys(column for row in rows for column in row)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _write_figures(folder: Path, stem: str, answer: Answer) -> None:
    for name, figure in answer.figures.items():
        save_figure(figure, folder / f"{stem}_{name}")


def write_report(folder: Path, subjects: Sequence[Subject], stamp: dict[str, Any]) -> Path:
    """Write report.html from what was found and the pictures that `write_answers` left; gives its path."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("depict.analysis", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    kinds = [finding.kind for finding in subjects[0].outcome.findings]
    page = environment.get_template("report.html.jinja").render(
        runs=[subject.name for subject in subjects],
        facts=_rows([subject.facts for subject in subjects]),
        questions=[_question(folder, subjects, place) for place in range(len(kinds))],
        times=_times(subjects),
        stamp={key: value for key, value in stamp.items() if value is not None},
    )
    path = folder / REPORT
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def _question(folder: Path, subjects: Sequence[Subject], place: int) -> dict[str, Any]:
    """What the template shows of one question."""
    findings = {subject.name: subject.outcome.findings[place] for subject in subjects}
    kind = subjects[0].outcome.findings[place].kind
    answers = {run: finding.answer or Answer() for run, finding in findings.items()}
    numbers = [{label: number(value) for label, value in answer.numbers.items()} for answer in answers.values()]
    return {
        "stem": kind.stem,
        "title": kind.title,
        "about": kind.about,
        "numbers": _rows(numbers),
        "figures": _figures(folder, kind.stem, kind.title, answers),
        "words": [(run, answers[run].text, findings[run].error) for run in answers],
        "files": [(run, _links(run, kind.stem, answer)) for run, answer in answers.items()],
    }


def _rows(columns: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    """Labels of any column in order, each with its value in every column."""
    labels = dict.fromkeys(label for column in columns for label in column)
    return [(label, [column.get(label, MISSING) for column in columns]) for label in labels]


def _figures(folder: Path, stem: str, title: str, answers: dict[str, Answer]) -> list[dict[str, Any]]:
    """For every figure the pictures of the runs that have it, and the caption that they share, if they do."""
    groups = []
    for name in dict.fromkeys(name for answer in answers.values() for name in answer.figures):
        having = {run: answer for run, answer in answers.items() if name in answer.figures}
        captions = {run: answer.captions.get(name, "") for run, answer in having.items()}
        shared = len(set(captions.values())) == 1
        pictures = []
        for run, answer in having.items():
            width, height = (round(CSS_PIXELS * side) for side in answer.figures[name].get_size_inches())
            pictures.append(
                {
                    "run": run,
                    "address": _data_address(folder / run / f"{stem}_{name}.svg"),
                    "alt": f"{title} Figure {name.replace('_', ' ')} of {run}. {captions[run]}".strip(),
                    "caption": "" if shared else captions[run],
                    "width": width,
                    "height": height,
                }
            )
        groups.append({"pictures": pictures, "caption": next(iter(captions.values())) if shared else ""})
    return groups


def _data_address(drawing: Path) -> str:
    """A picture as part of the page: the drawing, or the PNG beside it if the drawing is large."""
    large = drawing.stat().st_size > LARGEST_SVG
    kind, path = ("png", drawing.with_suffix(".png")) if large else ("svg+xml", drawing)
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _links(run: str, stem: str, answer: Answer) -> list[tuple[str, str]]:
    """Name and relative address of the files of a question."""
    names = [f"{stem}.json", *(f"{stem}_{name}.csv" for name in answer.tables)]
    names += [f"{stem}_{name}.{kind}" for name in answer.figures for kind in ("png", "svg")]
    names += [f"{stem}/{name}.png" for name in answer.pictures]
    return [(name, quote(f"{run}/{name}")) for name in names]


def _times(subjects: Sequence[Subject]) -> list[tuple[str, list[str]]]:
    """Seconds that every part of the pass took, for each run."""
    columns = []
    for subject in subjects:
        outcome = subject.outcome
        parts = {"images and model": outcome.seconds}
        parts |= {finding.kind.stem: finding.seconds for finding in outcome.findings}
        parts["together"] = sum(parts.values())
        columns.append({part: f"{seconds:.1f} s" for part, seconds in parts.items()})
    return _rows(columns)


def number(value: float | None) -> str:
    """A number for people: four digits that matter, thousands set apart; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return MISSING
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
