"""`depict export`: a run as an ONNX file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from depict.config.flags import DataName, DataRoot, RunName, check_file, flag, positional
from depict.config.ranges import COUNT, RANGES, check_numbers
from depict.terminal import say

if TYPE_CHECKING:
    from depict.data.dataset import Dataset
    from depict.model import SegmentationModel


def main(
    run: RunName,
    file: Annotated[Positional[Path], positional("FILE.onnx")],
    dynamic: bool = False,
    batch: Annotated[int | None, flag("any size")] = None,
    int8: bool = False,
    data: DataName = None,
    root: DataRoot = None,
    images: int = 100,
) -> int:
    """Export a run to ONNX, checked against PyTorch before it is written.

    `depict segment FILE.onnx` runs it without torch. The graph takes normalized images and returns masks
    on the patch grid; class names, colors, normalization and window are in its metadata.

    Examples:
        depict export runs/mine mine.onnx
        depict export runs/mine mine-int8.onnx --int8 --images 50

    Args:
        run: A run folder, a shipped model such as depict-ade20k, or hf-hub:user/name.
        file: The file to write.
        dynamic: Allow any height and width, not only those of the window.
        batch: Fixed batch size.
        int8: Quantize the weights to 8 bits, and print the change in mIoU if the data set is available.
        data: Data set to measure that change on.
        root: Its folder.
        images: Number of its validation images to use.
    """
    check_file(file, ".onnx", "FILE")
    check_numbers(COUNT, images=images)
    check_numbers(RANGES["train.batch"], batch=batch)

    import depict
    from depict.interchange.onnx import TOLERANCE, export, quantize

    model = depict.load(run)
    dataset = find_data(model, data, root) if int8 else None
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "float.onnx" if int8 else file
        differences = export(model, plain, dynamic=dynamic, batch=batch)
        for shape, difference in differences.items():
            say(f"images {' x '.join(map(str, shape))}: masks differ from PyTorch by at most {difference:.1e}")
        say(f"largest difference {max(differences.values()):.1e} (at most {TOLERANCE:g} passes)")
        if int8:
            quantize(plain, file)
            say(_comparison(plain, file, dataset, images))
    say(f"written: {file} ({file.stat().st_size / 1e6:.1f} MB)")
    return 0


def find_data(model: SegmentationModel, data: str | None, root: Path | None) -> Dataset | None:
    """The validation images of the given data set, which must exist, or of the run's own, or None without them."""
    from depict.errors import UserError
    from depict.runs import dataset_of

    try:
        dataset = dataset_of(model, data, root)
    except UserError:
        if data or root:
            raise
        return None
    if len(dataset.classes) != model.num_classes:
        raise UserError(f"the model has {model.num_classes} classes, '{dataset.name}' has {len(dataset.classes)}.")
    return dataset


def _comparison(plain: Path, file: Path, dataset: Dataset | None, images: int) -> str:
    """The mIoU with float and with 8-bit weights, as text."""
    from depict.interchange.onnx import mean_iou

    if dataset is None:
        return "change in mIoU not measured, the data set was not found: give --data NAME --root DIR"
    before, after = (100 * mean_iou(path, dataset, images) for path in (plain, file))
    return f"mIoU on {min(images, len(dataset))} images: {before:.2f}, with 8 bits {after:.2f} ({after - before:+.2f})"
