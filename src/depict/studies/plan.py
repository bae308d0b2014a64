"""What a study is: what was asked, kept as study.yaml, and the cells that follow from it."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import yaml

from depict.config.paper import paper_rows
from depict.config.presets import merge
from depict.config.resolve import resolve
from depict.config.schema import Config, DecoderConfig
from depict.decoders import create_decoder, decoder_options
from depict.errors import UserError, unknown
from depict.io.yaml import from_dict, read_yaml, to_dict
from depict.runs import refuse_difference

STUDIES = ("ablation", "subset", "decoders")
DECODERS = {
    "ablation": (),
    "subset": ("segmenter", "depict_sa"),
    "decoders": ("linear", "segmenter", "depict_sa", "depict_ca"),
}
SIZES = {"ablation": (), "subset": ("1/8", "1/4", "1/2", "1"), "decoders": ()}
START = ("logit_gain", "step_size")
"""Options of decoders that say where training starts from: the paper's tables do not vary them."""
FILE = "study.yaml"
EVALUATION = "evaluation.json"
EVALUATION_MULTISCALE = "evaluation_multiscale.json"


@dataclass
class Study:
    """What was asked, kept as study.yaml."""

    name: str
    seeds: tuple[int, ...]
    decoders: tuple[str, ...]
    """Names, each perhaps with settings of its own: `depict_sa,lr=3e-3,decoder.layers=2`."""
    sizes: tuple[str, ...]
    """Parts of the training images up to 1, or counts above it."""
    images: int
    """Number of training images that there are."""
    settings: Config
    """What all cells share."""


@dataclass(frozen=True)
class Cell:
    """One training of a study."""

    group: str
    """The table of the results that it belongs to."""
    label: str
    """Its line there; the seeds of a line are averaged."""
    name: str
    """Its folder under `cells`. Lines of two tables may share one."""
    images: int
    config: Config

    def folder(self, out: Path) -> Path:
        """Its run folder."""
        return out / "cells" / self.name

    def finished(self, out: Path) -> bool:
        """Whether it was trained and evaluated."""
        return (self.folder(out) / EVALUATION).is_file()


def open_study(
    out: Path,
    name: str,
    settings: Config,
    seeds: tuple[int, ...] | None = None,
    decoders: tuple[str, ...] | None = None,
    sizes: tuple[str, ...] | None = None,
) -> Study:
    """The study of the folder `out`, or a new one. Lists left at None stay as they were; what is given is added."""
    before = read_study(out)
    if before is None:
        if out.is_dir() and any(path.name != ".lock" for path in out.iterdir()):
            raise UserError(f"'{out}' holds other files and no study: take an empty or a new folder for --out.")
        if name not in STUDIES:
            raise unknown("study", name, STUDIES)
        images = len(resolve(settings)[1])
        study = Study(
            name, seeds or (settings.seed,), decoders or DECODERS[name], sizes or SIZES[name], images, settings
        )
    else:
        if before.name != name:
            raise UserError(f"'{out}' holds the study '{before.name}', not '{name}': take another --out.")
        refuse_difference(out, before.settings, settings)
        study = dataclasses.replace(
            before,
            seeds=(*dict.fromkeys((*before.seeds, *(seeds or ()))),),
            decoders=(*dict.fromkeys((*before.decoders, *(decoders or ()))),),
            sizes=(*dict.fromkeys((*before.sizes, *(sizes or ()))),),
            settings=settings,
        )
    for key, known in (("decoders", DECODERS), ("sizes", SIZES)):
        if getattr(study, key) and not known[name]:
            raise UserError(f"the study '{name}' has no --{key}: leave it out.")
    plan(study)
    return study


def read_study(out: Path) -> Study | None:
    """The study of a folder, if there is one."""
    path = out / FILE
    return from_dict(Study, read_yaml(path), f"'{path}'") if path.exists() else None


def plan(study: Study) -> list[Cell]:
    """All cells, line by line; the decoder of each is known to be possible."""
    cells = []
    if study.name == "ablation":
        for group, label, decoder in _ablation_lines(study.settings.decoder):
            config = dataclasses.replace(study.settings, decoder=decoder)
            defaults = decoder_options(decoder.name)
            changed = {key: value for key, value in decoder.options().items() if value != defaults[key]}
            options = "".join(f"_{key}{value}" for key, value in changed.items())
            cells += _over_seeds(study, group, label, decoder.name + options, study.images, config)
    for text in study.decoders:
        config = variant(study.settings, text)
        if study.name == "decoders":
            cells += _over_seeds(study, "decoders", text, text, study.images, config)
        for size in study.sizes:
            count = _count(size, study.images)
            limited = dataclasses.replace(config.data, limit=count) if count < study.images else config.data
            part = dataclasses.replace(config, data=limited)
            cells += _over_seeds(study, text, f"{count}", f"{text}_{count}", count, part)
    return cells


def _ablation_lines(base: DecoderConfig) -> list[tuple[str, str, DecoderConfig]]:
    """The lines of both ablation tables of the paper; what its right table has on two backbones stands once.

    Where training starts from is as in `base`.
    """
    lines = {}
    for row in paper_rows():
        if row.table.startswith("Ablation"):
            group = "mixtures" if "left" in row.table else "heads x head dimension"
            start = {name: getattr(base, name) for name in START if name in decoder_options(row.decoder)}
            lines[group, row.label] = (group, row.label, DecoderConfig(row.decoder, **row.options, **start))
    return list(lines.values())


def variant(settings: Config, text: str) -> Config:
    """The settings with the decoder, and perhaps settings, that `text` names: `NAME[,SETTING=VALUE…]`.

    Settings are called as on the command line: `lr`, `decoder.layers`, `encoder.drop-path`.
    """
    name, *changes = text.split(",")
    over: dict[str, dict[str, Any]] = {"decoder": {"name": name}}
    for change in changes:
        key, equals, value = change.partition("=")
        section, _, field = key.strip().replace("-", "_").rpartition(".")
        try:
            over.setdefault(section or "train", {})[field] = yaml.safe_load(value)
        except yaml.YAMLError:
            equals = ""
        if field in ("precision", "device"):
            raise UserError(f"'{text}': the {field} is one for the whole study: give it as --{field}.")
        if not equals:
            raise UserError(f"'{text}': '{change}' is not SETTING=VALUE, such as lr=3e-3 or decoder.layers=2.")
    return from_dict(Config, merge(to_dict(settings), over), f"'{text}'")


def _over_seeds(study: Study, group: str, label: str, name: str, images: int, config: Config) -> list[Cell]:
    decoder = config.decoder
    with torch.device("meta"):
        create_decoder(decoder.name, 64, 2, **decoder.options())  # raises for what no decoder can be
    stem = re.sub(r"[^\w.=-]+", "_", name)
    return [
        Cell(group, label, f"{stem}_seed{seed}", images, dataclasses.replace(config, seed=seed)) for seed in study.seeds
    ]


def _count(size: str, images: int) -> int:
    """How many images a size is: a part of all up to 1, a count above it."""
    try:
        value = Fraction(size)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    count = int(value * images + Fraction(1, 2)) if value <= 1 else int(value)
    if value <= 0 or not 1 <= count <= images:
        raise UserError(
            f"--sizes: '{size}' is neither a part such as 1/4 nor a count up to the {images} training images."
        )
    return count
