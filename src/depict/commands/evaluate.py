"""`depict evaluate`: mIoU and other scores of a run, printed, as JSON, as a page and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from depict.config.flags import DataName, DataRoot, Device, RunName, check_folder, flag
from depict.config.ranges import RANGES, check_numbers
from depict.devices import find_device, processes
from depict.errors import UserError
from depict.terminal import say, say_text

if TYPE_CHECKING:
    from torch import Tensor

    from depict.config.schema import DataConfig
    from depict.data.dataset import Dataset
    from depict.data.palette import Color


def main(
    run: RunName,
    data: DataName = None,
    root: DataRoot = None,
    split: Literal["val", "train", "trainval", "test", "holdout"] = "val",
    last: bool = False,
    multiscale: bool = False,
    save: Annotated[Path | None, flag("not written", "DIR")] = None,
    submission: Annotated[Path | None, flag("not written", "DIR")] = None,
    short_edge: Annotated[int | None, flag("as in training, or the larger of data set's and model's crop")] = None,
    stride: Annotated[int | None, flag("the window minus 32")] = None,
    batch: Annotated[int | None, flag("2 windows of 512 x 512 on a CPU, 16 on a GPU")] = None,
    device: Device = None,
) -> int:
    """Evaluate a run: mIoU, mAcc, aAcc, boundary IoU and the IoU of each class.

    Also writes evaluation.html into the run folder, a page with the scores of each class, the confusion
    matrix, the calibration, and the worst and best images; and evaluation.json, with all numbers and the
    scores of each image. Other settings write to files of their own, such as evaluation_multiscale.html or
    evaluation_last.html. Under torchrun the images are split among the processes.

    Examples:
        depict evaluate runs/mine
        depict evaluate runs/mine --multiscale --save pictures
        depict evaluate runs/mine --last
        depict evaluate runs/mine --data folder --root other-photos

    Args:
        run: A run folder, a shipped model such as depict-ade20k, or hf-hub:user/name. The
            results of the last two go to the current folder, in files that begin with the model's name.
        data: Data set to evaluate on.
        root: Its folder.
        split: Split to evaluate; holdout is the part of the training images that --data.holdout kept out.
        last: Evaluate the weights after the last step, as the published protocol does, instead of the best ones by
            validation.
        multiscale: Average over the scales 0.5, 0.75, 1, 1.25, 1.5 and 1.75, each with its mirror image.
        save: Folder for predictions/NAME.png (class colors) and errors/NAME.png (correct pixels dimmed, wrong ones
            red, ignored ones gray).
        submission: Write label maps for the data set's test server into this folder: PNGs named like the images, with
            the label ids of Cityscapes or 1 to 150 for ADE20K. Images without ground truth get no score.
        short_edge: Short edge that images are resized to.
        stride: Step between windows in pixels.
        batch: Windows per forward pass.
        device: cpu, cuda, cuda:1 or mps.
    """
    import depict
    from depict.data.check import quick_check
    from depict.evaluation import evaluate, evaluation_record, few_images_warning, sliding_window_for
    from depict.io.files import write_json
    from depict.io.hub import output_folder, short_names
    from depict.runs import dataset_of, stamp
    from depict.viz.evaluation_page import Examples, write_evaluation_page

    check_numbers(RANGES["train.batch"], batch=batch)
    check_numbers(RANGES["data.short_edge"], short_edge=short_edge, stride=stride)
    check_folder(save, "--save")
    check_folder(submission, "--submission")
    output = output_folder(run)
    with processes() as (rank, world, local):
        model = depict.load(run, last).to(find_device(device, local))
        trained = model.config.data
        dataset = dataset_of(model, data, root, split)
        name = dataset.name
        _check_submission(dataset, submission)
        if rank == 0 and dataset.classes != model.classes and len(dataset.classes) == model.num_classes:
            say(f"depict: the classes of '{dataset.name}' have other names than the model's", error=True)
        sliding = sliding_window_for(model, dataset, multiscale, short_edge, stride)
        if rank == 0:
            quick_check(dataset)  # a missing mask is named now, not after hours

        examples = Examples(dataset)

        def keep(index: int, image: Tensor, truth: Tensor, prediction: Tensor) -> None:
            examples.watch(index, image, truth, prediction)
            if save:
                save_pictures(save, dataset, model.palette, index, image, truth, prediction)
            if submission:
                save_submission(submission, dataset, index, prediction)

        predictor = model.predictor(sliding, batch=batch)
        result = evaluate(predictor, dataset, rank, world, progress=True, watch=keep, calibrate=dataset.labeled)
        examples.gather()
        if rank == 0 and submission:
            say(f"label maps of {len(dataset)} images for the test server: {submission}")
        if rank == 0 and dataset.labeled:
            say_text(result)
            warning = few_images_warning(dataset)
            if warning:
                say(warning, error=True)
            folder = _other_folder(name, root, trained)
            parts = [
                short_names([run])[0] if output != Path(run) else "",  # the current folder may have others, too
                "evaluation",
                name if name != trained.name else "",
                f"root-{folder.replace('_', '-')}" if folder else "",  # "_" stands between the parts
                split if split != "val" else "",
                "last" if last else "",
                "multiscale" if multiscale else "",
                "" if short_edge is None else f"short-edge{short_edge}",
                "" if stride is None else f"stride{stride}",
            ]
            path = output / "_".join(filter(None, parts))
            record = evaluation_record(result, name, split, sliding, "last" if last else "best", world)
            found = ({"root": folder} if folder else {}) | record
            write_json(f"{path}.json", found)
            write_evaluation_page(Path(f"{path}.html"), str(run), found, examples, warning, stamp(model.config.seed))
            say(f"written: {path}.html and .json" + (f", pictures in {save}" if save else ""))
    return 0


def _check_submission(dataset: Dataset, submission: Path | None) -> None:
    if submission and dataset.submission_values is None:
        raise UserError(f"{dataset.name} has no test server: leave out --submission, --save DIR writes predictions.")
    if not dataset.labeled and not submission:
        advice = "give --submission DIR to write label maps for the test server"
        if dataset.submission_values is None:
            advice = "use `depict segment` for predictions"
        raise UserError(f"the {dataset.split} images of {dataset.name} have no ground truth: {advice}.")


def _other_folder(name: str, root: Path | None, trained: DataConfig) -> str:
    """The name of `root` if it holds images of the user's own other than those of the training, else empty."""
    if name not in ("folder", "coco") or root is None or (trained.root and trained.root.resolve() == root.resolve()):
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
    """Write the prediction as an indexed PNG in the class colors, and a picture of the errors."""
    import numpy as np
    from PIL import Image

    from depict.io.files import atomic_path
    from depict.viz.comparison import error_picture
    from depict.viz.overlays import label_picture

    labels = prediction.numpy()
    predicted = label_picture(labels.astype(np.uint8), palette)
    errors = error_picture(image.permute(1, 2, 0).numpy(), truth.numpy(), labels)
    for part, picture in (("predictions", predicted), ("errors", Image.fromarray(errors))):
        with atomic_path(folder / part / f"{dataset.name_of(index)}.png") as temporary:
            picture.save(temporary, "png")


def save_submission(folder: Path, dataset: Dataset, index: int, prediction: Tensor) -> None:
    """Write the predicted labels (H, W) as a gray PNG in the values that the data set's test server expects."""
    import numpy as np
    from PIL import Image

    from depict.io.files import atomic_path

    values = np.array(dataset.submission_values, np.uint8)[prediction.numpy()]
    with atomic_path(folder / f"{dataset.file_name(index)}.png") as temporary:
        Image.fromarray(values).save(temporary, "png")
