"""What the documentation prints is what the code prints."""

import contextlib
import io
import re

import pytest
import torch

from conftest import REPOSITORY

BLOCK = re.compile(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/theory.md", marks=pytest.mark.slow)])
def test_the_python_blocks_of_a_page_print_what_the_page_says(page):
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
