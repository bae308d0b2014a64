"""Runs on the Hugging Face hub: `push` sends one with a model card, `local_run` fetches one named `hf-hub:user/name`.

What is sent tells nothing of the machine that it was trained on: paths and the command are left out. What is fetched
comes from a stranger: plain YAML and safetensors, two files, nothing that could run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from depict.errors import UserError, one_line
from depict.io.hub import CONFIG, PREFIX, WEIGHTS, check_name
from depict.io.yaml import read_yaml

if TYPE_CHECKING:
    from depict.model import SegmentationModel

CARD = "README.md"


def push(run: Path, name: str, private: bool = False) -> str:
    """Send the best model of a run to the hub as user/name, with a model card; gives its address."""
    check_name(name)
    import depict

    model = depict.load(run)  # a run that cannot be loaded is not sent
    from huggingface_hub import CommitOperationAdd, HfApi

    files: dict[str, Any] = {
        CARD: model_card(run, model, name).encode(),
        CONFIG: yaml.safe_dump(public_config(run), sort_keys=False, allow_unicode=True).encode(),
        WEIGHTS: run / WEIGHTS,
    }
    try:
        api = HfApi()
        url = api.create_repo(name, private=private, exist_ok=True)
        operations = [CommitOperationAdd(path, content) for path, content in files.items()]
        api.create_commit(name, operations, commit_message=f"depict {depict.__version__}: {model.config.decoder.name}")
    except Exception as error:  # as above
        raise UserError(
            f"cannot push to '{name}': {one_line(error)}. Are you logged in (`hf auth login`) with the right to write?"
        ) from error
    return str(url)


def public_config(run: Path) -> dict[str, Any]:
    """A run's configuration without what concerns only the machine: paths and the command."""
    values = read_yaml(run / CONFIG)
    for section, key in (("data", "root"), ("stamp", "command"), ("encoder", "pretrained")):
        if isinstance(values.get(section), dict):
            values[section].pop(key, None)
    return values


def model_card(run: Path, model: SegmentationModel, name: str) -> str:
    """README.md of a model on the hub: what it is, how good, on what, and how to use it."""
    results = _results(run)
    config = model.config
    decoder, encoder = (sum(p.numel() for p in part.parameters()) for part in (model.decoder, model.encoder))
    options = ", ".join(f"{option} {value}" for option, value in config.decoder.options().items())
    size = " x ".join(map(str, model.image_size))
    lines = [
        "---",
        yaml.safe_dump(_front_matter(name, results), sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        f"# {name.split('/')[1]}",
        "",
        f"Semantic segmentation into {model.num_classes} classes with a `{config.decoder.name}` decoder on "
        f"`{config.encoder.name}`, made with `depict`.",
        "",
        "| | |",
        "|---|---|",
        f"| encoder | `{config.encoder.name}`, {encoder / 1e6:.2f} M parameters |",
        f"| decoder | `{config.decoder.name}`{f' ({options})' if options else ''}, {decoder / 1e6:.3f} M parameters |",
        f"| window | {size} pixels; images of any size are covered by windows |",
        f"| data | {_cell(config.data.name or 'not recorded')} |",
        *(f"| mIoU, {about} | {100 * result['miou']:.2f} % |" for about, result in results.items()),
        "",
        "## Use",
        "```python",
        "import depict",
        "",
        f'model = depict.load("{PREFIX}{name}")',
        "labels = model.segment(image)  # PIL image, array or tensor of any size -> class of each pixel",
        "```",
        "```sh",
        f"depict segment {PREFIX}{name} pictures/ --out segmented/",
        "```",
        "",
        "## Classes",
        *_class_table(model, next(iter(results.values()), {})),
    ]
    return "\n".join(lines) + "\n"


def _results(run: Path) -> dict[str, dict[str, Any]]:
    """What `depict evaluate` left beside the run: a description of each and its content, those with an mIoU."""
    results = {}
    for path in sorted(run.glob("evaluation*.json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            float(result["miou"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not an evaluation, or one without a valid pixel
        how = re.findall(r"multiscale|side\d+|stride\d+", path.stem)
        data = " ".join(_cell(result[key]) for key in ("data", "root", "split") if result.get(key))
        results[", ".join([data, *how])] = result
    return results


def _front_matter(name: str, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the hub reads: https://huggingface.co/docs/hub/model-cards."""
    values: dict[str, Any] = {
        "library_name": "depict",
        "pipeline_tag": "image-segmentation",
        "tags": ["semantic-segmentation", "depict", "white-box"],
    }
    if results:
        scores = [
            {
                "task": {"type": "image-segmentation"},
                "dataset": {"name": about, "type": str(result.get("data"))},
                "metrics": [{"type": "mean_iou", "name": "mIoU", "value": round(float(result["miou"]), 4)}],
            }
            for about, result in results.items()
        ]
        values["model-index"] = [{"name": name.split("/")[1], "results": scores}]
    return values


def _class_table(model: SegmentationModel, result: dict[str, Any]) -> list[str]:
    scores = {row.get("name"): row.get("iou") for row in result.get("classes", []) if isinstance(row, dict)}
    lines = ["| # | class | color | IoU |", "|---|---|---|---|"]
    for index, (name, color) in enumerate(zip(model.classes, model.palette, strict=True)):
        score = scores.get(name)
        told = f"{100 * score:.1f} %" if isinstance(score, (int, float)) else ""
        lines.append(f"| {index} | {_cell(name)} | `#{bytes(color).hex()}` | {told} |")
    return lines


def _cell(text: object) -> str:
    """Text that stays inside one cell of a table."""
    return " ".join(str(text).replace("|", "\\|").replace("<", "&lt;").split())
