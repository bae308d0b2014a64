"""The settings of a training as flags, for `train` and `study`: the basic ones first, the others in groups."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import itertools
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from tyro.conf import arg
from tyro.constructors import MISSING_NONPROP, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from depict.config.flags import RULES
from depict.config.schema import Config, DecoderConfig
from depict.errors import UserError, did_you_mean

BASIC = (
    *("data.name", "data.root", "decoder.name", "encoder.name", "encoder.pretrained", "encoder.freeze"),
    *("train.init", "train.cache_features", "image_size", "stride", "train.epochs", "train.batch", "train.lr"),
    "train.device",
)
GROUPS = {
    "optimization": (
        *("train.optimizer", "train.weight_decay", "train.warmup", "train.layer_decay", "train.clip_grad"),
        *("train.start", "train.ema", "train.loss", "train.class_weights", "seed"),
    ),
    "speed and memory": (
        *("train.precision", "train.grad_accum", "train.checkpointing", "train.compile", "train.cache_crop"),
        *("train.loss_every", "data.workers"),
    ),
    "validation and saving": ("train.validate_every", "train.patience", "train.save_every", "train.tracker"),
}
"""Which settings the help shows together; those named in neither place are shown with their section, such as data."""


MODEL = ("neck", "decoder", "stride", "image_size")
"""What a training takes from the run of --init by default, besides its encoder."""


def base_config(arguments: list[str], otherwise: Config | None = None) -> Config:
    """The configuration that flags override: that of `--config`, with another `--decoder` at its own defaults."""
    name = value_of("--config", arguments)
    if name is None:
        base = otherwise or Config()
    else:
        from depict.config.presets import load_config

        base = load_config(name)
    out = value_of("--out", arguments)
    if (init := value_of("--init", arguments)) not in (None, "None"):
        base = _with_model_of(str(init), base, out)
    elif init is None and base.train.init is not None and name is not None:
        base = _below(base.train.init, name, out)
    decoder = value_of("--decoder", arguments) or value_of("--decoder.name", arguments)
    if decoder not in (None, base.decoder.name):
        base.decoder = DecoderConfig(decoder)  # the options were another decoder's
    return base


def _with_model_of(run: str, base: Config, out: str | None) -> Config:
    """`base` with the encoder, neck, decoder, stride and image size of a run."""
    from depict.config.presets import load_config

    model = load_config(str(_config_of(run, out)))
    encoder = dataclasses.replace(model.encoder, pretrained=False, freeze=base.encoder.freeze)
    return dataclasses.replace(base, encoder=encoder, **{name: getattr(model, name) for name in MODEL})


def _below(run: str, name: str, out: str | None) -> Config:
    """The configuration `name`, with the encoder, neck, decoder, stride and image size of a run where it has none."""
    from depict.config.presets import load_settings, merge
    from depict.io.yaml import from_dict

    given = load_settings(str(_config_of(run, out)))
    settings = {part: given[part] for part in ("encoder", *MODEL) if part in given}
    settings["encoder"] = settings.get("encoder", {}) | {"pretrained": False, "freeze": False}
    return from_dict(Config, merge(settings, load_settings(name)), f"'{name}'")


def _config_of(run: str, out: str | None) -> Path:
    """The config.yaml of a run to start from.

    A training in `out` that has begun has the same model, and resumes without the run.
    """
    from depict.io.hub import CONFIG, local_run
    from depict.io.shipped import shipped_models

    if out is not None and (begun := Path(out) / CONFIG).is_file():
        return begun
    path = local_run(run) / CONFIG
    if not path.is_file():
        guess = did_you_mean(run, shipped_models())
        raise UserError(f"--init '{run}' is not a run folder: there is no {CONFIG} in it.{guess}")
    return path


def value_of(flag: str, arguments: list[str]) -> str | None:
    """The last value of a flag that has to be known before the others are parsed."""
    values = [right for left, right in itertools.pairwise(arguments) if left == flag]
    values += [word.partition("=")[2] for word in arguments if word.startswith(f"{flag}=")]
    return values[-1] if values else None


class _Group:
    """Base of the types that represent a group of flags."""

    fields: tuple[StructFieldSpec, ...]


@RULES.struct_rule
def _group(info: StructTypeInfo) -> StructConstructorSpec | None:
    if not (isinstance(info.type, type) and issubclass(info.type, _Group)):
        return None
    return StructConstructorSpec(dict, info.type.fields)


@RULES.struct_rule
def _settings(info: StructTypeInfo) -> StructConstructorSpec | None:
    """The flags of a Config in their groups, and how a Config is made of their values."""
    if info.type is not Config:
        return None
    flags = _flags(info.default)
    groups = {name: list(paths) for name, paths in GROUPS.items()}
    listed = {*BASIC, *(path for paths in GROUPS.values() for path in paths)}
    for path in flags:
        if path not in listed:
            groups.setdefault(path.partition(".")[0], []).append(path)
    specs = [flags[path] for path in BASIC]
    for name, paths in groups.items():
        group = type(name, (_Group,), {"fields": tuple(flags[path] for path in paths)})
        kind: Any = Annotated[group, arg(name=name, help="")]
        specs.append(StructFieldSpec(name, kind, MISSING_NONPROP))

    def assemble(**values: Any) -> Config:
        for name in groups:
            values |= values.pop(name)
        config = copy.deepcopy(info.default)
        for path, value in values.items():
            section, _, name = path.rpartition(".")
            setattr(getattr(config, section) if section else config, name, value)
        return config

    return StructConstructorSpec(assemble, tuple(specs))


def _flags(config: Config, section: str = "") -> dict[str, StructFieldSpec]:
    """Every setting by its path, such as train.lr, as a flag, such as --lr, with its docstring as help."""
    settings = getattr(config, section) if section else config
    types, texts = get_type_hints(type(settings), include_extras=True), _attribute_docstrings(type(settings))
    flags: dict[str, StructFieldSpec] = {}
    for name, kind in types.items():
        if dataclasses.is_dataclass(value := getattr(settings, name)):
            flags |= _flags(config, name)
            continue
        path = f"{section}.{name}" if section else name
        named: Any = Annotated[kind, arg(name=path.removeprefix("train."), prefix_name=False)]
        flags[path] = StructFieldSpec(path, named, value, texts[name])
    return flags


def _attribute_docstrings(kind: type) -> dict[str, str]:
    """The string below each attribute of a class, on one line."""
    [definition] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for attribute, below in itertools.pairwise(definition.body):
        match attribute, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts
