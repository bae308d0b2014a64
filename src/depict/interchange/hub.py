"""Pushing a run to the Hugging Face hub. Paths and the command line of the training stay on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

import depict
from depict.errors import UserError, one_line
from depict.interchange.model_card import model_card
from depict.io.hub import CONFIG, WEIGHTS, check_name
from depict.io.yaml import read_yaml
from depict.runs import load

CARD = "README.md"
PRIVATE_SETTINGS = (("data", "root"), ("stamp", "command"), ("encoder", "pretrained"), ("train", "init"))
"""Settings that may hold paths."""


def push(run: Path, name: str, private: bool = False) -> str:
    """Upload the best model of a run as user/name, with a model card, in one commit; returns its URL."""
    check_name(name)
    model = load(run)  # a run that cannot be loaded is not uploaded
    files: dict[str, Any] = {
        CARD: model_card(run, model, name).encode(),
        CONFIG: yaml.safe_dump(public_config(run), sort_keys=False, allow_unicode=True).encode(),
        WEIGHTS: run / WEIGHTS,
    }
    from huggingface_hub import CommitOperationAdd, HfApi

    try:
        api = HfApi()
        url = api.create_repo(name, private=private, exist_ok=True)
        operations = [CommitOperationAdd(path, content) for path, content in files.items()]
        api.create_commit(name, operations, commit_message=f"depict {depict.__version__}: {model.config.decoder.name}")
    except Exception as error:  # the hub's client, its HTTP library and the disk raise errors of many types
        raise UserError(
            f"cannot push to '{name}': {one_line(error)}. Are you logged in (`hf auth login`) with write access?"
        ) from error
    return str(url)


def public_config(run: Path) -> dict[str, Any]:
    """A run's config.yaml without its paths and its command line."""
    values = read_yaml(run / CONFIG)
    for section, key in PRIVATE_SETTINGS:
        if isinstance(values.get(section), dict):
            values[section].pop(key, None)
    return values
