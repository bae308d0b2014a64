"""The paper's symbols in running text, typeset alike in figures and on pages.

Texts have them in plain characters: Z0, Z_L1, P'_h, O_K, Pᵀ, Q̄. `as_mathtext` and `as_html` find these words.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

SYMBOL = re.compile(
    r"(?<![\w-])"
    r"(?P<letter>[ZQP]\u0304?|O(?=_)|R(?=\())"  # with a bar, if any; R only before its argument
    r"(?P<prime>'?)"
    r"(?P<index>\d|_L1|_[A-Za-z0-9]|)"
    r"(?P<top>ᵀ?)"
    r"(?![\w-])"
)
NESTED = {"L1": ("L", "1")}
"""Indices that have an index."""


def as_mathtext(text: str) -> str:
    """The text with its symbols in matplotlib's mathtext."""

    def formula(found: re.Match[str]) -> str:
        letter, prime, index, top = found.groups()
        letter = rf"\bar{{{letter[0]}}}" if len(letter) > 1 else letter
        index = index.removeprefix("_")
        below = f"_{{{'_'.join(NESTED.get(index, (index,)))}}}" if index else ""
        return f"${letter}{prime}{below}{'^' + chr(92) + 'top' if top else ''}$"

    return SYMBOL.sub(formula, text)


def as_html(text: str) -> Markup:
    """The text, escaped, with its symbols in italics, indices below and transposes above the line."""

    def formula(found: re.Match[str]) -> Markup:
        letter, prime, index, top = found.groups()
        below = ""
        for part in reversed(NESTED.get(index.removeprefix("_"), (index.removeprefix("_"),)) if index else ()):
            below = f"<sub>{part if part.isdigit() else f'<var>{part}</var>'}{below}</sub>"
        return Markup(f"<var>{letter}</var>{'′' if prime else ''}{below}{'<sup>⊤</sup>' if top else ''}")

    parts, end = [], 0
    for found in SYMBOL.finditer(text):
        parts += [escape(text[end : found.start()]), formula(found)]
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])
