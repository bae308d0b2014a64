"""Turn a trained run into a model that comes with the package: float16 weights, settings, scores and a card.

    python docs/results/ship.py RUN NAME [--image-size 320] [--short-edge 320] [--evaluation RUN/evaluation.json]

Writes config.yaml, model.safetensors and evaluation.json (without the scores of single images) to the folder
src/depict/models/NAME, and the IoU of every class to the end of its card, README.md, whose text is written by hand.
`--image-size` is the window that pictures are cut into, which may be larger than in training if the encoder takes any
size. The paths of data and pretrained weights are not kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import depict
from depict.io.files import read_json, write_json, write_text
from depict.runs import WEIGHTS, save_config, save_tensors
from depict.studies.tables import markdown_table

MODELS = Path(depict.__file__).parent / "models"
KEPT = ("data", "split", "protocol", "miou", "macc", "aacc", "boundary_iou", "classes")
CARD, TITLE = "README.md", "## IoU of every class"
LIMIT = 15e6
"""Bytes of the weights, at most."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("name")
    parser.add_argument("--image-size", type=int, help="window in pixels (the run's)")
    parser.add_argument("--short-edge", type=int, help="short edge of evaluated images (the run's)")
    parser.add_argument("--evaluation", type=Path, help="evaluation.json of all validation images")
    options = parser.parse_args()
    model, folder = depict.load(options.run), MODELS / options.name
    if options.image_size:
        model.config.image_size = (options.image_size, options.image_size)
    model.config.data.short_edge = options.short_edge or model.config.data.short_edge
    model.config.data.root, model.config.encoder.pretrained, model.config.train.init = None, False, None
    folder.mkdir(parents=True, exist_ok=True)
    save_config(model, folder)
    halves = {name: half(tensor) for name, tensor in model.state_dict().items()}
    save_tensors(halves, folder / WEIGHTS)
    if (size := (folder / WEIGHTS).stat().st_size) > LIMIT:
        raise SystemExit(f"{folder / WEIGHTS} has {size / 1e6:.1f} MB, more than {LIMIT / 1e6:.0f}")
    if options.evaluation:
        evaluation = read_json(options.evaluation, "evaluate again")
        kept = {key: evaluation[key] for key in KEPT}
        write_json(folder / "evaluation.json", kept | {"images": len(evaluation["images"])})
        text = (folder / CARD).read_text(encoding="utf-8").split(TITLE)[0]
        write_text(folder / CARD, f"{text}{TITLE}\n\n{class_table(evaluation['classes'])}\n")
    print(f"{folder}: {size / 1e6:.1f} MB")


def half(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float16 if it is of floating point; raises if a value does not fit."""
    if not tensor.is_floating_point():
        return tensor
    rounded = tensor.half()
    if not rounded.isfinite().all():
        raise SystemExit("a weight is too large for float16")
    return rounded


def class_table(classes: list[dict[str, float]]) -> str:
    """IoU of every class in percent, the best first, in three columns."""
    ranked = sorted(classes, key=lambda row: -(row["iou"] or 0))
    texts = [[str(row["name"]), f"{100 * (row['iou'] or 0):.1f}"] for row in ranked]
    height = -(-len(texts) // 3)
    texts += [["", ""]] * (3 * height - len(texts))
    rows = [[*texts[row], *texts[row + height], *texts[row + 2 * height]] for row in range(height)]
    return markdown_table(["class", "IoU %"] * 3, rows)


if __name__ == "__main__":
    main()
