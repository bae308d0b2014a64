"""`depict analyze`: what trained models do inside, as data, pictures and one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from depict.config.flags import DataName, DataRoot, Device, Folder, RunNames, check_folder, flag
from depict.config.ranges import COUNT, check_numbers
from depict.errors import UserError
from depict.terminal import say

if TYPE_CHECKING:
    from depict.analysis.base import Analysis
    from depict.analysis.report import RunReport
    from depict.analysis.runner import Pictures
    from depict.data.dataset import Dataset
    from depict.model import SegmentationModel


def main(
    runs: RunNames,
    out: Folder,
    data: DataName = None,
    root: DataRoot = None,
    pictures: Annotated[Path | None, flag("the data set", "DIR")] = None,
    images: int = 100,
    only: Annotated[str | None, flag("all", "NAMES")] = None,
    overwrite: bool = False,
    device: Device = None,
) -> int:
    """Analyze trained models: every figure of the paper, as data, pictures and HTML.

    All analyses share one pass over the images, which are not cut into windows. The report shows several
    runs side by side. If an analysis fails, it is named, the others continue, and the exit code is 1.

    Examples:
        depict analyze runs/mine --out inside
        depict analyze runs/sa runs/ca --out inside --only principal,low_rank
        depict analyze runs/mine --out inside --pictures holiday

    Args:
        runs: Run folders, shipped models, or hf-hub:user/name.
        out: Folder for report.html and, for each run, RUN/ANALYSIS.json, RUN/ANALYSIS_TABLE.csv and
            RUN/ANALYSIS_FIGURE.png and .svg. Other files in it are not touched.
        data: Data set whose validation images are used.
        root: Its folder.
        pictures: Use the pictures in this folder instead. Without ground truth some analyses have fewer numbers.
        images: Largest number of images, evenly spaced.
        only: Analyses to run, such as principal,low_rank. All: principal, orthogonality, class_embeddings,
            coding_rates, low_rank, perturbation, derivation, gradient_terms,
            class_directions, queries, levels.
        overwrite: Replace an existing report.
        device: cpu, cuda, cuda:1 or mps.
    """
    if not runs:
        raise UserError("no runs were given: name their folders, or hf-hub:user/name.")
    check_folder(out)
    check_numbers(COUNT, images=images)
    if pictures is not None and (data is not None or root is not None):
        raise UserError("give --pictures DIR, or --data NAME and --root DIR, not both.")

    import depict
    from depict.analysis.report import REPORT, write_report
    from depict.analysis.runner import choose_analyses
    from depict.decoders import need_steps
    from depict.devices import find_device
    from depict.io.hub import short_names
    from depict.runs import stamp

    analyses = choose_analyses(only)
    names = short_names(runs)
    if (out / REPORT).exists() and not overwrite:
        raise UserError(f"'{out}' already has a {REPORT}: choose another --out, or add --overwrite.")
    if pictures is not None:
        refuse_mixing(pictures, out, names)
    target = find_device(device)
    # Load everything first, so that an error in the last name is reported before the work on the others.
    models = [depict.load(run) for run in runs]
    for model, run in zip(models, runs, strict=True):
        need_steps(model.config.decoder.name, run)
    sources = [open_images(model, run, data, root, pictures, out) for model, run in zip(models, runs, strict=True)]
    out.mkdir(parents=True, exist_ok=True)

    reports = []
    for run, name, model, source in zip(runs, names, models, sources, strict=True):
        reports.append(analyze_run(run, model.to(target), source, images, analyses, out / name))
        model.cpu()
    path = write_report(out, reports, stamp(0))

    failed = [(report.name, section) for report in reports for section in report.sections if section.error]
    for name, section in failed:
        say(f"depict: {name}: {section.name} failed: {section.error}", error=True)
    for report in reports:
        seconds = report.seconds + sum(section.seconds for section in report.sections)
        count = f"{len(analyses)} {'analysis' if len(analyses) == 1 else 'analyses'}"
        say(f"{report.name}: {count} of {report.images} images in {seconds:.1f} s")
    say(f"written: {path}")
    return 1 if failed else 0


def analyze_run(
    run: str,
    model: SegmentationModel,
    source: Dataset | Pictures,
    images: int,
    analyses: Sequence[type[Analysis]],
    folder: Path,
) -> RunReport:
    """Analyze one run, write its data and figures to `folder`, and return its part of the report."""
    from depict.analysis.report import RunReport, describe, present, write_sections
    from depict.analysis.runner import evenly_spaced, run_analyses
    from depict.io.hub import PREFIX, local_run

    trained = None if run.startswith(PREFIX) else local_run(run)  # `folder` may get the name of a shipped model
    indices = evenly_spaced(len(source), images)
    done = run_analyses(model, source, indices, analyses, folder.name, progress=True)
    sections = [present(outcome) for outcome in done.outcomes]
    split = getattr(source, "split", None)
    about = {"run": run, "images": {"data": source.name, "split": split, "seen": done.images, "of": len(source)}}
    write_sections(folder, about, sections)
    shown = f"{done.images} of {len(source)}, {source.name}{f' ({split})' if split else ''}"
    facts = describe(model, run, trained, shown)
    return RunReport(folder.name, facts, sections, done.images, done.seconds)


def refuse_mixing(pictures: Path, out: Path, names: Sequence[str]) -> None:
    """Refuse to write figures among the pictures, where the next report would read them.

    An output folder inside that of the pictures is fine: it is skipped when pictures are listed.
    """
    source = pictures.resolve()
    if source == out.resolve() or any(source.is_relative_to((out / name).resolve()) for name in names):
        raise UserError(f"--out '{out}' would put figures among the pictures in '{pictures}': choose another folder.")


def open_images(
    model: SegmentationModel, run: str, data: str | None, root: Path | None, pictures: Path | None, out: Path
) -> Dataset | Pictures:
    """The images to analyze; never files in the folder `out`."""
    from depict.runs import dataset_of

    if pictures is not None:
        from depict.analysis.runner import Pictures
        from depict.segment.inputs import find_inputs

        if not pictures.is_dir():
            raise UserError(f"--pictures must be a folder, and '{pictures}' is not one.")
        return Pictures(find_inputs([str(pictures.resolve())], out.resolve())[0])
    dataset = dataset_of(model, data, root)
    if len(dataset.classes) != model.num_classes:
        raise UserError(
            f"'{run}' has {model.num_classes} classes, '{dataset.name}' has {len(dataset.classes)}: "
            "give the data set that the run was trained on."
        )
    return dataset
