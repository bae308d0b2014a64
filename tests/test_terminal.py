"""What is printed: one line per line, whatever is in a name."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depict import UserError
from depict.data.pairs import DataError
from depict.terminal import HIDDEN, JOINERS, printable, progress_bar, say, say_text


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_becomes_one_printable_line(text):
    shown = printable(text)
    assert not any(unicodedata.category(character) in HIDDEN for character in shown if character not in JOINERS)
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown
    assert shown == text or not text.isprintable()
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Straße 写真\u3000🙂.png", "Straße 写真\u3000🙂.png"),
        ("می\u200cشود", "می\u200cشود"),
        ("a\nready for training", r"a\nready for training"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), r"caf\xe9"),
        ("gnp.\u202efdp", r"gnp.\u202efdp"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_could_deceive_is_shown_as_an_escape(text, shown):
    assert printable(text) == shown


def test_errors_and_lines_are_printable(capsys):
    assert str(UserError("'\x1b[2J\n' is missing.")) == r"'\x1b[2J\n' is missing."
    assert str(DataError("'\r' is empty.")) == r"'\r' is empty."
    say("written: a\rb", "c\n")
    say("depict: \x9b", error=True)
    say_text("one\ntwo\x1b")
    assert capsys.readouterr() == ("written: a\\rb\nc\\n\none\ntwo\\x1b\n", "depict: \\x9b\n")


def test_lines_are_printed_above_a_progress_bar(capsys):
    for _ in progress_bar(range(1), "a\nb"):
        say("hello", error=True)
    printed = capsys.readouterr().err
    assert r"a\nb: 100%" in printed
    assert "\rhello\n" in printed
