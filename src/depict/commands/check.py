"""`depict check`: what is wrong with a data set, before a training finds out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

FEW = 1000
"""Samples up to which starting other processes takes longer than reading."""


def main(
    data: str,
    root: Path | None = None,
    split: Literal["both", "train", "val"] = "both",
    json: Path | None = None,
    show: Path | None = None,
    workers: int | None = None,
) -> int:
    """Read a whole data set and report missing and extra files, wrong sizes, unreadable files, wrong labels, and how
    often each class occurs. Exit code 0: ready for training; 1: training would fail.

    Args:
        data: Name of the data set: scenes, folder, ade20k, cityscapes, pascal_context, pascal_context_59 or camvid.
        root: Folder in which it lies.
        split: Part to read.
        json: Also write the report to this file, every problem included.
        show: Also draw samples with their masks and a legend to this PNG, augmented as in training: training images, or
            validation images with --split val.
        workers: Processes that read; by default one per core, or none for few images.
    """
    from depict.data import create_dataset
    from depict.data.check import check_dataset
    from depict.errors import UserError
    from depict.io.files import write_json

    if show and show.suffix.lower() != ".png":
        raise UserError(f"--show writes a PNG: '{show}' must end in .png.")
    if workers is not None and workers < 0:
        raise UserError(f"--workers must be at least 0, not {workers}.")
    datasets = [create_dataset(data, root, part) for part in (("train", "val") if split == "both" else (split,))]
    reports = []
    for dataset in datasets:
        count = (os.cpu_count() or 1) if len(dataset) > FEW else 0
        reports.append(check_dataset(dataset, count if workers is None else workers, progress=True))
        print(reports[-1])
    trainable = all(report.trainable for report in reports)
    if json:
        write_json(json, {"trainable": trainable, "splits": [report.to_dict() for report in reports]})
        print(f"report: {json}")
    if show and trainable:
        from depict.viz.samples import draw_samples

        draw_samples(datasets[0], show)
        print(f"samples: {show}")
    elif show:
        print(f"no picture drawn to {show}: mend the data set first")
    return 0 if trainable else 1
