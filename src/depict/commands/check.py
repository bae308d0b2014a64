"""`depict check`: problems of a data set, before training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from depict.config.flags import check_file, flag, keep_inputs
from depict.config.ranges import RANGES, check_numbers
from depict.config.schema import RECIPE, Config, DataConfig
from depict.terminal import say

if TYPE_CHECKING:
    from depict.data.dataset import Recipe
    from depict.data.transforms import Augmentation

FEW = 1000
"""Up to this many samples, starting worker processes takes longer than reading in one."""


def main(
    data: Annotated[str, flag(metavar="NAME")],
    root: Annotated[Path | None, flag("none", "DIR")] = None,
    split: Literal["both", "train", "val", "test"] = "both",
    json: Annotated[Path | None, flag("not written", "FILE.json")] = None,
    show: Annotated[Path | None, flag("not drawn", "FILE.png")] = None,
    augment: bool = True,
    image_size: Annotated[int | tuple[int, int] | None, flag("the data set's crop", "INT [INT]")] = None,
    short_edge: Annotated[int | None, RECIPE, arg(name="data.short-edge")] = None,
    max_aspect: Annotated[float | None, RECIPE, arg(name="data.max-aspect")] = None,
    scale_range: Annotated[tuple[float, float], flag(metavar="MIN MAX"), arg(name="data.scale-range")] = (0.5, 2.0),
    color_jitter: Annotated[bool, arg(name="data.color-jitter")] = True,
    flip: Annotated[bool, arg(name="data.flip")] = True,
    workers: Annotated[int | None, flag("one per core, or 0 for few images")] = None,
) -> int:
    """Find problems in a data set before training.

    Reads every image and mask. Reports missing and extra files, wrong sizes, unreadable files, wrong
    labels, and how often each class occurs. The exit code is 0 if training can start, 1 if it would fail.

    Examples:
        depict check --data folder --root photos
        depict check --data ade20k --root datasets --show samples.png
        depict check --data folder --root photos --show a.png --data.no-flip

    Args:
        data: Data set: scenes, folder, coco, ade20k, cityscapes, pascal_context, pascal_context_59 or camvid.
        root: Folder of the data set (scenes are generated and need none).
        split: Split to read; both means train and val.
        json: Also write the report with every problem to this file.
        show: Also draw samples with their masks and a legend: training images, or those of --split. They are augmented
            as `depict train` does it with the same --image-size and --data flags.
        augment: Augment the samples of --show; --no-augment shows whole images.
        image_size: Training crop in pixels: a side, or height and width.
        short_edge: Images are resized into a box with this short edge, before the random scale.
        max_aspect: Long edge of that box divided by its short edge.
        scale_range: Range of the random scale.
        color_jitter: Distort brightness, contrast, saturation and hue.
        flip: Mirror half of the images.
        workers: Processes that read.
    """
    from depict.config.ranges import check_ranges
    from depict.config.resolve import check_combinations
    from depict.data import create_dataset
    from depict.data.check import check_dataset
    from depict.io.files import write_json

    check_file(show, ".png", "--show")
    check_file(json, ".json", "--json")
    keep_inputs(show, root, "--show")
    keep_inputs(json, root, "--json")
    check_numbers(RANGES["data.workers"], workers=workers)
    options = DataConfig(
        short_edge=short_edge, max_aspect=max_aspect, scale_range=scale_range, color_jitter=color_jitter, flip=flip
    )
    settings = Config(data=options, image_size=image_size)
    check_ranges(settings)
    check_combinations(settings)
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

        draw_samples(datasets[0], show, _augmentation(options, image_size, datasets[0].recipe) if augment else None)
        say(f"samples: {show}")
    elif show:
        say(f"no picture written to {show}: fix the data set first")
    return 0 if usable else 1


def _augmentation(data: DataConfig, image_size: int | tuple[int, int] | None, recipe: Recipe) -> Augmentation:
    """What `depict train` does with these settings."""
    from depict.config.resolve import as_pair
    from depict.data.transforms import Augmentation

    return Augmentation(
        data.short_edge or recipe.short_edge,
        data.max_aspect or recipe.max_aspect,
        as_pair(recipe.crop if image_size is None else image_size),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        scale_range=data.scale_range,
        color_jitter=data.color_jitter,
        flip=data.flip,
    )
