"""Values on the patch grid as pixels of the image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from depict.data.palette import Color

UNKNOWN: Color = (225, 225, 222)
"""Color of labels without one, such as ignored pixels."""


def on_pixels(values: NDArray[Any], size: tuple[int, int], cells: tuple[float, float]) -> NDArray[Any]:
    """Values of patches (h, w, ...) at every pixel of an image of `size`, which covers `cells` rows and columns."""
    rows, columns = (
        ((np.arange(length) + 0.5) / length * covered).astype(int) for length, covered in zip(size, cells, strict=True)
    )
    return values[rows][:, columns]


def paint(labels: NDArray[np.integer], colors: Mapping[int, Color]) -> NDArray[np.uint8]:
    """Labels (h, w) as an RGB image (h, w, 3)."""
    table = np.full((max(256, int(labels.max()) + 1, *(label + 1 for label in colors)), 3), UNKNOWN, np.uint8)
    for label, color in colors.items():
        table[label] = color
    return table[labels]
