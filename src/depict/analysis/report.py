"""The report on disk: data, figures, and one self-contained page.

FOLDER/RUN/NAME.json               everything that an analysis measured, and its findings
FOLDER/RUN/NAME_TABLE.csv          each of its tables
FOLDER/RUN/NAME_FIGURE.png, .svg   each of its figures
FOLDER/RUN/NAME/IMAGE.png          each of its pictures of single images
FOLDER/report.html                 all of it for all runs, side by side
"""

from __future__ import annotations

import csv
import importlib
import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from depict.analysis.base import Result
from depict.analysis.runner import Outcome
from depict.analysis.text.glossary import GLOSSARY
from depict.analysis.verdict import Verdict
from depict.costs import parameters
from depict.io.files import atomic_path, write_json
from depict.viz.page import MISSING, embed_figure, format_number, write_page
from depict.viz.style import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from depict.model import SegmentationModel

REPORT = "report.html"
NOT_EVALUATED = "not evaluated"


@dataclass
class Section:
    """One analysis of one run as the report shows it: what was measured, in figures and words."""

    name: str
    """Of the analysis and its files."""
    title: str
    about: str
    """What is measured and why, with the paper's figure or equation."""
    result: Result = field(default_factory=Result)
    verdict: Verdict = field(default_factory=lambda: Verdict("failed"))
    """The answer to the question in the title."""
    findings: list[str] = field(default_factory=list)
    """Paragraphs: what was found on this run, and whether it agrees with the paper."""
    figures: dict[str, Figure] = field(default_factory=dict)
    """By a short name; at most 7 inches wide, readable on a phone."""
    captions: dict[str, str] = field(default_factory=dict)
    """Of the figures: what is on the axes, what to look for."""
    pictures: dict[str, bytes] = field(default_factory=dict)
    """PNG files of single images by the image's name; the page links to them only."""
    error: str | None = None
    """Why there is no result."""
    seconds: float = 0.0


@dataclass
class RunReport:
    """One run in the report."""

    name: str
    """Its folder inside the report's, and the head of its column."""
    facts: dict[str, str]
    """What it is, by label."""
    sections: list[Section]
    images: int
    seconds: float
    """Spent reading the images and unrolling the model."""


def present(outcome: Outcome) -> Section:
    """Draw and word the outcome of an analysis, with `figures/NAME.py` and `text/NAME.py`."""
    started = time.perf_counter()
    text = importlib.import_module(f"depict.analysis.text.{outcome.name}")
    section = Section(outcome.name, text.TITLE, text.ABOUT, error=outcome.error)
    if (result := outcome.result) is not None:
        section.result = result
        if result.skipped:
            section.verdict, section.findings = Verdict("does not apply"), [result.skipped]
        else:
            drawing = importlib.import_module(f"depict.analysis.figures.{outcome.name}")
            section.verdict, section.findings = text.verdict(result), text.findings(result)
            section.figures = drawing.figures(result)
            section.captions = {name: text.CAPTIONS[name] for name in section.figures}
            section.pictures = drawing.pictures(result) if hasattr(drawing, "pictures") else {}
    section.seconds = outcome.seconds + time.perf_counter() - started
    return section


def describe(model: SegmentationModel, source: str, folder: Path | None, images: str) -> dict[str, str]:
    """The facts about a run at the top of the report.

    `folder` may hold the run's evaluation.json; `images` says which images were analyzed.
    """
    config = model.config
    sizes = {"patch": config.encoder.patch_size, "dim": config.encoder.dim, "depth": config.encoder.depth}
    changed = {size: value for size, value in sizes.items() if value is not None}
    neck = sum(parameters(part) for part in (model.neck, model.stem) if part is not None)
    return {
        "run": source,
        "decoder": config.decoder.name + _in_brackets(config.decoder.options()),
        "decoder parameters": f"{parameters(model.decoder):,}",
        **({"neck": model.neck_summary, "neck parameters": f"{neck:,}"} if neck else {}),
        "encoder": config.encoder.name + _in_brackets(changed) + ", frozen" * config.encoder.freeze,
        "encoder parameters": f"{parameters(model.encoder):,}",
        "classes": f"{model.num_classes:,}",
        "trained on": config.data.name or "not recorded",
        "mIoU (depict evaluate)": NOT_EVALUATED if folder is None else read_miou(folder / "evaluation.json"),
        "images analyzed": images,
    }


