"""What the documentation prints is what the code prints."""

import contextlib
import io
import re

import pytest
import torch

from conftest import REPOSITORY
from depict.decoders import DECODERS

BLOCK = re.compile(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/architecture.md", pytest.param("docs/theory.md", marks=pytest.mark.slow)]
)
def test_the_python_blocks_of_a_page_print_what_the_page_says(page, monkeypatch):
    monkeypatch.setattr("depict.decoders.DECODERS", dict(DECODERS))  # a page registers one
    namespace: dict = {}
    default = torch.get_default_dtype()
    try:
        for code, expected in BLOCK.findall((REPOSITORY / page).read_text()):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
            assert printed.getvalue() == expected
    finally:
        torch.set_default_dtype(default)


def test_the_places_in_the_code_that_the_readme_names_exist():
    picture = (REPOSITORY / "docs/images/architecture_light.svg").read_text()
    shown = " ".join(re.findall(r'class="where"[^>]*>(.*?)<', picture)).split()
    table = (REPOSITORY / "README.md").read_text().partition("| to add |")[2].partition("\n\n")[0]
    places = {*shown, *re.findall(r"`([\w/]+(?:/|\.py))`", table)}
    assert {"encoders/", "operators.py", "data/__init__.py"} <= places
    assert [place for place in places if not (REPOSITORY / "src/depict" / place).exists()] == []
