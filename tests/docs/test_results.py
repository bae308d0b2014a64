"""The pages of results show what the studies in docs/results measured."""

import importlib.util
import json

from conftest import REPOSITORY

FOLDER = REPOSITORY / "docs/results"


def load_script():
    spec = importlib.util.spec_from_file_location("redraw", FOLDER / "redraw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_of_the_pages_is_the_one_that_the_script_writes():
    redraw = load_script()
    pages = [page.read_text(encoding="utf-8") for page in redraw.PAGES]
    assert [redraw.filled(page) for page in pages] == pages
    assert all(sum(page.count(f"<!-- table: {name} -->") for page in pages) == 1 for name in redraw.TABLES)


def test_every_kept_study_is_finished():
    studies = sorted(FOLDER.glob("*/study.yaml"))
    assert studies
    for study in studies:
        results = json.loads((study.parent / "results.json").read_text(encoding="utf-8"))
        assert results["lines"] and not results["missing"], study.parent.name


def test_only_small_files_of_known_names_are_kept_and_no_photograph():
    """Photographs of CamVid are PNGs too, so pictures are allowed by name, not by suffix."""
    redraw = load_script()
    allowed = {f"labels/{name}.png" for name in (*redraw.LABEL_ROWS, *redraw.STRIDE_ROWS)}
    allowed |= {"redraw.py", "ship.py", "ablation/results.png", "less_data/results.png"}
    allowed |= {f"{path.parent.name}/{name}" for path in FOLDER.glob("*/study.yaml") for name in redraw.KEPT}
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
    kept = {name for name in files if "__pycache__" not in name}
    assert kept == allowed
    assert sum(files[name].stat().st_size for name in kept) < 1 << 20
