"""An image as a network sees it, in torch: resized, normalized, and enlarged where the window does not fit.

`numpy_backend.NetworkInput` does the same without torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from depict.inference.resample import AxisMap, bilinear
from depict.inference.sliding import Layout

Channels = Sequence[float] | Tensor
"""A value for each of red, green and blue, in 0..1."""


def resize_image(image: Tensor, size: tuple[int, int], antialias: bool = False) -> Tensor:
    """Bilinear on uint8 (..., H, W), on the CPU, so that the result does not depend on the device."""
    from torchvision.transforms.v2 import functional  # slow to import

    return functional.resize(image.cpu(), list(size), functional.InterpolationMode.BILINEAR, antialias=antialias)


def normalize(images: Tensor, mean: Channels, std: Channels) -> Tensor:
    """uint8 RGB (..., 3, H, W) -> float32 of the same shape, (value / 255 - mean) / std."""
    shift, scale = (torch.as_tensor(v, dtype=torch.float32, device=images.device).view(3, 1, 1) for v in (mean, std))
    return images.float().div(255).sub_(shift).div_(scale)


class NetworkInput:
    """One image at one scale as the network sees it: normalized pixels of `layout.size`, in crops or whole.

    The image uint8 (3, H, W) is resized to `layout.resized` and normalized. If the window does not
    fit, the normalized image is enlarged to `layout.size`. Crops are enlarged one by one: a 1 x
    1000 image becomes 64 windows.
    """

    def __init__(
        self,
        image: Tensor,
        layout: Layout,
        mean: Channels,
        std: Channels,
        device: torch.device | str = "cpu",
        flip: bool = False,
    ):
        self.size = layout.size
        self.mean, self.std = (torch.tensor(v, dtype=torch.float32, device=device) for v in (mean, std))
        self.pixels = resize_image(image, layout.resized).to(device)
        if flip:
            self.pixels = self.pixels.flip(2)
        self.enlarged = layout.size != layout.resized
        if self.enlarged:
            self.pixels = normalize(self.pixels, self.mean, self.std)
        self.rows, self.columns = (bilinear(*axis) for axis in zip(layout.resized, layout.size, strict=True))

    def crop(self, top: int, left: int, height: int, width: int) -> Tensor:
        """Normalized pixels float32 (3, height, width)."""
        rows, columns = slice(top, top + height), slice(left, left + width)
        if self.enlarged:
            return _interpolate(self.pixels, self.rows[rows], self.columns[columns])
        return normalize(self.pixels[:, rows, columns], self.mean, self.std)

    def full(self) -> Tensor:
        """The whole image, float32 (3, *layout.size)."""
        return self.crop(0, 0, *self.size)


def _interpolate(pixels: Tensor, rows: AxisMap, columns: AxisMap) -> Tensor:
    """Interpolate both axes of (3, H, W), rows first, reading only the columns that are used."""
    first, last = int(columns.indices.min()), int(columns.indices.max())
    values = pixels[:, :, first : last + 1]
    for dim, axis, offset in ((1, rows, 0), (2, columns, first)):
        indices = torch.from_numpy(axis.indices - offset).to(pixels.device)
        weights = torch.from_numpy(axis.weights).to(pixels.device)
        shape = (-1, 1) if dim == 1 else (-1,)
        low, high = (values.index_select(dim, i).mul_(w.view(shape)) for i, w in zip(indices.T, weights.T, strict=True))
        values = low.add_(high)
    return values
