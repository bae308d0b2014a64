"""`depict pca`: PCA as segmenter on the embeddings of any ViT, with no training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from depict.config.flags import Device, Picture, check_at_least, check_file, flag
from depict.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Cells = tuple[float, float]

ENCODER = "vit_small_patch14_dinov2.lvd142m"
LARGEST_RATIO = 4.0
"""Longer pictures are made smaller than --side."""


def main(
    image: Picture,
    encoder: Annotated[str | None, flag(ENCODER, "NAME")] = None,
    pretrained: Annotated[str, arg(name="encoder.pretrained", metavar="True|False|FILE")] = "True",
    run: Annotated[str | None, flag("none", "RUN")] = None,
    directions: int = 10,
    centered: bool = True,
    side: int = 448,
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
        depict pca photo.jpg --run runs/mine --out photo.png

    Args:
        image: The picture.
        encoder: timm name of any plain ViT.
        pretrained: Weights: True loads timm's, FILE a .safetensors or .pth file, False starts from random ones.
        run: Use the encoder and the decoder of this run instead.
        directions: Number of principal directions and of clusters.
        centered: Subtract the mean first.
        side: Short edge that the picture is resized to, in pixels. A run uses its own.
        out: File to write.
        device: cpu, cuda, cuda:1 or mps.
    """
    from depict.devices import find_device
    from depict.io.files import atomic_path, write_json
    from depict.io.images import read_image

    path = out or Path(f"{image.stem}-pca.png")
    check_file(path, ".png")
    check_at_least(1, directions=directions, side=side)
    if run is not None and (encoder is not None or pretrained != "True"):
        raise UserError("give --encoder or --run, not both: a run has its own encoder.")
    picture = read_image(image)
    place = find_device(device)
    if run is None:
        name = encoder or ENCODER
        found, grid, cells = encode(picture, name, pretrained, side, place)
        source = {"encoder": name, "pretrained": pretrained}
    else:
        found, grid, cells = unroll(picture, run, place)
        source = {"run": run}
    patches = math.prod(grid)
    if directions > patches:
        raise UserError(f"--directions must be at most {patches}, the patches of the picture, not {directions}.")
    maps = {name: segment(Z, grid, directions, centered) for name, Z in found.items()}
    with atomic_path(path) as temporary:
        draw(picture, maps, cells).savefig(temporary, format="png", dpi=130)
    about = {"image": str(image), **source, "directions": directions, "centered": centered, "grid": list(grid)}
    facts = {name: {key: part for key, part in one.items() if key != "maps"} for name, one in maps.items()}
    write_json(path.with_suffix(".json"), about | {"embeddings": facts})
    print(f"written: {path} and {path.with_suffix('.json')} ({grid[0]} x {grid[1]} patches)")
    return 0


def encode(
    picture: np.ndarray, name: str, pretrained: str, side: int, device: str
) -> tuple[dict[str, np.ndarray], tuple[int, int], Cells]:
    """Z0 (N, D) of an encoder of timm, the grid, and how many rows and columns of patches the picture covers."""
    import torch
    import torch.nn.functional as F

    from depict.encoder import Encoder
    from depict.inference.preprocess import normalize, resize_image
    from depict.inference.sliding import resized_size

    size = resized_size(picture.shape[0], picture.shape[1], side, LARGEST_RATIO)
    weights: bool | str = {"True": True, "False": False}.get(pretrained, pretrained)
    vit = Encoder(name, size, weights).to(device).eval()
    pixels = resize_image(torch.tensor(picture).permute(2, 0, 1)[None], size, antialias=True).to(device)
    below, right = (-length % patch for length, patch in zip(size, vit.patch_size, strict=True))
    with torch.inference_mode():
        Z0, grid = vit(F.pad(normalize(pixels, vit.mean, vit.std), (0, right, 0, below)))
    return {"Z0": Z0[0].cpu().numpy()}, grid, (size[0] / vit.patch_size[0], size[1] / vit.patch_size[1])


