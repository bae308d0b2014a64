"""Exporting a model to ONNX: the network from normalized images (B, 3, H, W) to masks (B, C, h, w) of its tokens.

Upsampling is not part of the graph, so that memory does not grow with C x H x W; `onnx_predictor.py` does it. A file is
written only if onnxruntime gives PyTorch's numbers, also at other batches and sizes than the traced ones.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from depict.data.dataset import Subset
from depict.errors import UserError
from depict.evaluation import evaluate
from depict.inference.onnx_predictor import OnnxPredictor, open_session, write_metadata
from depict.io.files import atomic_path

if TYPE_CHECKING:
    from depict.data.dataset import Dataset
    from depict.model import SegmentationModel

TOLERANCE = 1e-3
"""Largest difference between onnxruntime's and PyTorch's masks that passes."""
Shape = tuple[int, int, int, int]


class _Masks(nn.Module):
    """`SegmentationModel.masks` as a forward pass."""

    def __init__(self, model: SegmentationModel):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Masks (B, C, h, w)."""
        return self.model.masks(images)


def export(
    model: SegmentationModel, path: Path, *, dynamic: bool = False, batch: int | None = None
) -> dict[Shape, float]:
    """Write `model` to `path` and compare with PyTorch; returns the largest difference of the masks by input shape.

    Height and width are those of the model's window, or any if `dynamic`; any batch is allowed, unless it is given.
    """
    if batch is not None and batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}.")
    model = model.cpu().float().eval()
    with atomic_path(path) as temporary:
        _write(model, temporary, dynamic, batch)
        differences = {shape: _difference(model, temporary, shape) for shape in _shapes(model, dynamic, batch)}
        if not all(difference <= TOLERANCE for difference in differences.values()):  # NaN fails too
            raise UserError(
                f"'{path}' is not written: onnxruntime differs from PyTorch by {max(differences.values()):.2g}, "
                f"more than {TOLERANCE:g}."
            )
    return differences


def quantize(source: Path, path: Path) -> None:
    """Write the ONNX file `source` to `path` with 8-bit weights in its matrix products (dynamic quantization)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with atomic_path(path) as temporary, _quiet():
        quantize_dynamic(source, temporary, op_types_to_quantize=["MatMul", "Gemm"], weight_type=QuantType.QInt8)


def mean_iou(path: Path, dataset: Dataset, images: int) -> float:
    """mIoU of an ONNX file on the first `images` of a data set, in 0..1."""
    first = Subset(dataset, list(range(min(images, len(dataset)))))
    return evaluate(OnnxPredictor(path), first, progress=True).miou


def _write(model: SegmentationModel, path: Path, dynamic: bool, batch: int | None) -> None:
    """Trace the model and write the graph with its metadata.

    If any size is to work, it is traced at another size than the model's own, so that none is fixed by accident.
    """
    try:
        import onnxscript  # noqa: F401 - needed by torch.onnx
    except ImportError as error:
        raise UserError("exporting to ONNX needs more packages: pip install onnx onnxruntime onnxscript.") from error
    height, width = model.image_size
    if dynamic:
        height, width = height + model.multiple[0], width + 3 * model.multiple[1]
    free = torch.export.Dim.DYNAMIC
    axes = ({0: free} if batch is None else {}) | ({2: free, 3: free} if dynamic else {})
    try:
        with _quiet():
            program = torch.onnx.export(
                _Masks(model).eval(),
                (torch.zeros(batch or 2, 3, height, width),),
                input_names=["images"],
                output_names=["masks"],
                dynamic_shapes={"images": axes},
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        advice = "omit --dynamic" if dynamic else "try another encoder"
        raise UserError(f"'{model.encoder.name}' cannot be exported with these options: {advice}.") from error
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # source lines with paths of this machine
    program.model.metadata_props.update(write_metadata(model))
    program.save(path, external_data=False)


def _shapes(model: SegmentationModel, dynamic: bool, batch: int | None) -> list[Shape]:
    """Input shapes to compare at: batch 1 and 3 of the window; if any size is allowed, also wide, tall and odd ones."""
    (height, width), (ph, pw) = model.image_size, model.multiple
    sizes = [(height, width)]
    if dynamic:
        sizes += [(height + 2 * ph, width), (max(1, height - ph // 2), width + pw + 1), (ph, 2 * pw)]
        rows, columns = math.ceil(height / ph), math.ceil(width / pw)
        if rows % 2 == 0:
            # The model's own number of patches in another shape: released models do not resize their positions there.
            sizes.append((rows // 2 * ph, 2 * columns * pw))
    return [(count, 3, *size) for size in sizes for count in ((1, 3) if batch is None else (batch,))]


def _difference(model: SegmentationModel, path: Path, shape: Shape) -> float:
    """The largest difference between onnxruntime's and PyTorch's masks of random images."""
    images = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    with torch.inference_mode():
        expected = model.masks(images)
    masks = open_session(path).run(None, {"images": images.numpy()})[0]
    if masks.shape != tuple(expected.shape):
        raise UserError(f"the exported model gives masks {masks.shape} for {shape}, not {tuple(expected.shape)}.")
    return float(np.abs(masks - expected.numpy()).max())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of exporters: whether the file is right is checked afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
