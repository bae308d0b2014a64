"""`depict demo`: label photographs, then train, evaluate and compare two decoders, without a download."""

from __future__ import annotations

import importlib.resources
import math
import multiprocessing
import os
import signal
import statistics
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from depict.config.flags import check_folder, flag
from depict.terminal import say, say_text

if TYPE_CHECKING:
    from depict.config.schema import Config
    from depict.model import SegmentationModel

PHOTOGRAPHS = Path(str(importlib.resources.files("depict"))) / "photographs"
MODEL = "depict-ade20k"
"""The shipped model that labels them."""
DECODERS = {"depict_sa": "DEPICT-SA", "segmenter": "Segmenter"}
SHOWN = (3, 17, 26, 41, 58, 77)
"""Validation scenes in the picture."""
QUICK = "--quick trains for one epoch on 300 scenes: these numbers mean little. For better ones run `depict demo`.\n"


def main(
    out: Annotated[Path | None, flag("runs/demo, with --quick runs/demo_quick", "DIR")] = None, quick: bool = False
) -> int:
    """Label photographs, then train and compare two decoders on generated scenes.

    The model that comes with depict labels three photographs. Then a small ViT is trained from random
    weights with DEPICT-SA and with Segmenter; both are evaluated, and their predictions drawn. Nothing is downloaded.
    It takes about four minutes on two CPU cores, with --quick less than one. Run the same command again
    to resume, or to see the results of the finished runs.

    Examples:
        depict demo
        depict demo --quick
        depict demo --out runs/first

    Args:
        out: Folder for the two runs and the pictures.
        quick: Train for one epoch on fewer scenes, to see that everything works; the numbers mean little.
    """
    out = out or Path("runs/demo_quick" if quick else "runs/demo")
    check_folder(out)
    photographs = out / "photographs.png"
    draw_photographs(photographs)
    say(f"{MODEL} has labeled three photographs: {photographs}", error=True)
    training, validation, every = (300, 20, 5) if quick else (600, 100, 1)
    say(f"training both decoders side by side on {training} generated scenes", error=True)
    # Two processes: at this size two models on one core each are faster than one model on two cores.
    with ProcessPoolExecutor(len(DECODERS), multiprocessing.get_context("spawn"), end_with_parent) as pool:
        settings = [config(name, quick) for name in DECODERS]
        folders = [out / name for name in DECODERS]
        rows = list(pool.map(train_and_score, settings, folders, range(len(folders)), [every] * len(folders)))

    from depict.runs import load

    picture = out / "demo.png"
    draw_predictions({label: load(out / name) for name, label in DECODERS.items()}, picture)
    say()
    say(f"{'decoder':<11}{'parameters':>11}{'GFLOPs':>8}{'mIoU ss':>9}{'mIoU ms':>9}{'training images/s':>19}")
    for label, (size, flops, single, multi, speed) in zip(DECODERS.values(), rows, strict=True):
        say(f"{label:<11}{size:>11,}{flops / 1e9:>8.3f}{single:>9.1f}{multi:>9.1f}{speed:>19.1f}")
    commands = {
        f"depict segment {MODEL} PHOTO --out DIR": "label a photograph",
        f"depict evaluate {out / 'depict_sa'}": "the IoU of each class",
        "depict info": "parameters and FLOPs of every decoder of the paper",
        "depict train --help": "train on your own images: --data folder --root DIR",
    }
    widest = max(map(len, commands))
    next_steps = "\n            ".join(f"{command:<{widest}}  {text}" for command, text in commands.items())
    say_text(
        f"""
mIoU in percent on {validation} unseen scenes, single-scale and multi-scale; parameters and GFLOPs of the decoder only.
{QUICK if quick else ""}
Pictures    {photographs} and {picture}
Runs        {out / "depict_sa"} and {out / "segmenter"}
Next steps  {next_steps}"""
    )
    return 0


def draw_photographs(path: Path) -> None:
    """Draw one photograph per column, with the shipped model's labels and their legend below it."""
    from PIL import Image

    from depict.io.files import atomic_path
    from depict.io.shipped import shipped_models
    from depict.runs import load
    from depict.viz.overlays import PAPER

    gap = 10
    model = load(shipped_models()[MODEL])  # also if a local folder has its name
    predictions = [model.predict(file) for file in sorted(PHOTOGRAPHS.glob("*.jpg"), reverse=True)]
    columns = [(Image.fromarray(prediction.image), prediction.overlay()) for prediction in predictions]
    width = sum(photograph.width + gap for photograph, _ in columns) - gap
    height = max(photograph.height + gap + labels.height for photograph, labels in columns)
    sheet, left = Image.new("RGB", (width, height), PAPER), 0
    for photograph, labels in columns:
        sheet.paste(photograph, (left, 0))
        sheet.paste(labels, (left, photograph.height + gap))
        left += photograph.width + gap
    with atomic_path(path) as temporary:
        sheet.save(temporary, format="PNG", optimize=True)