def unroll(picture: np.ndarray, run: str, device: str) -> tuple[dict[str, np.ndarray], tuple[int, int], Cells]:
    """Z0 and Z_L1 (N, D) of a run, the grid, and the rows and columns of patches that the picture covers."""
    import depict
    from depict.analysis.principal import stages

    model = depict.load(run).to(device)
    trace = model.unroll(picture)
    cells = model.layout(picture.shape[0], picture.shape[1]).cells(model.patch_size)
    found = list(stages(trace).values())
    return {"Z0": found[0]} | ({"Z_L1": found[-1]} if len(found) > 1 else {}), trace.grid, cells


def segment(Z: np.ndarray, grid: tuple[int, int], directions: int, centered: bool) -> dict[str, Any]:
    """Patches by direction, by cluster and by their first three components; shares as plain values."""
    import numpy as np

    from depict.analysis.partitions import segments
    from depict.analysis.principal import kmeans_segments, pca_segments, principal_directions

    U, energy = principal_directions(Z, directions, centered)
    maps = {"PCA": pca_segments(Z, directions, centered), "k-means": kmeans_segments(Z, directions)}
    three = (Z - Z.mean(0)) @ principal_directions(Z, 3, centered=True)[0].T
    low, high = np.percentile(three, (1, 99), axis=0)
    colors = ((three - low) / np.maximum(high - low, 1e-12)).clip(0, 1)
    colors = np.pad(colors, ((0, 0), (0, 3 - colors.shape[1])))
    everywhere = np.ones(grid, bool)
    return {
        "dimension": Z.shape[1],
        "energy": energy.tolist(),
        "shares": {name: (np.bincount(one, minlength=len(U)) / len(Z)).tolist() for name, one in maps.items()},
        "segments": {name: segments(one.reshape(grid), everywhere) for name, one in maps.items()},
        "maps": {name: one.reshape(grid) for name, one in maps.items()} | {"components": colors.reshape(*grid, 3)},
    }


def draw(picture: np.ndarray, found: dict[str, dict[str, Any]], cells: Cells) -> Figure:
    """A row for each kind of embeddings: input, directions, clusters, components; shares as bars below."""
    from matplotlib.figure import Figure

    from depict.analysis.principal import on_pixels, paint
    from depict.data.palette import distinct_colors

    size = (picture.shape[0], picture.shape[1])
    width = 3.0
    height = min(6.0, max(0.6, width * size[0] / size[1]))
    figure = Figure(figsize=(4 * width, len(found) * (height + 0.75)), layout="constrained")
    axes = figure.subplots(2 * len(found), 4, height_ratios=[height, 0.25] * len(found), squeeze=False)
    for number, (name, one) in enumerate(found.items()):
        count = len(one["energy"])
        colors = dict(enumerate(distinct_colors(max(count, *(len(s) for s in one["shares"].values())))))
        above, below = axes[2 * number], axes[2 * number + 1]
        label = name.replace("Z_L1", "$Z_{L_1}$").replace("Z0", "$Z_0$")
        panels = {
            "input": picture,
            f"PCA on {label}: {count} directions": on_pixels(paint(one["maps"]["PCA"], colors), size, cells),
            f"k-means on {label}": on_pixels(paint(one["maps"]["k-means"], colors), size, cells),
            f"first three components of {label}": on_pixels(one["maps"]["components"], size, cells),
        }
        for place, (title, panel) in zip(above, panels.items(), strict=True):
            place.imshow(panel, interpolation="nearest")
            place.set_title(title, fontsize=10)
            place.set_axis_off()
        for place in below:
            place.set_axis_off()
        for place, shares in zip(below[1:3], one["shares"].values(), strict=True):
            _bar(place, shares, colors)
    return figure


def _bar(axes: Axes, shares: list[float], colors: dict[int, tuple[int, int, int]]) -> None:
    """Shares of the patches as one bar, the number of each part in it where there is room."""
    left = 0.0
    for part, share in enumerate(shares):
        axes.barh(0, share, left=left, color=[value / 255 for value in colors[part]], edgecolor="white", lw=0.5)
        if share >= 0.06:
            ink = "black" if sum(colors[part]) > 300 else "white"
            axes.text(left + share / 2, 0, f"{100 * share:.0f} %", ha="center", va="center", fontsize=7, color=ink)
        left += share
    axes.set(xlim=(0, 1), ylim=(-0.4, 0.4))
