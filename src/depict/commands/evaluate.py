"""`depict evaluate`: mIoU and what lies behind it, on the screen, as JSON and as pictures."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from depict.devices import find_device, processes
from depict.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from depict.config.schema import DataConfig
    from depict.data.dataset import Dataset
    from depict.data.palette import Color

INVALID = (255, 64, 32)
VOID = (96, 96, 96)


def main(
    run: tyro.conf.Positional[Path],
    data: str | None = None,
    root: Path | None = None,
    split: Literal["val", "train"] = "val",
    multiscale: bool = False,
    save: Path | None = None,
    side: int | None = None,
    stride: int | None = None,
    batch: int | None = None,
    device: str | None = None,
) -> int:
    """Evaluate a trained model: mIoU, mAcc, aAcc, boundary IoU and the table of classes.

    Prints them and writes them beside the run with the confusion matrix and the scores of each image, as
    evaluation.json, or evaluation_multiscale.json; another data set, folder or split adds its name. Under
    torchrun the images are shared out among the processes.

    Args:
        run: Folder of the run, or hf-hub:user/name (then results go to the current folder).
        data: Data set; by default the one that the run was trained on.
        root: Folder in which it lies; by default that of the training.
        split: Part to evaluate.
        multiscale: Average over the scales 0.5, 0.75, 1, 1.25, 1.5 and 1.75, each also mirrored.
        save: Write predictions/NAME.png (colors of the classes) and errors/NAME.png (right pixels dimmed, wrong ones
            red, ignored ones gray) into this folder.
        side: Short edge that images are resized to; by default as in training, else the larger of the data set's and
            the model's crop.
        stride: Step from window to window in pixels; by default the window less 32.
        batch: Windows per call of the network; by default 2 of 512 x 512 pixels on a CPU, 16 on a GPU.
        device: Where to compute, such as cpu, cuda or cuda:1; by default a GPU if there is one.
    """
    import depict
    from depict.data.check import quick_check
    from depict.evaluation import evaluate, sliding_window_for
    from depict.io.files import write_json
    from depict.io.hub import output_folder
    from depict.runs import dataset_of

    if batch is not None and batch < 1:
        raise UserError(f"--batch must be at least 1, not {batch}.")
    with processes() as (rank, world, local):
        model = depict.load(run).to(find_device(device, local))
        trained = model.config.data
        dataset = dataset_of(model, data, root, split)
        name = dataset.name
        if rank == 0 and dataset.classes != model.classes and len(dataset.classes) == model.num_classes:
            print(f"depict: the classes of '{dataset.name}' have other names than the model's", file=sys.stderr)
        sliding = sliding_window_for(model, dataset, multiscale, side, stride)
        if rank == 0:
            quick_check(dataset)  # a missing mask is named now, not after hours

        def keep(index: int, image: Tensor, truth: Tensor, prediction: Tensor) -> None:
            if save:
                save_pictures(save, dataset, model.palette, index, image, truth, prediction)

        result = evaluate(model.predictor(sliding, batch=batch), dataset, rank, world, progress=True, watch=keep)
        if rank == 0:
            print(result)
            place = _place(name, root, trained)
            words = [
                "evaluation",
                name * (name != trained.name),
                place,
                split * (split != "val"),
                "multiscale" * multiscale,
            ]
            words += [f"side{side}" * (side is not None), f"stride{stride}" * (stride is not None)]
            path = output_folder(run) / f"{'_'.join(filter(None, words))}.json"
            about = {"data": name, "split": split, "protocol": dataclasses.asdict(sliding), "processes": world}
            about |= {"root": place} if place else {}
            write_json(path, about | result.to_dict())
            print(f"written: {path}" + (f", pictures in {save}" if save else ""))
    return 0


def _place(name: str, root: Path | None, trained: DataConfig) -> str:
    """The name of the root if it is another folder than that of the training, since any of them is called 'folder'."""
    if name != "folder" or root is None or (trained.root and trained.root.resolve() == root.resolve()):
        return ""
    return root.resolve().name


def save_pictures(
    folder: Path,
    dataset: Dataset,
    palette: tuple[Color, ...],
    index: int,
    image: Tensor,
    truth: Tensor,
    prediction: Tensor,
) -> None:
    """Write the prediction as an indexed PNG in the colors of the classes, and where it is wrong."""
    import numpy as np
    from PIL import Image

    from depict.data.dataset import IGNORE
    from depict.io.files import atomic_path
    from depict.viz.overlays import label_picture

    labels, pixels = prediction.numpy(), image.permute(1, 2, 0).numpy()
    predicted = label_picture(labels.astype(np.uint8), palette)
    right = (0.4 * pixels).astype(np.uint8)
    wrong = (0.3 * pixels + 0.7 * np.array(INVALID)).astype(np.uint8)
    known, hit = truth.numpy() != IGNORE, truth.numpy() == labels
    errors = np.where(known[..., None], np.where(hit[..., None], right, wrong), np.array(VOID, np.uint8))
    for part, picture in (("predictions", predicted), ("errors", Image.fromarray(errors))):
        with atomic_path(folder / part / f"{dataset.name_of(index)}.png") as temporary:
            picture.save(temporary, "png")
