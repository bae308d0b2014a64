"""A study: its settings, kept as study.yaml, and the cells (trainings) that follow from them."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml

from depict.config.paper import paper_rows
from depict.config.presets import merge
from depict.config.resolve import resolve
from depict.config.schema import Config, DecoderConfig
from depict.decoders import create_decoder, decoder_options, level_decoder
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
INITIALIZATION = ("logit_gain", "step_size")
"""Options of decoders that only set initial values: the paper's tables do not vary them."""
FILE = "study.yaml"
EVALUATION = "evaluation.json"
EVALUATION_MULTISCALE = "evaluation_multiscale.json"
T = TypeVar("T")


@dataclass
class Study:
    """The settings of a study, kept as study.yaml."""

    name: str
    seeds: tuple[int, ...]
    decoders: tuple[str, ...]
    """Names, optionally with settings of their own: `depict_sa,lr=3e-3,decoder.layers=2`."""
    sizes: tuple[str, ...]
    """Fractions of the training images up to 1, or counts above 1."""
    images: int
    """Number of training images in the data set."""
    settings: Config
    """Settings that all cells share."""


@dataclass(frozen=True)
class Cell:
    """One training of a study."""

    group: str
    """The table that it belongs to."""
    label: str
    """Its line in that table; the seeds of a line are averaged."""
    name: str
    """Its folder in `cells`. Lines of two tables may share a cell."""
    images: int
    config: Config

    def folder(self, out: Path) -> Path:
        """The run folder."""
        return out / "cells" / self.name

    def finished(self, out: Path) -> bool:
        """Whether the cell is trained and evaluated."""
        return (self.folder(out) / EVALUATION).is_file()


def open_study(
    out: Path,
    name: str,
    settings: Config,
    seeds: tuple[int, ...] | None = None,
    decoders: tuple[str, ...] | None = None,
    sizes: tuple[str, ...] | None = None,
) -> Study:
    """Open the study in the folder `out`, or plan a new one. Seeds, decoders and sizes are added to those it has."""
    before = read_study(out)
    if before is None:
        if out.is_dir() and any(path.name != ".lock" for path in out.iterdir()):
            raise UserError(f"'{out}' holds other files and no study: choose an empty or a new folder for --out.")
        if name not in STUDIES:
            raise unknown("study", name, STUDIES)
        images = len(resolve(settings).training)
        study = Study(
            name, seeds or (settings.seed,), decoders or DECODERS[name], sizes or SIZES[name], images, settings
        )
    else:
        if before.name != name:
            raise UserError(f"'{out}' holds the study '{before.name}', not '{name}': choose another --out.")
        refuse_difference(out, before.settings, settings)
        study = dataclasses.replace(
            before,
            seeds=_union(before.seeds, seeds),
            decoders=_union(before.decoders, decoders),
            sizes=_union(before.sizes, sizes),
            settings=settings,
        )
    for key, known in (("decoders", DECODERS), ("sizes", SIZES)):
        if getattr(study, key) and not known[name]:
            raise UserError(f"the study '{name}' has no --{key}: leave it out.")
    plan(study)  # raises if a decoder or a size is wrong
    return study


def read_study(out: Path) -> Study | None:
    """The study of a folder, if there is one."""
    path = out / FILE
    return from_dict(Study, read_yaml(path), f"'{path}'") if path.exists() else None


def plan(study: Study) -> list[Cell]:
    """All cells, line by line; raises if one of their decoders cannot be built."""
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
            images = min(study.images, config.data.limit or study.images)
            cells += _over_seeds(study, "decoders", text, text, images, config)
        for size in study.sizes:
            count = _count(size, study.images)
            limited = dataclasses.replace(config.data, limit=count) if count < study.images else config.data
            part = dataclasses.replace(config, data=limited)
            cells += _over_seeds(study, text, f"{count}", f"{text}_{count}", count, part)
    return cells


def distinct_cells(study: Study) -> list[Cell]:
    """The cells to train: one that two tables share comes once."""
    return list({cell.name: cell for cell in plan(study)}.values())


def _union(before: tuple[T, ...], more: tuple[T, ...] | None) -> tuple[T, ...]:
    """What was there before, then what is new."""
    return tuple(dict.fromkeys((*before, *(more or ()))))


def _ablation_lines(base: DecoderConfig) -> list[tuple[str, str, DecoderConfig]]:
    """Group, label and decoder of each line in the paper's two ablation tables.

    A line that the right table has for two backbones comes once. Initial values are those of `base`.
    """
    lines = {}
    for row in paper_rows():
        if row.table.startswith("Ablation"):
            group = "mixtures" if "left" in row.table else "heads x head dimension"
            initial = {name: getattr(base, name) for name in INITIALIZATION if name in decoder_options(row.decoder)}
            lines[group, row.label] = (group, row.label, DecoderConfig(row.decoder, **row.options, **initial))
    return list(lines.values())


def variant(settings: Config, text: str) -> Config:
    """The settings changed to the decoder and settings in `text`: `NAME[,SETTING=VALUE…]`.

    Settings have the names of the command line: `lr`, `stride`, `decoder.layers`, `encoder.drop-path`.
    """
    name, *changes = text.split(",")
    over: dict[str, Any] = {"decoder": {"name": name}}
    for change in changes:
        key, equals, value = change.partition("=")
        section, _, field = key.strip().replace("-", "_").rpartition(".")
        try:
            if not section and field in ("stride", "image_size"):
                over[field] = yaml.safe_load(value)
            else:
                over.setdefault(section or "train", {})[field] = yaml.safe_load(value)
        except yaml.YAMLError:
            equals = ""
        if field in ("precision", "device"):
            raise UserError(f"'{text}': the {field} must be the same for the whole study: give it as --{field}.")
        if not equals:
            raise UserError(f"'{text}': '{change}' is not SETTING=VALUE, such as lr=3e-3 or decoder.layers=2.")
    return from_dict(Config, merge(to_dict(settings), over), f"'{text}'")


def _over_seeds(study: Study, group: str, label: str, name: str, images: int, config: Config) -> list[Cell]:
    """One cell for each seed of the study."""
    decoder = config.decoder
    with torch.device("meta"):
        if not level_decoder(decoder.name):  # whose levels depend on the encoder
            create_decoder(decoder.name, 64, 2, **decoder.options())  # raises if an option is wrong
    stem = re.sub(r"[^\w.=-]+", "_", name)
    return [
        Cell(group, label, f"{stem}_seed{seed}", images, dataclasses.replace(config, seed=seed)) for seed in study.seeds
    ]


def _count(size: str, images: int) -> int:
    """The number of images of a size: a fraction of all up to 1, a count above 1."""
    try:
        value = Fraction(size)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    count = int(value * images + Fraction(1, 2)) if value <= 1 else int(value)
    if value <= 0 or not 1 <= count <= images:
        raise UserError(
            f"--sizes: '{size}' is neither a fraction such as 1/4 nor a count up to the {images} training images."
        )
    return count
