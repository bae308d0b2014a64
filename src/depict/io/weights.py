"""Weight files: tensors by name from .safetensors and .pth, without running pickled code."""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from depict.errors import UserError, one_line


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors or .pth file by name, on the CPU."""
    if not path.is_file():
        raise UserError(f"there is no weight file '{path}'.")
    content = _read(path)
    for key in ("state_dict", "model", "teacher"):  # where training scripts keep the weights
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    items = content.items() if isinstance(content, dict) else ()
    tensors = {key: value for key, value in items if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(f"'{path}' holds no tensors by name.")
    return tensors


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # about pickles, which are refused below anyway
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror or one_line(error)}.") from error
    except SafetensorError as error:
        raise UserError(f"'{path}' is not a readable weight file: {one_line(error)}.") from error
    except pickle.UnpicklingError as error:  # torch's text advises to run the code
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"objects other than tensors ({found[1]})" if found else "objects other than tensors, or is damaged"
        raise UserError(
            f"'{path}' is refused: it holds {what}; reading such a file could run code. "
            "Save only its tensors, as .safetensors or a state_dict."
        ) from error
    except Exception as error:  # torch raises many types for a truncated or foreign file
        raise UserError(f"'{path}' is not a readable weight file: it is damaged or has another format.") from error
