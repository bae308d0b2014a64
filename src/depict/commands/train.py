"""`depict train`: a model from images and masks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated

import tyro

from depict.config.schema import Config, DecoderConfig


def starting_point(arguments: list[str], otherwise: Config | None = None) -> Config:
    """The settings that flags go over: those of `--config`, with another `--decoder` in its own defaults."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config")
    early.add_argument("--decoder", "--decoder.name")
    known, _ = early.parse_known_args(arguments)
    if known.config is None:
        base = otherwise or Config()
    else:
        from depict.config.presets import load_config

        base = load_config(known.config)
    if known.decoder not in (None, base.decoder.name):
        base.decoder = DecoderConfig(known.decoder)  # the options were another decoder's
    return base


def run(arguments: list[str]) -> int:
    """Read `--config` first, because its settings are the defaults of all other flags."""
    base = starting_point(arguments)

    def main(
        out: Path,
        config: str | None = None,
        settings: Annotated[Config, tyro.conf.arg(name="")] = base,
    ) -> int:
        """Train a model into a run folder; the same command again goes on where it stopped.

        Several processes: `torchrun --nproc-per-node 2 -m depict.cli train …`, or `accelerate launch -m depict.cli …`.

        Args:
            out: The run folder.
            config: A configuration to start from: a YAML file, or the name of one that comes with depict, such as
                ade20k/depict_sa_vit_s. Flags go over it.
        """
        from depict.training.loop import train

        result = train(settings, out)
        if result is not None:
            print(result)
            print(f"run: {out}")
        return 0

    return tyro.cli(main, prog="depict train", args=arguments)
