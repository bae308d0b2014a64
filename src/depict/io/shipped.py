"""Models that come with depict: run folders in `models/`, used by their names."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from depict.errors import UserError

FOLDER = Path(str(importlib.resources.files("depict"))) / "models"


def shipped_models() -> dict[str, Path]:
    """The folder of every shipped model by its name."""
    return {path.parent.name: path.parent for path in sorted(FOLDER.glob("*/config.yaml"))}


def shipped_model(name: str) -> Path | None:
    """The folder of a shipped model; None for any other name. A local folder of the same name is an error."""
    folder = shipped_models().get(name)
    if folder is not None and Path(name).exists():
        raise UserError(
            f"'{name}' is a model that comes with depict, and a local folder: write './{name}' for the folder, "
            "or rename the folder to use the model."
        )
    return folder
