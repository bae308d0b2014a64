"""Configurations by name: the rows of the paper's tables, shipped as YAML, and a user's own files over them.

A YAML may name a `base`, another configuration whose settings it starts from; bases may have bases. Free of torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.resources
from pathlib import Path
from typing import Any

from depict.config.schema import Config
from depict.errors import UserError, unknown
from depict.io.yaml import from_dict, read_yaml

FOLDER = Path(str(importlib.resources.files("depict"))) / "configs"
BASE = "base"
"""The key that names a file's base, and the name of the file that a data set's configurations stand on."""
RUN_KEYS = ("format", "stamp", "classes")
"""What a run's config.yaml tells beside the settings."""


def preset_names() -> list[str]:
    """The names of the shipped configurations, such as `ade20k/depict_sa_vit_s`; bases are not listed."""
    return sorted(name for name in map(_name, FOLDER.glob("*/*.yaml")) if not name.endswith(f"/{BASE}"))


def load_config(name_or_path: str) -> Config:
    """The configuration of a shipped name, of a YAML file or of a run's config.yaml."""
    return from_dict(Config, load_settings(name_or_path), f"'{name_or_path}'")


def load_settings(name_or_path: str) -> dict[str, Any]:
    """What that configuration sets, as plain values: its base's settings first, its own over them."""
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
            raise UserError(f"'{seen[-1]}' has the base '{base}', which is based on it: a configuration needs an end.")
    settings: dict[str, Any] = {}
    for values in reversed(layers):
        settings = merge(settings, values)
    return settings


def merge(settings: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`settings` with those of `over` in their place, section by section; neither is changed.

    Another decoder than before starts from its own defaults: the options of the former would not fit it.
    """
    merged = dict(settings)
    for key, value in over.items():
        before = settings.get(key)
        if not (isinstance(before, dict) and isinstance(value, dict)):
            merged[key] = value
        elif key == "decoder" and value.get("name", before.get("name")) != before.get("name"):
            merged[key] = dict(value)
        else:
            merged[key] = before | value
    return merged


def _find(name: str) -> Path:
    """The file of a shipped name or of a path; shipped names go first."""
    if (shipped := _shipped(name)) is not None:
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
    """The file of the base that `path` names: a shipped name, or a path from the folder of `path`."""
    if not isinstance(base, str):
        raise UserError(f"'{path}', {BASE}: {base!r} is neither the name of a configuration nor a path.")
    beside = path.parent / base
    try:
        return _find(str(beside) if _shipped(base) is None and beside.is_file() else base)
    except UserError as error:
        raise UserError(f"'{path}', {BASE}: {error}") from error


def _shipped(name: str) -> Path | None:
    """The file of a shipped configuration or base; names are compared, never used as paths."""
    return next((path for path in FOLDER.glob("*/*.yaml") if _name(path) == name), None)


def _name(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").as_posix()


def _read(path: Path) -> dict[str, Any]:
    """The settings of one file, each of them known and of its type, so that an error names the file it stands in."""
    values = read_yaml(path)
    if RUN_KEYS[0] in values:
        values = {key: value for key, value in values.items() if key not in RUN_KEYS}
    known = [field.name for field in dataclasses.fields(Config)]
    for key in values:
        if key not in [*known, BASE]:
            raise unknown(f"setting in '{path}':", key, [*known, BASE])
    from_dict(Config, {key: value for key, value in values.items() if key != BASE}, f"'{path}'")
    return values
