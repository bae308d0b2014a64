"""Configurations by name: the rows of the paper's tables, shipped as YAML, and a user's own files on top of them.

A YAML file may name a `base`, another configuration whose settings it starts from; a base may have a base.
Free of torch.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import importlib.resources
from pathlib import Path
from typing import Any

from depict.config.ranges import check_ranges
from depict.config.schema import Config
from depict.errors import UserError, unknown
from depict.io.yaml import from_dict, read_yaml

FOLDER = Path(str(importlib.resources.files("depict"))) / "configs"
BASE = "base"
"""The key that names a file's base, and the name of the file that all configurations of a data set start from."""
RUN_KEYS = ("format", "stamp", "classes")
"""Keys of a run's config.yaml that are not settings."""


def preset_names() -> list[str]:
    """The names of the shipped configurations, such as `ade20k/depict_sa_vit_s`, without the bases."""
    return sorted(name for name in _shipped_files() if not name.endswith(f"/{BASE}"))


def load_config(name_or_path: str) -> Config:
    """The configuration of a shipped name, of a YAML file or of a run's config.yaml."""
    return from_dict(Config, load_settings(name_or_path), f"'{name_or_path}'")


def load_settings(name_or_path: str) -> dict[str, Any]:
    """The settings of that configuration as plain values: those of its base, overridden by its own."""
    layers: list[dict[str, Any]] = []
    seen: list[Path] = []
    path: Path | None = _find(name_or_path)
    while path is not None:
        seen.append(path.resolve())
        values = _read(path)
        base = values.pop(BASE, None)
        layers.append(values)
        path = None if base is None else _find_base(base, path)
        if path is not None and path.resolve() in seen:
            raise UserError(f"circular base configuration: '{seen[-1]}' has the base '{base}', which is based on it.")
    return functools.reduce(merge, reversed(layers), {})


def merge(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`settings` overridden by `changes`, section by section; neither argument is modified.

    A different decoder starts from its own defaults, because the options of the former would not fit it.
    """
    merged = dict(settings)
    for key, value in changes.items():
        before = settings.get(key)
        if not (isinstance(before, dict) and isinstance(value, dict)):
            merged[key] = value
        elif key == "decoder" and value.get("name", before.get("name")) != before.get("name"):
            merged[key] = dict(value)
        else:
            merged[key] = before | value
    return merged


def _find(name: str) -> Path:
    """The file of a shipped name or of a path. A shipped name wins over a file of the same name."""
    if (shipped := _shipped_files().get(name)) is not None:
        return shipped
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        raise UserError(f"'{name}' is a folder, not a configuration: give a file in it, such as its config.yaml.")
    if path.suffix in (".yaml", ".yml"):
        raise UserError(f"there is no file '{name}'. `depict info` lists the shipped configurations.")
    near = difflib.get_close_matches(name, preset_names(), n=3)
    guess = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise UserError(
        f"unknown configuration '{name}'.{guess} Give a YAML file or a name that `depict info` lists under its tables."
    )


def _find_base(base: Any, path: Path) -> Path:
    """The file of the base that `path` names: a shipped name, or a path relative to the folder of `path`."""
    if not isinstance(base, str):
        raise UserError(f"'{path}', {BASE}: {base!r} is neither the name of a configuration nor a path.")
    relative = path.parent / base
    try:
        return _find(str(relative) if base not in _shipped_files() and relative.is_file() else base)
    except UserError as error:
        raise UserError(f"'{path}', {BASE}: {error}") from error


@functools.cache
def _shipped_files() -> dict[str, Path]:
    """The shipped files by name, bases included. A name is looked up here and never used as a path."""
    return {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in FOLDER.glob("*/*.yaml")}


def _read(path: Path) -> dict[str, Any]:
    """The settings of one file. Shipped files are parsed once, because they share their bases."""
    return copy.deepcopy(_parse_once(path)) if FOLDER in path.parents else _parse(path)


def _parse(path: Path) -> dict[str, Any]:
    """The settings of one file, checked here so that an error names the file that contains it."""
    values = read_yaml(path)
    if RUN_KEYS[0] in values:
        values = {key: value for key, value in values.items() if key not in RUN_KEYS}
    known = [*(field.name for field in dataclasses.fields(Config)), BASE]
    for key in values:
        if key not in known:
            raise unknown(f"setting in '{path}':", key, known)
    config = from_dict(Config, {key: value for key, value in values.items() if key != BASE}, f"'{path}'")
    check_ranges(config, f"'{path}'")
    return values


_parse_once = functools.cache(_parse)