def end_with_parent() -> None:
    """Stop this process when the one that started it has ended, however that was: a training saves its state first."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        while True:  # a training handles the first signal, the next one ends the process
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(2)

    threading.Thread(target=watch, daemon=True).start()


def train_and_score(settings: Config, out: Path, position: int, every: int) -> tuple[int, int, float, float, float]:
    """Train one decoder, and evaluate it on every n-th scene of the validation set.

    Returns its parameters, multiply-adds, single- and multi-scale mIoU in percent, and training images per second.
    """
    os.environ["TQDM_POSITION"] = str(position)  # one line per progress bar; tqdm reads it on import
    import torch

    from depict.costs import parameters
    from depict.data import create_dataset
    from depict.data.dataset import every_nth
    from depict.evaluation import evaluate, sliding_window_for
    from depict.runs import load, read_metrics
    from depict.training.loop import train

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // len(DECODERS)))
    train(settings, out)
    model, validation = load(out), every_nth(create_dataset("scenes", split="val"), every)
    slidings = [sliding_window_for(model, validation, multiscale) for multiscale in (False, True)]
    single, multi = (evaluate(model.predictor(sliding), validation, progress=True) for sliding in slidings)
    speeds = [line["images_per_second"] for line in read_metrics(out) if "images_per_second" in line]
    flops = model.decoder.multiply_adds(math.prod(model.grid(model.image_size)))
    return parameters(model.decoder), flops, 100 * single.miou, 100 * multi.miou, statistics.median(speeds)


def config(decoder: str, quick: bool = False) -> Config:
    """A ViT small enough for a CPU, with a recipe for the scenes; one epoch on 300 scenes if `quick`."""
    from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, TrainConfig

    epochs, warmup, limit = (1, 10, 300) if quick else (12, 40, None)
    sizes: dict[str, Any] = {"heads": 3, "head_dim": 50} if decoder == "depict_sa" else {}
    return Config(
        encoder=EncoderConfig("vit_tiny_patch16_224", pretrained=False, patch_size=8, dim=128, depth=4),
        decoder=DecoderConfig(decoder, **sizes),
        data=DataConfig("scenes", scale_range=(0.75, 1.5), color_jitter=False, limit=limit, workers=0),
        train=TrainConfig(
            epochs=epochs, batch=8, lr=5e-4, warmup=warmup, clip_grad=1.0, weight_decay=0.05, validate_every=epochs
        ),
        image_size=96,
    )


def draw_predictions(models: dict[str, SegmentationModel], path: Path) -> None:
    """Draw one validation scene per column: the scene, its ground truth and each model's prediction."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    from depict.data.scenes.dataset import Scenes
    from depict.io.files import atomic_path
    from depict.viz.overlays import blend_labels

    scenes = Scenes(None, "val", size=(192, 256))
    names = ["scene", "truth", *models]
    figure, axes = plt.subplots(len(names), len(SHOWN), figsize=(2.05 * len(SHOWN), 1.62 * len(names) + 0.4))
    for column, index in enumerate(SHOWN):
        image, truth = scenes.read(index)
        pixels = image.permute(1, 2, 0).numpy()
        maps = [truth.numpy(), *(model.predict(pixels).labels for model in models.values())]
        pictures = [pixels, *(blend_labels(pixels, labels, scenes.palette, opacity=0.6) for labels in maps)]
        for row, picture in enumerate(pictures):
            axes[row, column].imshow(picture)
            axes[row, column].set(xticks=[], yticks=[])
            axes[row, column].spines[:].set_visible(False)
            if column == 0:
                axes[row, column].set_ylabel(names[row], fontsize=11)
    patches = [
        Patch(color=[value / 255 for value in color], label=name)
        for name, color in zip(scenes.classes, scenes.palette, strict=True)
    ]
    figure.legend(handles=patches, loc="lower center", ncols=len(patches), frameon=False, fontsize=10)
    figure.subplots_adjust(left=0.03, right=0.995, top=0.995, bottom=0.06, wspace=0.03, hspace=0.03)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    plt.close(figure)
