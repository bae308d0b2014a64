"""All that is printed goes through here: no name of a file or class can forge a line or control the terminal."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of control characters, invisible ones, halves of characters, and line breaks."""
JOINERS = "\u200c\u200d"
"""Invisible characters that words of some scripts need."""


def printable(text: object) -> str:
    r"""`text` on one line: line breaks, control and invisible characters become escapes such as `\n` and `\x1b`.

    A byte of a file name that is not UTF-8 becomes `\xff` and the like.
    """
    string = str(text)
    return string if string.isprintable() else "".join(map(_visible, string))


def say(*lines: object, error: bool = False) -> None:
    """Print each line, to stderr if it is an `error` or a remark, above any progress bar."""
    tqdm = sys.modules.get("tqdm")  # not imported by a command that shows no bar
    write, stream = tqdm.tqdm.write if tqdm else print, sys.stderr if error else sys.stdout
    for line in lines or ("",):
        write(printable(line), file=stream)
    stream.flush()


def say_text(text: object) -> None:
    """Print a text of several lines. Names in it must be printable, or they could add lines."""
    say(*str(text).split("\n"))


def progress_bar(iterable: Iterable[Any] | None = None, desc: str = "", **options: Any) -> tqdm[Any]:
    """A progress bar of tqdm, with tqdm's options."""
    from tqdm import tqdm

    return tqdm(iterable, printable(desc), **options)


def _visible(character: str) -> str:
    if character in JOINERS or unicodedata.category(character) not in HIDDEN:
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python stores a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
