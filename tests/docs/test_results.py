"""docs/results.md says what the kept files of its studies say."""

import importlib.util

from conftest import REPOSITORY
from depict.studies.plan import read_study
from depict.studies.results import collect, table

FOLDER = REPOSITORY / "docs/results"


def load_script():
    spec = importlib.util.spec_from_file_location("redraw", FOLDER / "redraw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_of_the_page_is_the_one_that_redrawing_writes():
    redraw = load_script()
    page = redraw.PAGE.read_text(encoding="utf-8")
    assert redraw.filled(page) == page
    assert all(f"<!-- table: {name} -->" in page for name in redraw.TABLES)


def test_every_kept_study_is_finished_and_has_the_table_of_its_cells():
    studies = sorted(path.parent for path in FOLDER.glob("*/study.yaml"))
    assert studies
    for folder in studies:
        study = read_study(folder)
        lines = collect(study, folder)
        cells = len(list((folder / "cells").iterdir()))
        assert (folder / "results.md").read_text(encoding="utf-8") == table(study, lines, cells, 0), folder.name


def test_nothing_large_and_no_photograph_is_kept():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".py", ".yaml", ".jsonl", ".json", ".md", ".png", ".svg", ".pyc"}
    assert sum(path.stat().st_size for path in files) < 8 << 20
