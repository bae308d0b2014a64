"""`depict pca`: PCA as a segmenter on the embeddings of any ViT, without training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from depict.config.flags import Device, Picture, check_file, flag, keep_inputs
from depict.config.ranges import RANGES, check_numbers, whole
from depict.errors import UserError
from depict.terminal import say

if TYPE_CHECKING:
    import numpy as np

ENCODER = "vit_small_patch14_dinov2.lvd142m"
MAX_ASPECT = 4.0
"""Longer pictures get a shorter short edge than requested."""
SHOWN = 2000
"""Pixels of the longer side of the picture in the figure, at most twice as many: its panels have 400."""


@dataclass
class Embeddings:
    """Patch embeddings of one picture."""

    stages: dict[str, np.ndarray]
    """(N, D) by name: Z0, and Z_L1 of a decoder."""
    grid: tuple[int, int]
    cells: tuple[float, float]
    """Rows and columns of patches that the picture covers; the rest of the grid is padding."""


def main(
    image: Picture,
    encoder: Annotated[str | None, flag(ENCODER, "NAME")] = None,
    pretrained: Annotated[str, arg(name="encoder.pretrained", metavar="True|False|FILE")] = "True",
    run: Annotated[str | None, flag("none", "RUN")] = None,
    directions: int = 10,
    centered: bool = True,
    short_edge: int = 448,
    stride: Annotated[int | None, flag("the coarsest level", "INT")] = None,
    out: Annotated[Path | None, flag("NAME-pca.png", "FILE.png")] = None,
    device: Device = None,
) -> int:
    """Segment a picture by the principal directions of a ViT's patch embeddings.

    Each patch is assigned to the direction u with the largest |u·z|. The figure shows the picture, the
    patches by direction and by k-means cluster with the share of each, and the first three components as
    red, green and blue. With --run, it also shows them after the last decoder step that changes the
    patches. The shares are written as JSON next to the figure.

    Examples:
        depict pca photo.jpg
        depict pca photo.jpg --encoder vit_tiny_patch16_224
        depict pca photo.jpg --run runs/mine --out directions.png

    Args:
        image: The picture.
        encoder: timm name of any encoder.
        pretrained: Weights: True loads timm's, FILE a .safetensors or .pth file, False starts from random ones.
        run: Use the encoder and the decoder of this run instead.
        directions: Number of principal directions and of clusters.
        centered: Subtract the mean first.
        short_edge: Short edge that the picture is resized to, in pixels. A run uses its own.
        stride: Level of a hierarchical encoder, such as 8: pixels per embedding. A run shows the tokens of its decoder.
        out: File to write.
        device: cpu, cuda, cuda:1 or mps.
    """
    from depict.analysis.figures.pca import pca_figure
    from depict.analysis.pca import patch_maps
    from depict.devices import find_device
    from depict.io.files import atomic_path, write_json
    from depict.io.images import read_image
    from depict.viz.style import figure_style

    path = out or Path(f"{image.stem}-pca.png")
    check_file(path, ".png")
    keep_inputs(path, image)
    check_numbers(whole(1, 1000), directions=directions)
    check_numbers(RANGES["data.short_edge"], short_edge=short_edge)
    if run is not None and (encoder is not None or pretrained != "True" or stride is not None):
        raise UserError("give --run or --encoder and --stride, not both: a run has its own encoder and tokens.")
    picture = read_image(image)
    if run is None:
        name = encoder or ENCODER
        embeddings = encode(picture, name, pretrained, short_edge, stride, find_device(device))
        source = {"encoder": name, "pretrained": pretrained}
    else:
        embeddings = unroll(picture, run, find_device(device))
        source = {"run": run}
    grid = embeddings.grid
    patches = grid[0] * grid[1]
    if directions > patches:
        raise UserError(f"--directions must be at most {patches}, the patches of the picture, not {directions}.")
    maps = {stage: patch_maps(Z, grid, directions, centered) for stage, Z in embeddings.stages.items()}
    with figure_style(font_size=9), atomic_path(path) as temporary:
        step = max(1, max(picture.shape) // SHOWN)
        pca_figure(picture[::step, ::step], maps, embeddings.cells).savefig(temporary, format="png", dpi=150)
    about = {"image": str(image), **source, "directions": directions, "centered": centered, "grid": list(grid)}
    facts = {stage: patches.facts() for stage, patches in maps.items()}
    write_json(path.with_suffix(".json"), about | {"embeddings": facts})
    say(f"written: {path} and {path.with_suffix('.json')} ({grid[0]} x {grid[1]} patches)")
    return 0


def encode(
    picture: np.ndarray, name: str, pretrained: str, short_edge: int, stride: int | None, device: str
) -> Embeddings:
    """Z0 of an encoder of timm: its level of this stride, or the coarsest."""
    import numpy as np
    import torch
    import torch.nn.functional as F

    from depict.encoders import create_encoder
    from depict.inference.preprocess import normalize, resize_image
    from depict.inference.sliding import MAX_FULL_IMAGE_PIXELS, resized_size

    size = resized_size(picture.shape[0], picture.shape[1], short_edge, MAX_ASPECT)
    if size[0] * size[1] > MAX_FULL_IMAGE_PIXELS:
        raise UserError(f"--short-edge {short_edge} gives {size[0]} x {size[1]} pixels: choose a smaller one.")
    weights: bool | str = {"True": True, "False": False}.get(pretrained, pretrained)
    network = create_encoder(name, size, weights, stride=stride).to(device).eval()
    strides = [height for height, _ in network.strides]
    if stride not in (None, *strides):
        raise UserError(f"'{name}' has no level of stride {stride}: try --stride {strides[0]}.")
    level = -1 if stride is None else strides.index(stride)
    pixels = torch.from_numpy(np.require(picture, requirements="W")).permute(2, 0, 1)
    pixels = resize_image(pixels[None], size, antialias=True).to(device)
    below, right = (-length % multiple for length, multiple in zip(size, network.multiple, strict=True))
    with torch.inference_mode():
        Z0 = network(F.pad(normalize(pixels, network.mean, network.std), (0, right, 0, below)))[level][0]
    cell = network.strides[level]
    grid = (Z0.shape[0], Z0.shape[1])
    return Embeddings({"Z0": Z0.flatten(0, 1).cpu().numpy()}, grid, (size[0] / cell[0], size[1] / cell[1]))


def unroll(picture: np.ndarray, run: str, device: str) -> Embeddings:
    """Z0 and Z_L1 of a run; Z0 alone if its decoder does not move the patches."""
    import depict
    from depict.analysis.principal import stages

    model = depict.load(run).to(device)
    trace = model.unroll(picture)
    first, *others = stages(trace).values()
    ends = {"Z0": first} | ({"Z_L1": others[-1]} if others else {})
    return Embeddings(ends, trace.grid, model.layout(picture.shape[0], picture.shape[1]).cells(model.stride))
