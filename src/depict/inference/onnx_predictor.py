"""A model exported to ONNX as a `Predictor` (predictors.py). Needs numpy and onnxruntime, not torch.

The graph contains only the network: normalized windows in, masks on the patch grid out. Everything
around it (resizing, windows, scales, rendering) is in `numpy_backend.py`, with the settings from
the file's metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depict.errors import UserError, one_line
from depict.inference.numpy_backend import apply, predict, probabilities
from depict.inference.predictors import Bands, Scores
from depict.inference.sliding import MULTISCALE, NetworkSpec, SlidingWindow
from depict.io.classes import check_classes, check_colors
from depict.io.files import utf8_path

if TYPE_CHECKING:
    from depict.data.palette import Color

FORMAT = 2
"""Version of the metadata; raised when their keys change."""
_KEYS = ("depict", "classes", "palette", "mean", "std", "window", "stride", "short_edge", "max_aspect", "patch_size")


class OnnxPredictor:
    """Applies an ONNX file that `depict export` wrote."""

    def __init__(
        self,
        path: Path,
        multiscale: bool = False,
        full_image: bool = False,
        device: str | None = None,
        tile: int | None = None,
    ):
        self.path = path
        self.session = open_session(path, device)
        facts = read_metadata(self.session, path)
        self.classes: tuple[str, ...] = facts["classes"]
        self.palette: tuple[Color, ...] = facts["palette"]
        self.batch, _, height, width = self.session.get_inputs()[0].shape
        sliding = SlidingWindow(
            window=facts["window"],
            stride=facts["stride"],
            short_edge=facts["short_edge"],
            max_aspect=facts["max_aspect"],
            scales=MULTISCALE if multiscale else (1.0,),
            flip=multiscale,
            full_image=full_image,
            blend=True,
        )
        self.sliding = sliding.at_tile(tile)
        if full_image and isinstance(height, int):
            raise UserError(
                f"'{path}' takes windows of {height} x {width} only, not whole images: export it with --dynamic."
            )
        fixed = self.batch if isinstance(self.batch, int) else None
        self.spec = NetworkSpec(facts["mean"], facts["std"], facts["patch_size"], fixed)

    def labels(self, image: np.ndarray) -> np.ndarray:
        """The class of each pixel, uint8 or int16 (H, W), of an image uint8 RGB (H, W, 3)."""
        return predict(self.network, image, self.sliding, self.spec)

    def probabilities(self, image: np.ndarray) -> Bands:
        """Bands (start, stop, float32 (C, stop - start, W)) from top to bottom."""
        yield from probabilities(self.network, image, self.sliding, self.spec)

    def scores(self, images: Iterable[np.ndarray]) -> Iterator[Scores]:
        """The scores of each image."""
        return (apply(self.network, image, self.sliding, self.spec) for image in images)

    def network(self, images: np.ndarray) -> np.ndarray:
        """Logits (B, C, h, w) of normalized images (B, 3, H, W); a fixed batch size is filled up with zeros."""
        count = len(images)
        if isinstance(self.batch, int) and count < self.batch:
            images = np.concatenate([images, np.zeros((self.batch - count, *images.shape[1:]), images.dtype)])
        try:
            logits = self.session.run(None, {self.session.get_inputs()[0].name: images})[0]
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise UserError(f"'{self.path}' fails on images of shape {images.shape}: {one_line(error)}") from error
        if logits.ndim != 4 or logits.shape[1] != len(self.classes):
            raise UserError(f"'{self.path}' returns {logits.shape} instead of (batch, {len(self.classes)}, h, w).")
        return logits[:count]


def open_session(path: Path, device: str | None = None) -> Any:
    """An onnxruntime session on the CPU, or on `cuda` or `cuda:N` if this onnxruntime supports it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(f"'{path}' needs onnxruntime: pip install onnxruntime.") from error
    if not path.is_file():
        raise UserError(f"there is no file '{path}'.")
    kind, _, number = (device or "cpu").partition(":")
    provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(kind)
    if provider not in onnxruntime.get_available_providers() or not (number.isdecimal() or not number):
        raise UserError(f"the device '{device}' cannot be used by this onnxruntime; omit --device to use the CPU.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal():
        options.intra_op_num_threads = int(threads)
    provider_options = [{"device_id": number or "0"}] if kind == "cuda" else [{}]
    try:
        with utf8_path(path) as model:
            return onnxruntime.InferenceSession(model, options, [provider], provider_options)
    except Exception as error:  # as above
        raise UserError(f"'{path}' is not a readable ONNX model: {one_line(error)}") from error


def write_metadata(model: Any) -> dict[str, str]:
    """The metadata of a `SegmentationModel` for its ONNX file: JSON text by key."""
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
        "patch_size": model.multiple,
    }
    return {key: json.dumps(values[key]) for key in _KEYS}


def read_metadata(session: Any, path: Path) -> dict[str, Any]:
    """The metadata of a file, validated, since the file may be untrusted."""
    stored = session.get_modelmeta().custom_metadata_map
    if "depict" not in stored:
        raise UserError(f"'{path}' was not written by `depict export`: it has no class names.")
    if stored["depict"] != str(FORMAT):
        version = stored["depict"][:20]
        raise UserError(f"'{path}' has format {version}, this version of depict reads {FORMAT}: export it again.")
    try:
        values = {key: json.loads(stored[key]) for key in _KEYS}
        facts = {
            "classes": check_classes(values["classes"], f"the metadata of '{path}'"),
            "palette": check_colors(values["palette"], f"the metadata of '{path}'"),
            "mean": _numbers(values["mean"], 3, float, -10, 10),
            "std": _numbers(values["std"], 3, float, 1e-6, 10),
            "short_edge": None
            if values["short_edge"] is None
            else _numbers([values["short_edge"]], 1, int, 1, 1 << 16)[0],
            "max_aspect": _numbers([values["max_aspect"]], 1, float, 1, 1000)[0],
        }
        facts |= {key: _numbers(values[key], 2, int, 1, 1 << 16) for key in ("window", "stride", "patch_size")}
        if len(facts["classes"]) != len(facts["palette"]):
            raise ValueError("classes and palette differ")
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"the metadata of '{path}' are damaged ({one_line(error)}): export it again.") from error
    return facts


def _numbers(values: Any, count: int, kind: type, low: float, high: float) -> tuple[Any, ...]:
    numbers = tuple(kind(value) for value in values)
    if len(numbers) != count or not all(low <= number <= high for number in numbers):
        raise ValueError(f"{values!r} is out of range"[:100])
    return numbers