def read_miou(path: Path) -> str:
    """The mIoU that `depict evaluate` wrote into a run folder, and on which images."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        images = found["images"]  # a list, or the number alone in a shipped model
        where = f"{images if isinstance(images, int) else len(images)} images of {found['data']}, {found['split']}"
        return f"{100 * float(found['miou']):.2f} % ({where})"
    except (OSError, ValueError, KeyError, TypeError):
        return NOT_EVALUATED


def _in_brackets(options: dict[str, Any]) -> str:
    listed = ", ".join(f"{option.replace('_', ' ')} {value}" for option, value in options.items())
    return f" ({listed})" if listed else ""


def write_sections(folder: Path, about: dict[str, Any], sections: Iterable[Section]) -> None:
    """Write the files of every analysis of one run; `about` names the run and the images."""
    for section in sections:
        path = folder / f"{section.name}.json"
        if section.error is not None:
            write_json(path, {**about, "question": section.title, "error": section.error})
            continue
        answer = {"question": section.title, "answer": section.verdict.answer, "because": section.verdict.number}
        words = answer | {"text": section.findings, "captions": section.captions}
        values = {"numbers": section.result.numbers, "data": section.result.data}
        write_json(path, {**about, **words, **plain(values)})
        for name, rows in section.result.tables.items():
            _write_table(folder / f"{section.name}_{name}.csv", plain(rows))
        for name, figure in section.figures.items():
            save_figure(figure, folder / f"{section.name}_{name}")
        for name, content in section.pictures.items():
            with atomic_path(folder / section.name / f"{name}.png") as temporary:
                temporary.write_bytes(content)


def plain(value: Any) -> Any:
    """Convert to JSON values: numbers of numpy and torch become Python's, those that are not finite None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic) or hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    columns = dict.fromkeys(column for row in rows for column in row)
    with (
        atomic_path(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def write_report(folder: Path, runs: Sequence[RunReport], stamp: dict[str, Any]) -> Path:
    """Write report.html with all figures in it, and return its path."""
    by_analysis = zip(*(run.sections for run in runs), strict=True)
    names = [run.name for run in runs]
    path = folder / REPORT
    write_page(
        path,
        "analysis/report.html.jinja",
        runs=names,
        facts=_rows([run.facts for run in runs]),
        analyses=[_analysis(dict(zip(names, sections, strict=True))) for sections in by_analysis],
        times=_times(runs),
        stamp={key: value for key, value in stamp.items() if value is not None},
        glossary=GLOSSARY,
    )
    return path


def _analysis(sections: dict[str, Section]) -> dict[str, Any]:
    """What the template shows of one analysis, given its section of every run."""
    first = next(iter(sections.values()))
    numbers = [
        {label: format_number(value, label) for label, value in section.result.numbers.items()}
        for section in sections.values()
    ]
    return {
        "name": first.name,
        "title": first.title,
        "about": first.about,
        "answers": [section.verdict for section in sections.values()],
        "numbers": _rows(numbers),
        "figures": _figures(sections),
        "findings": [(run, section.verdict, section.findings, section.error) for run, section in sections.items()],
        "files": [(run, _links(run, section)) for run, section in sections.items()],
    }


def _rows(columns: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    """Labels of any column in order, each with its value in every column."""
    labels = dict.fromkeys(label for column in columns for label in column)
    return [(label, [column.get(label, MISSING) for column in columns]) for label in labels]


def _figures(sections: dict[str, Section]) -> list[dict[str, Any]]:
    """Each figure of all runs that have it, with its caption."""
    groups = []
    for name in dict.fromkeys(name for section in sections.values() for name in section.figures):
        having = {run: section for run, section in sections.items() if name in section.figures}
        captions = {run: section.captions.get(name, "") for run, section in having.items()}
        shared = len(set(captions.values())) == 1
        pictures = []
        for run, section in having.items():
            alt = f"{section.title} Figure {name.replace('_', ' ')} of {run}. {captions[run]}".strip()
            pictures.append((run, embed_figure(section.figures[name], alt), "" if shared else captions[run]))
        groups.append({"pictures": pictures, "caption": next(iter(captions.values())) if shared else ""})
    return groups


def _links(run: str, section: Section) -> list[tuple[str, str]]:
    """Name and relative address of the files of an analysis."""
    names = [f"{section.name}.json", *(f"{section.name}_{name}.csv" for name in section.result.tables)]
    names += [f"{section.name}_{name}.{kind}" for name in section.figures for kind in ("png", "svg")]
    names += [f"{section.name}/{name}.png" for name in section.pictures]
    return [(name, quote(f"{run}/{name}", errors="surrogateescape")) for name in names]


def _times(runs: Sequence[RunReport]) -> list[tuple[str, list[str]]]:
    """Seconds spent on every part, for each run."""
    columns = []
    for run in runs:
        parts = {"images and model": run.seconds} | {section.name: section.seconds for section in run.sections}
        parts["total"] = sum(parts.values())
        columns.append({part: f"{seconds:.1f} s" for part, seconds in parts.items()})
    return _rows(columns)
