"""`depict study`: the paper's tables, and others of their kind, on any data set and encoder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from depict.commands.train import starting_point
from depict.config.schema import Config

if TYPE_CHECKING:
    from depict.studies.running import Planned


def run(arguments: list[str]) -> int:
    """Read `--config`, or the study that is in `--out`, first: its settings are the defaults of all other flags."""
    if arguments[:1] == ["perturbation"]:
        return tyro.cli(perturbation, prog="depict study perturbation", args=arguments[1:])
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--out", type=Path)
    known, _ = early.parse_known_args(arguments)
    before = None
    if known.out is not None and known.out.is_dir():
        from depict.studies.plan import read_study

        before = read_study(known.out)
    base = starting_point(arguments, before.settings if before else None)

    def main(
        study: tyro.conf.Positional[Literal["ablation", "subset", "decoders"]],
        out: Path,
        seeds: tuple[int, ...] | None = None,
        decoders: tuple[str, ...] | None = None,
        sizes: tuple[str, ...] | None = None,
        multiscale: bool = False,
        dry_run: bool = False,
        redraw: bool = False,
        config: str | None = None,
        settings: Annotated[Config, tyro.conf.arg(name="")] = base,
    ) -> int:
        """Train and evaluate a sweep of models into a table and a picture; the same command does what is missing.

        ablation: the lines of the paper's two ablation tables. subset: decoders on parts of the training images.
        decoders: any decoders. All of them over any seeds, with the settings of a training. Each training is a run in
        OUT/cells; results.json, results.md, results.png and results.svg are written after each. A study may grow: name
        more seeds, decoders or sizes. Its settings may be left out in later calls.

        There is a fourth study, of trained runs under perturbation: see `depict study perturbation --help`.

        Args:
            study: The kind of study.
            out: Its folder.
            seeds: Seeds of each line; by default --seed.
            decoders: Decoders to compare, each perhaps with settings of its own: depict_sa,lr=3e-3,decoder.layers=2. By
                default linear, segmenter, depict_sa and depict_ca; for subset segmenter and depict_sa.
            sizes: Parts of the training images up to 1, or counts above it, for subset; by default 1/8 1/4 1/2 1.
            multiscale: Evaluate the best cell at several scales, too.
            dry_run: Show what would be trained and how long it would take, about.
            redraw: Write tables and pictures anew from the results that are kept, without training or data.
            config: A configuration to start from, as for `depict train`.
        """
        from depict.errors import UserError
        from depict.studies import plan, results, running

        if redraw:
            kept = plan.read_study(out)
            if kept is None or kept.name != study:
                raise UserError(
                    f"there is no study '{study}' in '{out}' to redraw: it has no {plan.FILE} of that name."
                )
            print(results.write_results(kept, out))
            return 0
        asked = plan.open_study(out, study, settings, seeds, decoders, sizes)
        if dry_run:
            print(_forecast(running.forecast(asked, out)))
            return 0
        running.run(asked, out, multiscale)
        print((out / "results.md").read_text(encoding="utf-8"))
        print(f"written: {out / 'results.md'}, .json, .png and .svg")
        return 0

    return tyro.cli(main, prog="depict study", args=arguments)


def perturbation(
    runs: tyro.conf.Positional[tuple[str, ...]] = (),
    *,
    out: Path,
    seeds: tuple[int, ...] | None = None,
    sigmas: tuple[float, ...] | None = None,
    data: str | None = None,
    root: Path | None = None,
    limit: int | None = None,
    device: str | None = None,
) -> int:
    """Perturb the decoders of trained runs and evaluate them: the paper's robustness table and curve.

    The four perturbations are P O_K, P'_h O_M (an identity), Ortho(P'_h), and noise on every parameter of the decoder
    with sigma read as variance and as standard deviation. Runs are read and never changed. results.md, .json, .csv,
    .png and .svg are written after each run; the same command does what is missing, and more runs may be named.

    Args:
        runs: Folders of runs, or hf-hub:user/name; in later calls only those to add.
        out: Folder of the study.
        seeds: Seeds of the perturbations; by default 0 1 2.
        sigmas: Levels of noise; by default 1e-4 1e-3 1e-2 1e-1.
        data: Data set whose validation images are segmented; by default the one that the first run was trained on.
        root: Folder in which it lies; by default that of each run's training.
        limit: Use so many of the images only, the same for all runs.
        device: Where to compute, such as cpu, cuda or cuda:1; by default a GPU if there is one.
    """
    from depict.devices import find_device
    from depict.studies import perturbation as study

    asked = study.open_study(out, runs, data, root, limit, seeds, sigmas)
    print(study.run(asked, out, find_device(device)))
    print(f"written: {out / 'results.md'}, .json, .csv, .png and .svg")
    return 0


def _forecast(planned: list[Planned]) -> str:
    """The planned runs as text, and the time that is left."""
    from depict.studies.results import duration

    rows: list[tuple[str, ...]] = [("cell", "decoder", "seed", "images", "epochs", "steps", "time left")]
    for one in planned:
        config = one.cell.config
        time = duration(one.seconds) if one.seconds else "finished"
        numbers = (config.seed, one.cell.images, one.epochs, one.steps)
        rows.append((one.cell.name, config.decoder.name, *map(str, numbers), time))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    missing = sum(one.seconds > 0 for one in planned)
    total = duration(sum(one.seconds for one in planned))
    lines.append(f"\n{missing} of {len(planned)} cells to do, about {total} on this machine as it is now;")
    lines.append("waiting for images to be read, and encoding them once for --cache-features, come on top.")
    return "\n".join(lines)
