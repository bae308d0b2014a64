"""The values that every numeric setting may take: one table for flags, YAML files and Python.

Upper bounds are far above any sensible value. They catch typos and untrusted files before memory is spent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from depict.config.schema import Config
from depict.errors import UserError


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; an open end is excluded."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False
    whole: bool = False

    def problem(self, value: Any) -> str | None:
        """What `value` must be instead; None if it is in the range."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float) or value != value:
            return "a whole number" if self.whole else "a number"
        if value < self.low or (self.open_low and value == self.low):
            return f"{'above' if self.open_low else 'at least'} {self._text(self.low)}"
        if value > self.high or (self.open_high and value == self.high):
            return f"{'below' if self.open_high else 'at most'} {self._text(self.high)}"
        return None

    def _text(self, end: float) -> str:
        return str(end) if self.whole else f"{end:g}"


def whole(low: int, high: int) -> Range:
    """Integers from `low` to `high`."""
    return Range(low, high, whole=True)


DROP = Range(0, 1, open_high=True)
SHARE = Range(0, 1, open_low=True)
SIZE, LAYERS, COUNT = whole(1, 1 << 14), whole(1, 256), whole(1, 1 << 31)
"""Of a tensor in one direction; of a network; of steps, images and the like."""
GAIN = Range(-1e4, 1e4)

RANGES = {
    "encoder.drop_path": DROP,
    "encoder.patch_size": whole(1, 1024),
    "encoder.dim": SIZE,
    "encoder.depth": LAYERS,
    "encoder.blocks": whole(0, 255),
    "neck.dim": SIZE,
    "decoder.layers": LAYERS,
    "decoder.heads": whole(1, 1024),
    "decoder.head_dim": SIZE,
    "decoder.cross_layers": LAYERS,
    "decoder.cross_heads": whole(1, 1024),
    "decoder.cross_head_dim": SIZE,
    "decoder.queries": whole(1, 1 << 12),
    "decoder.width": SIZE,
    "decoder.dropout": DROP,
    "decoder.directions": whole(1, 1024),
    "decoder.logit_gain": GAIN,
    "decoder.step_size": GAIN,
    "data.short_edge": whole(1, 1 << 16),
    "data.max_aspect": Range(1, 1000),
    "data.scale_range": Range(0.01, 100),
    "data.every": COUNT,
    "data.limit": COUNT,
    "data.holdout": Range(0, 1, open_low=True, open_high=True),
    "data.workers": whole(0, 1024),
    "train.epochs": whole(1, 1_000_000),
    "train.batch": whole(1, 1 << 20),
    "train.lr": Range(0, 1e4, open_low=True),
    "train.weight_decay": Range(0, 1e4),
    "train.warmup": whole(0, 1 << 31),
    "train.layer_decay": SHARE,
    "train.clip_grad": Range(0, 1e9, open_low=True),
    "train.grad_accum": whole(1, 1 << 20),
    "train.ema": SHARE,
    "train.loss_every": whole(1, 64),
    "train.cache_crop": SHARE,
    "train.validate_every": COUNT,
    "train.save_every": COUNT,
    "train.patience": COUNT,
    "image_size": SIZE,
    "stride": whole(1, 1024),
    "seed": whole(0, 2**32 - 1),
}
"""Settings by their place in `Config`; of a pair, each number."""


def check_ranges(config: Config, where: str | None = None) -> None:
    """Refuse the first number that is out of its range; settings left at None are not looked at.

    The error names the flag, or the setting in the file `where`.
    """
    for name, allowed in RANGES.items():
        section, _, key = name.rpartition(".")
        value = getattr(getattr(config, section) if section else config, key)
        for number in value if isinstance(value, tuple | list) else (value,):
            if number is not None and (problem := allowed.problem(number)):
                setting = flag(name) if where is None else f"{where}, {name}"
                raise UserError(f"{setting} must be {problem}, not {str(value)[:60]}.")


def check_numbers(allowed: Range, **numbers: float | None) -> None:
    """Refuse numbers of a command that are out of range, by their flags; None is not checked."""
    for name, number in numbers.items():
        if number is not None and (problem := allowed.problem(number)):
            raise UserError(f"{flag(name)} must be {problem}, not {number}.")


def flag(name: str) -> str:
    """The command line flag of a setting: those of `train` have no prefix."""
    return "--" + name.removeprefix("train.").replace("_", "-")
