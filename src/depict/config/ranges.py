"""The values that every numeric setting may take: one table for flags, YAML files and Python."""

from __future__ import annotations

import math
from dataclasses import dataclass

from depict.config.schema import Config
from depict.errors import UserError


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`; an open end is excluded."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below and abs(value) < math.inf  # all of them false for nan

    def __str__(self) -> str:
        ends = []
        if self.low > -math.inf:
            ends.append(f"{'above' if self.open_low else 'at least'} {self.low}")
        if self.high < math.inf:
            ends.append(f"{'below' if self.open_high else 'at most'} {self.high}")
        return " and ".join(ends) or "a finite number"


FINITE = Range()
POSITIVE = Range(0, open_low=True)
NOT_NEGATIVE = Range(0)
ONE_OR_MORE = Range(1)
DROP = Range(0, 1, open_high=True)
SHARE = Range(0, 1, open_low=True)

RANGES = {
    "encoder.drop_path": DROP,
    "encoder.patch_size": ONE_OR_MORE,
    "encoder.dim": ONE_OR_MORE,
    "encoder.depth": ONE_OR_MORE,
    "encoder.blocks": NOT_NEGATIVE,
    "neck.dim": ONE_OR_MORE,
    "decoder.layers": ONE_OR_MORE,
    "decoder.heads": ONE_OR_MORE,
    "decoder.head_dim": ONE_OR_MORE,
    "decoder.cross_layers": ONE_OR_MORE,
    "decoder.cross_heads": ONE_OR_MORE,
    "decoder.cross_head_dim": ONE_OR_MORE,
    "decoder.width": ONE_OR_MORE,
    "decoder.dropout": DROP,
    "decoder.directions": ONE_OR_MORE,
    "decoder.logit_gain": FINITE,
    "decoder.step_size": FINITE,
    "data.short_edge": ONE_OR_MORE,
    "data.max_aspect": ONE_OR_MORE,
    "data.scale_range": POSITIVE,
    "data.every": ONE_OR_MORE,
    "data.limit": ONE_OR_MORE,
    "data.holdout": Range(0, 1, open_low=True, open_high=True),
    "data.workers": NOT_NEGATIVE,
    "train.epochs": ONE_OR_MORE,
    "train.batch": ONE_OR_MORE,
    "train.lr": POSITIVE,
    "train.weight_decay": NOT_NEGATIVE,
    "train.warmup": NOT_NEGATIVE,
    "train.layer_decay": SHARE,
    "train.clip_grad": POSITIVE,
    "train.grad_accum": ONE_OR_MORE,
    "train.ema": SHARE,
    "train.cache_crop": SHARE,
    "train.validate_every": ONE_OR_MORE,
    "train.save_every": ONE_OR_MORE,
    "train.patience": ONE_OR_MORE,
    "image_size": ONE_OR_MORE,
    "stride": ONE_OR_MORE,
    "seed": Range(0, 2**64 - 1),
}
"""Settings by their place in `Config`; of a pair, each number."""


def check_ranges(config: Config) -> None:
    """Refuse the first number that is out of its range; settings left at None are not looked at."""
    for name, allowed in RANGES.items():
        section, _, key = name.rpartition(".")
        value = getattr(getattr(config, section) if section else config, key)
        numbers = value if isinstance(value, tuple | list) else (value,)
        if any(number is not None and number not in allowed for number in numbers):
            raise UserError(f"{flag(name)} must be {allowed}, not {value}.")


def flag(name: str) -> str:
    """The command line flag of a setting: those of `train` have no prefix."""
    return "--" + name.removeprefix("train.").replace("_", "-")
