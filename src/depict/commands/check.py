"""`depict check`: problems of a data set, before training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from depict.config.flags import check_at_least, check_file, flag
from depict.terminal import say

FEW = 1000
"""Up to this many samples, starting worker processes takes longer than reading in one."""


def main(
    data: Annotated[str, flag(metavar="NAME")],
    root: Annotated[Path | None, flag("none", "DIR")] = None,
    split: Literal["both", "train", "val", "test"] = "both",
    json: Annotated[Path | None, flag("not written", "FILE")] = None,
    show: Annotated[Path | None, flag("not drawn", "FILE.png")] = None,
    workers: Annotated[int | None, flag("one per core, or 0 for few images")] = None,
) -> int:
    """Find problems in a data set before training.

    Reads every image and mask. Reports missing and extra files, wrong sizes, unreadable files, wrong
    labels, and how often each class occurs. The exit code is 0 if training can start, 1 if it would fail.

    Examples:
        depict check --data folder --root photos
        depict check --data ade20k --root datasets --show samples.png

    Args:
        data: Data set: scenes, folder, ade20k, cityscapes, pascal_context, pascal_context_59 or camvid.
        root: Folder of the data set (scenes are generated and need none).
        split: Split to read; both means train and val.
        json: Also write the report with every problem to this file.
        show: Also draw samples with their masks and a legend, augmented as in training: training images, or those
            of --split.
        workers: Processes that read.
    """
    from depict.data import create_dataset
    from depict.data.check import check_dataset
    from depict.io.files import write_json

    check_file(show, ".png", "--show")
    check_at_least(0, workers=workers)
    datasets = [create_dataset(data, root, part) for part in (("train", "val") if split == "both" else (split,))]
    reports = []
    for dataset in datasets:
        count = (os.cpu_count() or 1) if len(dataset) > FEW else 0
        reports.append(check_dataset(dataset, count if workers is None else workers, progress=True))
        say(*reports[-1].lines())
    usable = all(report.usable for report in reports)
    if json:
        write_json(json, {"usable": usable, "splits": [report.to_dict() for report in reports]})
        say(f"report: {json}")
    if show and usable:
        from depict.viz.samples import draw_samples

        draw_samples(datasets[0], show)
        say(f"samples: {show}")
    elif show:
        say(f"no picture written to {show}: fix the data set first")
    return 0 if usable else 1
