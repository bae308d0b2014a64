"""Class names and colors from a file: few, short and visible, since they end up in tables, legends and cards."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from numbers import Integral

from depict.errors import UserError
from depict.terminal import HIDDEN

MOST_CLASSES = 1 << 15
"""Label maps have 16 bits."""
LONGEST_NAME = 200


def check_classes(names: Iterable[object], where: str) -> tuple[str, ...]:
    """The names as text. Too many, repeated or long ones and control characters are errors, which name `where`."""
    checked = tuple(map(str, names))
    if not 1 <= len(checked) <= MOST_CLASSES:
        raise UserError(f"{where}: there must be 1 to {MOST_CLASSES} classes, not {len(checked)}.")
    for name in checked:
        if len(name) > LONGEST_NAME:
            raise UserError(
                f"{where}: the class name '{name[:20]}...' has {len(name)} characters, more than {LONGEST_NAME}."
            )
        if any(unicodedata.category(character) in HIDDEN - {"Cf"} for character in name):
            raise UserError(f"{where}: the class name '{name}' holds control characters or line breaks.")
    if len(set(checked)) < len(checked):
        raise UserError(f"{where}: two classes have the same name.")
    return checked


def check_colors(colors: Iterable[Sequence[object]], where: str) -> tuple[tuple[int, int, int], ...]:
    """The colors as (red, green, blue), whole numbers from 0 to 255; `where` is for errors."""
    checked = []
    for color in colors:
        channels = [value for value in color if isinstance(value, Integral) and 0 <= int(value) <= 255]
        if len(channels) != 3 or channels != list(color):
            raise UserError(f"{where}: a color must be red, green and blue, each from 0 to 255, not {str(color)[:60]}.")
        red, green, blue = map(int, channels)
        checked.append((red, green, blue))
    return tuple(checked)
