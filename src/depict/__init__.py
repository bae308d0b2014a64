"""Semantic segmentation with white-box decoders (DEPICT) on any ViT.

The names below are imported when first used, so that `import depict` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from depict.decoders import create_decoder, register_decoder
    from depict.errors import UserError
    from depict.model import SegmentationModel, create_model
    from depict.runs import load, save

_HOMES = {
    "SegmentationModel": "depict.model",
    "UserError": "depict.errors",
    "create_decoder": "depict.decoders",
    "create_model": "depict.model",
    "load": "depict.runs",
    "register_decoder": "depict.decoders",
    "save": "depict.runs",
}

__all__ = ["SegmentationModel", "UserError", "create_decoder", "create_model", "load", "register_decoder", "save"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'depict' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
