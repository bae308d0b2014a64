"""`depict study`: the paper's tables, and similar sweeps, on any data set and encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

from tyro.conf import Positional, arg

from depict.commands.settings import base_config, value_of
from depict.config.flags import Device, Folder, check_folder, flag, parse_and_call, positional
from depict.config.schema import Config
from depict.errors import UserError, unknown
from depict.terminal import say, say_text

Study = Literal["ablation", "subset", "decoders"]
DECODERS = "linear segmenter depict_sa depict_ca; for subset segmenter depict_sa"


def run(arguments: list[str]) -> int:
    """Read `--config`, or the study in `--out`, first: its settings are the defaults of all other flags."""
    if arguments[:1] == ["perturbation"]:
        return parse_and_call(perturbation, "depict study perturbation", arguments[1:])
    if arguments and not arguments[0].startswith("-") and arguments[0] not in get_args(Study):
        raise unknown("study", arguments[0], (*get_args(Study), "perturbation"))
    folder = value_of("--out", arguments)
    before = None
    if folder is not None and Path(folder).is_dir():
        from depict.studies.plan import read_study

        before = read_study(Path(folder))
    base = base_config(arguments, before.settings if before else None)

    def main(
        study: Annotated[Positional[Study], positional("STUDY")],
        out: Folder,
        seeds: Annotated[tuple[int, ...] | None, flag("the value of --seed", "INT...")] = None,
        decoders: Annotated[tuple[str, ...] | None, flag(DECODERS, "NAME...")] = None,
        sizes: Annotated[tuple[str, ...] | None, flag("1/8 1/4 1/2 1", "SIZE...")] = None,
        multiscale: bool = False,
        dry_run: bool = False,
        redraw: bool = False,
        config: Annotated[str | None, flag("none", "NAME|FILE")] = None,
        settings: Annotated[Config, arg(name="")] = base,
    ) -> int:
        """Train and evaluate a sweep of models into a table and a figure.

        Run the same command again to train what is missing. Name more seeds, decoders or sizes to extend a
        study; other settings can be left out then. Each training is a run in OUT/cells. results.json, .md,
        .png and .svg are updated after each. The flags of `depict train` apply to all trainings.

        The study `perturbation` evaluates trained runs under noise: see `depict study perturbation --help`.

        Examples:
            depict study decoders --out DIR --data folder --root photos --seeds 0 1 2
            depict study subset --out DIR --data folder --root photos --dry-run
            depict study ablation --out DIR --config ade20k/depict_sa_vit_s --root data

        Args:
            study: ablation (the rows of the paper's two ablation tables), subset (decoders on parts of the training
                images) or decoders (any decoders).
            out: Folder of the study.
            seeds: Seeds of each row.
            decoders: Decoders to compare, optionally with settings: depict_sa,lr=3e-3,decoder.layers=2.
            sizes: subset: fractions (up to 1) or numbers of training images.
            multiscale: Also evaluate the best row at several scales.
            dry_run: Print what would be trained, with an estimate of the time.
            redraw: Write the tables and figures again from the stored results, without training or data.
            config: Settings to start from, as for `depict train`.
        """
        from depict.studies import forecast, plan, results, running

        check_folder(out)
        if redraw:
            kept = plan.read_study(out)
            if kept is None or kept.name != study:
                raise UserError(f"no study '{study}' to redraw in '{out}': {plan.FILE} is missing or of another study.")
            say_text(results.write_results(kept, out))
            return 0
        planned = plan.open_study(out, study, settings, seeds, decoders, sizes)
        if dry_run:
            say_text(forecast.forecast_text(forecast.forecast(planned, out)))
            return 0
        running.run(planned, out, multiscale)
        say_text((out / "results.md").read_text(encoding="utf-8"))
        say(f"written: {out / 'results.md'}, .json, .png and .svg")
        return 0

    return parse_and_call(main, "depict study", arguments)


def perturbation(
    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN...", help_behavior_hint="")] = (),
    *,
    out: Folder,
    seeds: Annotated[tuple[int, ...] | None, flag("0 1 2", "INT...")] = None,
    sigmas: Annotated[tuple[float, ...] | None, flag("1e-4 1e-3 1e-2 1e-1", "FLOAT...")] = None,
    data: Annotated[str | None, flag("that of the first run", "NAME")] = None,
    root: Annotated[Path | None, flag("that of each run", "DIR")] = None,
    limit: Annotated[int | None, flag("all")] = None,
    device: Device = None,
) -> int:
    """Evaluate trained runs with perturbed decoders: the paper's robustness table.

    The four perturbations are P O_K, P'_h O_M (an identity), Ortho(P'_h), and noise on every parameter of
    the decoder, with sigma as variance and as standard deviation. Runs are not modified. results.md,
    .json, .csv, .png and .svg are updated after each run. Run the same command again to do what is
    missing, or name more runs.

    Examples:
        depict study perturbation runs/depict_sa runs/segmenter --out DIR

    Args:
        runs: Run folders, shipped models, or hf-hub:user/name. In later calls only those to add.
        out: Folder of the study.
        seeds: Seeds of the perturbations.
        sigmas: Noise levels.
        data: Data set with the validation images.
        root: Its folder.
        limit: Use this many of the images, the same for all runs.
        device: cpu, cuda, cuda:1 or mps.
    """
    from depict.devices import find_device
    from depict.studies import perturbation as study

    check_folder(out)
    opened = study.open_study(out, runs, data, root, limit, seeds, sigmas)
    say_text(study.run(opened, out, find_device(device)))
    say(f"written: {out / 'results.md'}, .json, .csv, .png and .svg")
    return 0
