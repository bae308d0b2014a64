"""`variant.yml`, the settings that the official training writes next to its checkpoint. Untrusted: no tag runs code."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from depict.errors import UserError
from depict.io.yaml import read_yaml

FILE = "variant.yml"


class Variant:
    """Values of the YAML file by path, each checked for its type when it is read; None where the file has none."""

    def __init__(self, values: Mapping[str, Any], path: Path):
        self.values, self.path = values, path

    def integer(self, *keys: str) -> int | None:
        """A whole number of at least 1."""
        value = self._get(keys)
        return None if value is None else self._checked_integer(keys, value)

    def number(self, *keys: str) -> float | None:
        """An integer or a float."""
        value = self._get(keys)
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            return value
        raise self._error(keys, value, "a number")

    def text(self, *keys: str) -> str | None:
        """A string."""
        value = self._get(keys)
        if value is None or isinstance(value, str):
            return value
        raise self._error(keys, value, "text")

    def pair(self, *keys: str) -> tuple[int, int] | None:
        """Height and width; a single number is both."""
        value = self._get(keys)
        if value is None:
            return None
        if isinstance(value, (list, tuple)) and len(value) == 2:
            return self._checked_integer(keys, value[0]), self._checked_integer(keys, value[1])
        side = self._checked_integer(keys, value)
        return side, side

    def _get(self, keys: tuple[str, ...]) -> Any:
        value: Any = self.values
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def _checked_integer(self, keys: tuple[str, ...], value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        raise self._error(keys, value, "a whole number of at least 1")

    def _error(self, keys: tuple[str, ...], value: Any, expected: str) -> UserError:
        return UserError(f"'{self.path}': {'.'.join(keys)} must be {expected}, not {reprlib.repr(value)}.")


def read_variant(path: Path | None, checkpoint: Path) -> Variant:
    """Read `path`, by default `variant.yml` next to the checkpoint, which may be missing."""
    if path is None:
        path = checkpoint.parent / FILE
        if not path.exists():
            return Variant({}, path)
    return Variant(read_yaml(path, _Loader), path)


class _Loader(yaml.SafeLoader):
    """Plain YAML plus the tag `!!python/tuple`, which the authors' files use for `image_size`."""


def _tuple(loader: _Loader, node: Any) -> tuple[Any, ...]:
    if not all(isinstance(item, yaml.ScalarNode) for item in node.value):  # as a key, nested ones take forever
        raise yaml.constructor.ConstructorError(problem="a tuple must hold numbers", problem_mark=node.start_mark)
    return tuple(loader.construct_sequence(node))


_Loader.add_constructor("tag:yaml.org,2002:python/tuple", _tuple)
