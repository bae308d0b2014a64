"""Weight files: tensors by name from .safetensors and .pth, without running pickled code."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from depict.errors import UserError, one_line
from depict.io.files import utf8_path


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
    if not tensors or not all(isinstance(key, str) for key in tensors):
        raise UserError(f"'{path}' holds no tensors by name.")
    size = path.stat().st_size
    for key, tensor in tensors.items():
        if tensor.numel() * tensor.element_size() > size:  # one number can be repeated to any shape
            raise UserError(f"'{path}' is refused: the tensor '{key[:100]}' is larger than the file.")
    return tensors


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            with utf8_path(path) as name:
                return load_file(name)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                    raise UserError(
                        f"'{path}' is refused: it is compressed, which torch.save never does, and may grow to any size."
                    )
        with warnings.catch_warnings(action="ignore"):  # about pickles, which are refused below anyway
            return torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
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
