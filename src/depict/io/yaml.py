"""Settings as YAML: read, written, and converted to dataclasses with every key and value checked."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import reprlib
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from depict.errors import UserError, one_line, unknown
from depict.io.files import write_text

T = TypeVar("T")
MOST_BYTES = 1 << 20
"""Larger files are refused; a run with a thousand classes has 50,000."""
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
_LARGE = 1 << 1000
"""Python cannot convert much larger integers to floats."""
_SHORT = reprlib.Repr()
"""How a wrong value is shown: aliases in a YAML file can stand for a text of any length."""
_SHORT.maxstring = _SHORT.maxother = 80


def read_yaml(path: Path, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UserError(f"'{path}' has more than {MOST_BYTES:,} bytes: it is not a file of settings.")
        value = yaml.load(content.decode("utf-8"), loader)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}") from error
    except RecursionError as error:
        raise UserError(f"'{path}' is nested too deeply to be a file of settings.") from error
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:  # a tag may not fit its value
        raise UserError(f"'{path}' is not valid YAML: {one_line(error)}.") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"'{path}' must hold a mapping of settings, not a {type(value).__name__}.")
    return value


def write_yaml(path: Path, value: dict[str, Any]) -> None:
    """Write a mapping as YAML in its own order, atomically."""
    write_text(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None))


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain YAML values: paths as text, tuples as lists, without values of None."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items() if item is not None}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, Path) else value

    return plain(dataclasses.asdict(config))


def from_dict(kind: type[T], values: dict[str, Any], where: str) -> T:
    """Build the dataclass `kind` from plain values; `where` names the source in errors.

    An unknown key is refused with the nearest name, a value of the wrong type with the right type.
    """
    hints = _type_hints(typing.cast(Any, kind))
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    built = {}
    for key, value in values.items():
        if key not in fields:
            raise unknown(f"setting in {where}:", key, fields)
        built[key] = _convert(hints[key], value, f"{where}, {key}")
    return kind(**built)


@functools.cache
def _type_hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields; finding them takes longer than checking the values."""
    return typing.get_type_hints(kind)


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_dict(typing.cast(type, hint), value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        for option in arguments:
            try:
                return _convert(option, value, where)
            except UserError:
                continue
    elif origin is tuple and isinstance(value, (list, tuple)):
        inner = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(inner) == len(value):
            return tuple(_convert(option, item, where) for option, item in zip(inner, value, strict=True))
    elif origin is Literal and value in arguments:
        return value
    elif hint is type(None) and value is None:
        return None
    elif hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if not abs(value) > _LARGE else math.inf if value > 0 else -math.inf
    elif hint is float and isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)  # YAML 1.1 reads 1e-3, without a point, as text
    elif hint is int and isinstance(value, bool):
        pass
    elif isinstance(hint, type) and isinstance(value, hint):
        return value
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    raise UserError(f"{where}: {_SHORT.repr(value)} is not of type {name}.")
