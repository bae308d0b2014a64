"""Settings as YAML: read, written, and converted to dataclasses with every key and value checked."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from depict.errors import UserError, one_line, unknown
from depict.io.files import atomic_path

T = TypeVar("T")
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
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
    with atomic_path(path) as temporary:
        temporary.write_text(
            yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None), encoding="utf-8"
        )


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
        return float(value)
    elif hint is float and isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)  # YAML 1.1 reads 1e-3, without a point, as text
    elif hint is int and isinstance(value, bool):
        pass
    elif isinstance(hint, type) and isinstance(value, hint):
        return value
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    raise UserError(f"{where}: {value!r} is not of type {name}.")
