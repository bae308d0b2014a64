"""The result files of a study: results.json, results.md, results.png and results.svg."""

from __future__ import annotations

from pathlib import Path

from depict.io.files import write_json, write_text
from depict.studies.collect import collect
from depict.studies.figures import FONT_SIZE, results_figure
from depict.studies.plan import Study, plan
from depict.studies.tables import results_text
from depict.viz.style import figure_style, save_figure


def write_results(study: Study, out: Path) -> str:
    """Write the results of the cells that are finished; returns the text of results.md."""
    lines = collect(study, out)
    cells = {cell.name: cell.finished(out) for cell in plan(study)}
    missing = [name for name, finished in cells.items() if not finished]
    write_json(out / "results.json", {"study": study.name, "lines": lines, "missing": missing})
    text = results_text(study, lines, len(cells), len(missing))
    write_text(out / "results.md", text)
    if lines:
        with figure_style(FONT_SIZE):
            save_figure(results_figure(study, lines), out / "results")
    return text
