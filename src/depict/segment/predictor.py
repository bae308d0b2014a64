"""The predictor of a run folder, of a run on the hub, or of an exported .onnx file."""

from __future__ import annotations

from pathlib import Path

from depict.errors import UserError
from depict.inference.predictors import Predictor
from depict.io.checksums import checksum, file_checksum
from depict.io.hub import CONFIG, WEIGHTS, local_run


def locate_model(model: str) -> Path:
    """An .onnx file, or the folder of a run, which is fetched first if it is on the hub."""
    return Path(model) if Path(model).suffix.lower() == ".onnx" else local_run(model)


def model_checksum(model: Path) -> str:
    """A checksum that changes with the predictions: of an .onnx file, or of a run's weights and settings."""
    files = [model] if model.is_file() else [model / CONFIG, model / WEIGHTS]
    return checksum(*(file_checksum(file).encode() for file in files))


def open_predictor(
    model: str | Path,
    *,
    multiscale: bool = False,
    full_image: bool = False,
    tile: int | None = None,
    compile: bool = False,
    device: str | None = None,
    local: int = 0,
) -> Predictor:
    """The predictor of a run, or of a file that ends in .onnx.

    `full_image` gives the network whole images instead of windows, `tile` is the short edge of the
    training images where the pictures are larger (see `SlidingWindow.at_tile`), `compile` runs it through
    torch.compile. `device` is by default the best one; on a machine with several GPUs and
    processes, `local` is the index of this process and of its GPU.
    """
    if Path(model).suffix.lower() == ".onnx":
        from depict.inference.onnx_predictor import OnnxPredictor

        if compile:
            raise UserError(f"'{model}' runs in ONNX Runtime, which optimizes it itself: omit --compile.")
        return OnnxPredictor(Path(model), multiscale, full_image, device, tile)
    from depict.devices import find_device
    from depict.runs import load

    loaded = load(model).to(find_device(device, local))
    return loaded.predictor(loaded.sliding_window(multiscale, full_image, tile), compile=compile)
