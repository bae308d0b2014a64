"""Command-line flags from signatures and dataclasses: tyro, with readable help and errors.

By default tyro shows an optional integer as `{None}|INT (default: None)`, and reports a wrong one
with the Python classes that it tried. Here `X | None` is parsed as X, and `flag` says in the help
what an unset flag stands for.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args

import tyro
from tyro.conf import Positional, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from depict.errors import UserError

NUMBERS = {int: "an integer", float: "a number"}
RULES = ConstructorRegistry()


def flag(unset: str | None = None, metavar: str | None = None, alias: str | None = None) -> Any:
    """The look of a flag in the help: `unset` is what None or "" stands for, `alias` a second name."""

    def hint(default: str) -> str:
        return f"(default: {unset if unset and default in ('None', repr('')) else default})"

    return arg(metavar=metavar, aliases=[alias] if alias else None, help_behavior_hint=hint)


def positional(metavar: str) -> Any:
    """The look of a positional argument. tyro takes none as an empty tuple: commands that need one check it."""
    return arg(metavar=metavar, help_behavior_hint="(required)")


def check_folder(path: Path | None, name: str = "--out") -> None:
    """Refuse a file where a folder is to be written, before any work is done."""
    if path is not None and path.exists() and not path.is_dir():
        raise UserError(f"{name} '{path}' is a file: name a folder.")


def check_file(path: Path | None, suffix: str, name: str = "--out") -> None:
    """Refuse a folder, or another suffix, where a file is to be written, before any work is done."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{name} '{path}' is a folder: name a file in it.")
    if path.suffix.lower() != suffix:
        raise UserError(f"{name} '{path}' must end in {suffix}.")


def keep_inputs(path: Path | None, read: Path | None, name: str = "--out") -> None:
    """Refuse to write over the file `read`, or over a file in the folder `read`, before any work is done."""
    if path is None or read is None or not path.exists():
        return
    if path.samefile(read) if read.is_file() else path.resolve().is_relative_to(read.resolve()):
        where = f"is in '{read}'" if read.is_dir() else "is the picture itself"
        raise UserError(f"{name} '{path}' {where} and would be overwritten: name another file.")


RunPath = Annotated[Positional[Path], positional("RUN")]
RunName = Annotated[Positional[str], positional("RUN")]
RunNames = Annotated[Positional[tuple[str, ...]], positional("RUN...")]
Picture = Annotated[Positional[Path], positional("IMAGE")]
DataName = Annotated[str | None, flag("the run's", "NAME")]
DataRoot = Annotated[Path | None, flag("the run's", "DIR")]
Device = Annotated[str | None, flag("the best device", "DEVICE")]
Folder = Annotated[Path, arg(metavar="DIR")]


def parse_and_call(function: Callable[..., int | None], command: str, arguments: list[str]) -> int:
    """Call `function` with the arguments that its signature and docstring describe, and return its exit code.

    `--help` prints the help and exits with 0; a wrong flag or value is named, and the exit code is 2.
    """
    description = _description(inspect.getdoc(function) or "")
    function.__doc__ = re.sub(r"\n {8,}", " ", inspect.getdoc(function) or "")  # tyro would keep the line breaks
    return tyro.cli(function, prog=command, description=description, args=arguments, registry=RULES) or 0


def _description(docstring: str) -> str:
    """The first line of the docstring, its examples, and the paragraphs between as notes, wrapped to the terminal.

    tyro joins lines that start with a letter, so the lines of examples and notes are indented.
    """
    text, _, examples = docstring.partition("\n\nArgs:\n")[0].partition("\n\nExamples:\n")
    summary, *notes = text.split("\n\n")
    width = min(shutil.get_terminal_size().columns, 100)
    parts = [summary, "Examples:\n" + textwrap.indent(textwrap.dedent(examples), "  ")]
    if notes:
        wrapped = (textwrap.fill(note, width, initial_indent="  ", subsequent_indent="  ") for note in notes)
        parts.append("Notes:\n" + "\n".join(wrapped))
    return "\n\n".join(parts)


@RULES.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if info.type not in NUMBERS:
        return None

    def parse(strings: list[str]) -> Any:
        try:
            return info.type(strings[0])
        except ValueError:
            raise ValueError(f"expected {NUMBERS[info.type]}, not '{strings[0]}'.") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=info.type.__name__.upper(),
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, info.type),
        str_from_instance=lambda value: [str(value)],
    )


@RULES.primitive_rule
def _numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse `tuple[float, float]` and `tuple[int, ...]`."""
    options = get_args(info.type)
    if info.type_origin is not tuple or options[0] not in NUMBERS:
        return None
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(options[0], info.markers))
    assert isinstance(spec, PrimitiveConstructorSpec)
    return PrimitiveConstructorSpec(
        nargs="*" if Ellipsis in options else len(options),
        metavar=spec.metavar,
        instance_from_str=lambda strings: tuple(spec.instance_from_str([string]) for string in strings),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda values: [str(value) for value in values],
    )


@RULES.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse `X | None` as X. The word None clears a value that a configuration sets."""
    options = get_args(info.type)
    if info.type_origin not in (Union, UnionType) or NoneType not in options:
        return None
    inner: Any = functools.reduce(operator.or_, (option for option in options if option is not NoneType))
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(inner, info.markers))
    if not isinstance(spec, PrimitiveConstructorSpec):
        return None

    def parse(strings: list[str]) -> Any:
        try:
            return None if strings == ["None"] else spec.instance_from_str(strings)
        except ValueError:
            if len(options) == 2:  # X | None: the message of X
                raise
            raise ValueError(f"cannot use '{' '.join(strings)}'.") from None

    return PrimitiveConstructorSpec(
        nargs=spec.nargs,
        metavar=spec.metavar,
        instance_from_str=parse,
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
    )
