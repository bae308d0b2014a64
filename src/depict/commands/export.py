"""`depict export`: a run as an ONNX file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

if TYPE_CHECKING:
    from depict.data.dataset import Dataset
    from depict.model import SegmentationModel


def main(
    run: tyro.conf.Positional[Path],
    file: tyro.conf.Positional[Path],
    dynamic: bool = False,
    batch: int | None = None,
    int8: bool = False,
    data: str | None = None,
    root: Path | None = None,
    images: int = 100,
) -> int:
    """Export a run to ONNX and check it against PyTorch before it is written.

    `depict segment FILE.onnx` applies it without torch. The graph takes normalized images and gives masks on the patch
    grid; class names, colors, normalization and window are in its metadata.

    Args:
        run: Folder of the run, or hf-hub:user/name.
        file: The file to write, ending in .onnx.
        dynamic: Let height and width be any, not only those of the window.
        batch: Fix the batch; by default it may be any.
        int8: Quantize the weights to 8 bits, and tell what that does to the mIoU if the data set is at hand.
        data: Data set for that; by default the one that the run was trained on.
        root: Folder in which it lies; by default that of the training.
        images: Validation images for that.
    """
    from depict.errors import UserError

    if file.suffix.lower() != ".onnx":
        raise UserError(f"'{file}' must end in .onnx.")
    if images < 1:
        raise UserError(f"--images must be at least 1, not {images}.")
    import depict
    from depict.interchange.onnx import TOLERANCE, export, quantize

    model = depict.load(run)
    dataset = find_data(model, data, root) if int8 else None
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "float.onnx" if int8 else file
        differences = export(model, plain, dynamic=dynamic, batch=batch)
        for shape, difference in differences.items():
            print(f"images {' x '.join(map(str, shape))}: masks differ from PyTorch by at most {difference:.1e}")
        print(f"largest difference {max(differences.values()):.1e} (at most {TOLERANCE:g} passes)")
        if int8:
            quantize(plain, file)
            print(_comparison(plain, file, dataset, images))
    print(f"written: {file} ({file.stat().st_size / 1e6:.1f} MB)")
    return 0


def find_data(model: SegmentationModel, data: str | None, root: Path | None) -> Dataset | None:
    """The validation images of the data set asked for, which must be there, or of the run's own, if they are."""
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
    """What 8 bits do to the mIoU."""
    from depict.interchange.onnx import mean_iou

    if dataset is None:
        return "what 8 bits do to the mIoU is not measured, for want of the data set: give --data NAME --root DIR"
    before, after = (100 * mean_iou(path, dataset, images) for path in (plain, file))
    return f"mIoU on {min(images, len(dataset))} images: {before:.2f}, in 8 bits {after:.2f} ({after - before:+.2f})"
