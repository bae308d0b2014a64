"""The predictor of what a user names: a run folder, a run on the hub, or an exported .onnx file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from depict.errors import UserError
from depict.inference.predictors import Predictor


def open_predictor(
    model: str | Path,
    *,
    multiscale: bool = False,
    full_image: bool = False,
    compile: bool = False,
    device: str | None = None,
    local: int = 0,
) -> Predictor:
    """The predictor of a run folder or of a file that ends in .onnx.

    `full_image`: the network sees each picture at once instead of in windows. `compile`: run it through torch.compile.
    `device`: by default the best there is; `local` is the number of this process on its machine, to which its own GPU
    belongs.
    """
    if Path(model).suffix.lower() == ".onnx":
        from depict.inference.onnx_predictor import OnnxPredictor

        if compile:
            raise UserError(f"'{model}' is run by ONNX Runtime, which compiles by itself: leave out --compile.")
        return OnnxPredictor(Path(model), multiscale, full_image, device)
    from depict.devices import find_device
    from depict.inference.predictors import TorchPredictor
    from depict.runs import load

    device = find_device(device, local)
    loaded = load(model).to(device)
    return TorchPredictor(
        loaded, dataclasses.replace(loaded.sliding_window(multiscale), full_image=full_image), compile
    )
