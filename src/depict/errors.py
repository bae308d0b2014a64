"""Errors that a user can fix, each one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from depict.terminal import printable


class UserError(ValueError):
    """An error the caller can fix. The message is one line: what it is about, what is wrong, what to do.

    The command line prints it without a traceback and exits with 2; in Python it is an ordinary ValueError.
    Names in the message come from files and may hold anything: they are made printable here.
    """

    def __init__(self, message: object) -> None:
        super().__init__(printable(message))


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for a name that is not in `known`: suggests the nearest one, then lists them all."""
    names, given = list(known), str(name)[:100]
    return UserError(f"unknown {kind} '{given}'.{did_you_mean(given, names)} Known: {', '.join(names) or 'none'}.")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of an error that suggests the name in `known` that is nearest to a wrong one; empty if none is near."""
    near = difflib.get_close_matches(str(name)[:100], [other for other in known if other != str(name)], n=1)
    return f" Did you mean '{near[0]}'?" if near else ""


def one_line(error: BaseException, limit: int = 200) -> str:
    """The message of a library's error on one line, without the final period, cut at `limit` characters."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python or torch, on a GPU or a CPU, ran out of memory."""
    texts = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(t in str(error) for t in texts))
