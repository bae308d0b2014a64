"""The model card (README.md) of a run on the hub: what the model is, its scores, its data, and how to use it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from depict.costs import parameters
from depict.io.hub import PREFIX
from depict.terminal import printable

if TYPE_CHECKING:
    from depict.model import SegmentationModel

Evaluation = dict[str, Any]
"""The content of an evaluation.json."""


def model_card(run: Path, model: SegmentationModel, name: str) -> str:
    """The card of `model`, the best one of `run`, for the repository `name`."""
    evaluations = read_evaluations(run)
    config = model.config
    options = ", ".join(f"{option} {value}" for option, value in config.decoder.options().items())
    size = " x ".join(map(str, model.image_size))
    facts = _front_matter(name, config.decoder.name, evaluations)
    lines = [
        "---",
        yaml.safe_dump(facts, sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        f"# {name.split('/')[1]}",
        "",
        f"Semantic segmentation into {model.num_classes} classes with a `{config.decoder.name}` decoder on "
        f"`{config.encoder.name}`, trained with `depict`.",
        "",
        "| | |",
        "|---|---|",
        f"| encoder | `{config.encoder.name}`, {parameters(model.encoder) / 1e6:.2f} M parameters |",
        f"| decoder | `{config.decoder.name}`{f' ({options})' if options else ''}, "
        f"{parameters(model.decoder) / 1e6:.3f} M parameters |",
        *_neck_row(model),
        f"| window | {size} pixels, slid over images of any size |",
        f"| data | {_cell(config.data.name or 'not recorded')} |",
        *(f"| mIoU, {title} | {100 * evaluation['miou']:.2f} % |" for title, evaluation in evaluations.items()),
        "",
        "## Usage",
        "```python",
        "import depict",
        "",
        f'model = depict.load("{PREFIX}{name}")',
        "prediction = model.predict(image)  # a path, PIL image, array or tensor of any size",
        "prediction.labels  # the class of each pixel, (H, W)",
        "```",
        "```sh",
        f"depict segment {PREFIX}{name} pictures/ --out segmented/",
        "```",
        "",
        "## Classes",
        *_class_table(model, next(iter(evaluations.values()), {})),
    ]
    return "\n".join(lines) + "\n"


def _neck_row(model: SegmentationModel) -> list[str]:
    """The levels, the tokens and the stride of the masks, of a model with a neck."""
    if model.neck is None:
        return []
    size = sum(parameters(part) for part in (model.neck, model.stem) if part is not None)
    return [f"| neck | {model.neck_summary}, {size / 1e6:.3f} M parameters |"]


def read_evaluations(run: Path) -> dict[str, Evaluation]:
    """What `depict evaluate` wrote into the run about its best weights, by a title such as `ade20k val, multiscale`."""
    evaluations = {}
    for path in sorted(run.glob("evaluation*.json")):
        try:
            evaluation = json.loads(path.read_text(encoding="utf-8"))
            float(evaluation["miou"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not an evaluation, or one without a labeled pixel
        if evaluation.get("weights") == "last":
            continue  # the best weights are pushed
        data = " ".join(_cell(evaluation[key]) for key in ("data", "root", "split") if evaluation.get(key))
        options = re.findall(r"(?<=_)(?:multiscale|short-edge\d+|stride\d+)(?=_|$)", path.stem)
        evaluations[", ".join([data, *options])] = evaluation
    return evaluations


def _front_matter(name: str, decoder: str, evaluations: dict[str, Evaluation]) -> dict[str, Any]:
    """Metadata for the hub: https://huggingface.co/docs/hub/model-cards."""
    values: dict[str, Any] = {
        "library_name": "depict",
        "pipeline_tag": "image-segmentation",
        "tags": ["semantic-segmentation", "depict", decoder],
    }
    if evaluations:
        results = [
            {
                "task": {"type": "image-segmentation"},
                "dataset": {"name": title, "type": str(evaluation.get("data"))},
                "metrics": [{"type": "mean_iou", "name": "mIoU", "value": round(float(evaluation["miou"]), 4)}],
            }
            for title, evaluation in evaluations.items()
        ]
        values["model-index"] = [{"name": name.split("/")[1], "results": results}]
    return values


def _class_table(model: SegmentationModel, evaluation: Evaluation) -> list[str]:
    scores = {row.get("name"): row.get("iou") for row in evaluation.get("classes", []) if isinstance(row, dict)}
    lines = ["| # | class | color | IoU |", "|---|---|---|---|"]
    for index, (name, color) in enumerate(zip(model.classes, model.palette, strict=True)):
        score = scores.get(name)
        percent = f"{100 * score:.1f} %" if isinstance(score, (int, float)) else ""
        lines.append(f"| {index} | {_cell(name)} | `#{bytes(color).hex()}` | {percent} |")
    return lines


def _cell(text: object) -> str:
    """Text that stays inside one cell of a table: no link, no markup, no HTML."""
    words = " ".join(printable(text).replace("&", "&amp;").replace("<", "&lt;").split())
    return re.sub(r"(?<=www)\.|[\\`*_~|:@\[\]]", r"\\\g<0>", words)
