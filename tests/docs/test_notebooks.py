"""The notebooks run from top to bottom, and show what they showed when they were stored."""

import json
import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "docs/notebooks").glob("*.ipynb"))


def kinds(notebook):
    """What each cell of code shows: text or a picture."""
    return [
        sorted({"image" if "image/png" in output.get("data", {}) else "text" for output in cell.outputs})
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    stored = kinds(notebook)
    client = NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    assert kinds(notebook) == stored
    assert ["image"] in stored


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_stored_notebook_is_small_complete_and_without_paths_of_a_machine(path):
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert len(text) < 1_500_000
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
    without_pictures = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not re.search(r"/(home|root|tmp|work|Users|var)/|\b[A-Z]:\\\\", without_pictures)


def test_there_are_two_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["own-images", "white-box"]
