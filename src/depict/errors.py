"""What a user can get wrong, told in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake the caller can mend. The message is one line: the thing, what is wrong, the way out.

    The command line prints it without a traceback and exits with 2; in Python it is an ordinary ValueError.
    """


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for a name that is not among `known`: says the nearest one, then lists them all."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    guess = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {kind} '{name}'.{guess} Known: {', '.join(names) or 'none'}.")
