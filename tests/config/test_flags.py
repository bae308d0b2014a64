"""Signatures and docstrings as flags and help."""

from pathlib import Path
from typing import Annotated

import pytest

from depict.config.flags import Folder, flag, parse_and_call


def call(*arguments: str) -> dict:
    """The values that a command with these arguments is called with."""
    values = {}

    def main(
        out: Folder,
        epochs: Annotated[int | None, flag("the recipe's")] = 5,
        rate: float | None = None,
        root: Annotated[Path | None, flag("none", "DIR", "--folder")] = None,
        size: int | tuple[int, int] | None = None,
    ) -> None:
        """Do something.

        This note is wrapped
        by the width of the terminal.

        Examples:
            depict something

        Args:
            out: Where it goes.
            epochs: A text that
                is continued.
        """
        values.update(out=out, epochs=epochs, rate=rate, root=root, size=size)

    assert parse_and_call(main, "depict something", ["--out", "x", *arguments]) == 0
    return values


def test_optional_values_are_parsed_as_their_type():
    values = call("--epochs", "3", "--rate", "1e-3", "--folder", "data", "--size", "32", "48")
    assert values == {"out": Path("x"), "epochs": 3, "rate": 1e-3, "root": Path("data"), "size": (32, 48)}
    assert call("--size", "32")["size"] == 32


def test_the_word_none_clears_a_default():
    assert call()["epochs"] == 5
    assert call("--epochs", "None")["epochs"] is None


def test_the_help_shows_notes_examples_and_what_an_unset_flag_stands_for(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        call("--help")
    text = capsys.readouterr().out
    assert "Do something.\n\nExamples:\n  depict something\n\nNotes:\n  This note is wrapped by the width" in text
    assert "A text that is continued." in " ".join(text.split())
    assert "(default: 5)" in text
    assert "--folder DIR, --root DIR" in text
    assert "(default: none)" in text
