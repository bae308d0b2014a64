"""A model exported to ONNX, applied to pictures of any size. Needs numpy and onnxruntime; torch is never imported.

The graph holds the network only: normalized windows in, masks on the patch grid out. All that lies around it (resizing,
windows, scales, rendering) is `numpy_inference.py`; how, the file's own metadata say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depict.errors import UserError, one_line
from depict.inference import numpy_backend as numpy_inference
from depict.inference.numpy_backend import Settings
from depict.inference.sliding import MULTISCALE, SlidingWindow

if TYPE_CHECKING:
    from depict.data.palette import Color

FORMAT = 1
"""Version of the metadata."""
_KEYS = ("depict", "classes", "palette", "mean", "std", "window", "stride", "short_edge", "max_aspect", "patch_size")


class OnnxPredictor:
    """`Predictor` (predictors.py) of an ONNX file that `depict export` wrote."""

    def __init__(self, path: Path, multiscale: bool = False, full_image: bool = False, device: str | None = None):
        self.path = path
        self.session = open_session(path, device)
        facts = read_metadata(self.session, path)
        self.classes: tuple[str, ...] = facts["classes"]
        self.palette: tuple[Color, ...] = facts["palette"]
        self.batch, _, height, width = self.session.get_inputs()[0].shape
        self.sliding = SlidingWindow(
            window=facts["window"],
            stride=facts["stride"],
            short_edge=facts["short_edge"],
            max_aspect=facts["max_aspect"],
            scales=MULTISCALE if multiscale else (1.0,),
            flip=multiscale,
            full_image=full_image,
        )
        if full_image and isinstance(height, int):
            raise UserError(
                f"'{path}' is made for windows of {height} x {width}, not for whole pictures: export it with --dynamic."
            )
        fixed = self.batch if isinstance(self.batch, int) else None
        self.settings = Settings(facts["mean"], facts["std"], facts["patch_size"], fixed)

    def labels(self, image: np.ndarray) -> np.ndarray:
        """The class of each pixel, uint8 or int16 (H, W), of a picture uint8 RGB (H, W, 3)."""
        return numpy_inference.predict(self.network, image, self.sliding, self.settings)

    def probabilities(self, image: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """Bands (start, stop, float32 (C, stop - start, W)) from top to bottom."""
        yield from numpy_inference.probabilities(self.network, image, self.sliding, self.settings)

    def network(self, images: np.ndarray) -> np.ndarray:
        """Logits (B, C, h, w) of normalized images (B, 3, H, W); a batch that is fixed is filled up."""
        count = len(images)
        if isinstance(self.batch, int) and count < self.batch:
            images = np.concatenate([images, np.zeros((self.batch - count, *images.shape[1:]), images.dtype)])
        try:
            logits = self.session.run(None, {self.session.get_inputs()[0].name: images})[0]
        except Exception as error:  # onnxruntime has a class for each kind of failure, and no common one
            raise UserError(f"'{self.path}' fails on images of shape {images.shape}: {one_line(error)}") from error
        if logits.ndim != 4 or logits.shape[1] != len(self.classes):
            raise UserError(f"'{self.path}' gives {logits.shape} where (batch, {len(self.classes)}, h, w) is due.")
        return logits[:count]


def open_session(path: Path, device: str | None = None) -> Any:
    """onnxruntime's session on the CPU, or on `cuda` or `cuda:N` where onnxruntime can."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(f"'{path}' needs onnxruntime: pip install onnxruntime.") from error
    if not path.is_file():
        raise UserError(f"there is no file '{path}'.")
    kind, _, number = (device or "cpu").partition(":")
    provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(kind)
    if provider not in onnxruntime.get_available_providers() or not (number.isdecimal() or not number):
        raise UserError(f"the device '{device}' cannot be used by this onnxruntime; leave --device out for the CPU.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal():
        options.intra_op_num_threads = int(threads)
    provider_options = [{"device_id": number or "0"}] if kind == "cuda" else [{}]
    try:
        return onnxruntime.InferenceSession(str(path), options, [provider], provider_options)
    except Exception as error:  # as above
        raise UserError(f"'{path}' is not a readable ONNX model: {one_line(error)}") from error


def write_metadata(model: Any) -> dict[str, str]:
    """What a `SegmentationModel` tells its ONNX file: text by key, each value JSON."""
    sliding = model.sliding_window()
    values = {
        "depict": FORMAT,
        "classes": model.classes,
        "palette": model.palette,
        "mean": model.mean,
        "std": model.std,
        "window": sliding.window,
        "stride": sliding.stride,
        "short_edge": sliding.short_edge,
        "max_aspect": sliding.max_aspect,
        "patch_size": model.patch_size,
    }
    return {key: json.dumps(values[key]) for key in _KEYS}


def read_metadata(session: Any, path: Path) -> dict[str, Any]:
    """The metadata of a file, checked: it may come from anybody."""
    stored = session.get_modelmeta().custom_metadata_map
    if "depict" not in stored:
        raise UserError(f"'{path}' was not written by `depict export`: it does not name its classes.")
    try:
        values = {key: json.loads(stored[key]) for key in _KEYS}
        if values["depict"] != FORMAT:
            raise UserError(f"'{path}' has format {values['depict']}, this depict reads {FORMAT}: export it again.")
        facts = {
            "classes": tuple(str(name) for name in values["classes"]),
            "palette": tuple(_numbers(color, 3, int, 0, 255) for color in values["palette"]),
            "mean": _numbers(values["mean"], 3, float, -10, 10),
            "std": _numbers(values["std"], 3, float, 1e-6, 10),
            "short_edge": None
            if values["short_edge"] is None
            else _numbers([values["short_edge"]], 1, int, 1, 1 << 16)[0],
            "max_aspect": _numbers([values["max_aspect"]], 1, float, 1, 1000)[0],
        }
        facts |= {key: _numbers(values[key], 2, int, 1, 1 << 16) for key in ("window", "stride", "patch_size")}
        if not 1 <= len(facts["classes"]) == len(facts["palette"]) <= 1 << 15:
            raise ValueError("classes and palette differ")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"the metadata of '{path}' are damaged ({one_line(error)}): export it again.") from error
    return facts


def _numbers(values: Any, count: int, kind: type, low: float, high: float) -> tuple[Any, ...]:
    numbers = tuple(kind(value) for value in values)
    if len(numbers) != count or not all(low <= number <= high for number in numbers):
        raise ValueError(f"{values!r} is out of range"[:100])
    return numbers
