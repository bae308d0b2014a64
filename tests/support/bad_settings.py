"""Every numeric setting, and numbers that none of them may be."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from depict.config.ranges import flag
from depict.config.schema import Config

BAD_NUMBERS = (float("nan"), float("inf"), float("-inf"), 1e300, -1e300, 2**63, -(2**63), 2**64, 10**400)
"""Out of the range of each setting."""
SIGNED = ("decoder.logit_gain", "decoder.step_size")
"""Settings that may be negative."""


def numeric_settings(kind: type = Config, prefix: str = "") -> Iterator[str]:
    """The names of all settings that may be numbers, such as train.lr."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from numeric_settings(hints[field.name], f"{field.name}.")
        elif {int, float} & set(_leaves(hints[field.name])):
            yield prefix + field.name


def _leaves(hint: Any) -> Iterator[Any]:
    """The plain types in a type such as `int | tuple[int, int] | None`."""
    yield hint
    for part in typing.get_args(hint):
        yield from _leaves(part)


def bad_numbers(name: str) -> tuple[float, ...]:
    """The numbers that a setting may not be."""
    return BAD_NUMBERS if name in SIGNED else (*BAD_NUMBERS, -1)


def as_config(name: str, value: Any) -> Config:
    """A Config with one setting changed, as in Python."""
    config = Config()
    section, _, key = name.rpartition(".")
    setattr(getattr(config, section) if section else config, key, value)
    return config


def as_yaml(name: str, value: Any) -> str:
    """A file with one setting."""
    number = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(str(value), str(value))
    number = f"[{number}, 1]" if name == "data.scale_range" else f"[{number}]" if name == "encoder.blocks" else number
    section, _, key = name.rpartition(".")
    return f"{section}: {{{key}: {number}}}\n" if section else f"{key}: {number}\n"


def as_flags(name: str, value: Any) -> list[str]:
    """The words that set it on the command line."""
    return [f"{flag(name)}={value}", *(["1"] if name == "data.scale_range" else [])]
