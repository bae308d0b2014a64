"""CONTRIBUTING.md: its files are written into a copy of the package, its names entered, and its code run."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from conftest import REPOSITORY

PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text()
BLOCK = re.compile(
    r"<!-- (file|add|run)(?:: (\S+)(?: (\w+))?)? -->\n```python\n(.*?)```(?:\n```text\n(.*?)```)?", re.DOTALL
)
TOGETHER = """
import contextlib, io, json, sys
namespace, printed = {}, []
for code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, namespace)
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package with the decoder, the data set and the analysis of the page."""
    folder = tmp_path_factory.mktemp("contributed")
    shutil.copytree(REPOSITORY / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for kind, path, table, code, _ in BLOCK.findall(PAGE):
        if kind == "file":
            assert not (folder / path).exists()
            (folder / path).write_text(code)
        elif kind == "add":
            text = (folder / path).read_text()
            changed, count = re.subn(rf"(?m)^{table}\b.* = {{\n", rf"\g<0>    {code}", text)
            assert count == 1
            (folder / path).write_text(changed)
    return folder


@pytest.mark.slow
def test_the_examples_print_what_the_page_says(copy, tmp_path):
    blocks = [(code, expected) for kind, *_, code, expected in BLOCK.findall(PAGE) if kind == "run"]
    assert len(blocks) == 3
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER],
        input=json.dumps([code for code, _ in blocks]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(copy / "src"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [expected for _, expected in blocks]


def test_the_examples_pass_the_linter(copy):
    shutil.copy(REPOSITORY / "pyproject.toml", copy)
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command], capture_output=True, text=True, cwd=copy)
        assert done.returncode == 0, done.stdout


def test_every_block_of_python_is_checked():
    assert len(BLOCK.findall(PAGE)) == PAGE.count("```python\n")
    assert {table for *_, table, _, _ in BLOCK.findall(PAGE) if table} == {"DECODERS", "DATASETS", "ANALYSES"}
