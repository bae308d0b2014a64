"""A network of one convolution, in PyTorch and as an ONNX graph written by hand: exporting a real one takes seconds."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from depict.data import dataset_class
from depict.inference.onnx_predictor import write_metadata
from depict.inference.sliding import SlidingWindow

PATCH = 16


class ConvModel(nn.Module):
    """Masks from patches of 16 x 16 pixels, with what exporting needs to know of a `SegmentationModel`."""

    image_size, multiple = (32, 32), (PATCH, PATCH)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    classes, palette = dataset_class("scenes").classes, dataset_class("scenes").palette

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(3, len(self.classes), PATCH, PATCH)

    def masks(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, C, h, w); sizes that are no multiple of the patch are padded right and below."""
        return self.conv(F.pad(images, (0, -images.shape[3] % PATCH, 0, -images.shape[2] % PATCH)))

    def sliding_window(self) -> SlidingWindow:
        """Windows that overlap by half, in images of short edge 40."""
        return SlidingWindow(window=(32, 32), stride=(16, 16), short_edge=40, max_aspect=4.0, blend=True)


def write_graph(model: ConvModel, path: Path, dynamic: bool = False, batch: int | None = None) -> None:
    """What `torch.onnx` would write for the model."""
    height, width = ("height", "width") if dynamic else model.image_size
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch or "batch", 3, height, width])
    masks = helper.make_tensor_value_info(
        "masks", TensorProto.FLOAT, [batch or "batch", len(model.classes), None, None]
    )
    constants = {
        "weight": model.conv.weight.detach().numpy(),
        "bias": model.conv.bias.detach().numpy(),
        "pads": torch.tensor([0, 0, 0, 0, 0, 0, PATCH - 1, PATCH - 1]).numpy(),
    }
    nodes = [
        helper.make_node("Pad", ["images", "pads"], ["padded"]),
        helper.make_node("Conv", ["padded", "weight", "bias"], ["masks"], strides=[PATCH, PATCH]),
    ]
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "convolution", [images], [masks], initializers)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(file, write_metadata(model))
    onnx.save(file, path)
