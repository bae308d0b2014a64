"""A picture segmented by one run: what the page shows of it, and the files to download. Needs no torch."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from depict.errors import UserError
from depict.inference.predictors import Predictor
from depict.prediction import write_probabilities
from depict.viz.overlays import label_picture, label_shares, overlay

VIEW = 768
"""Longest side in pixels of the maps that the page gets; downloads have the picture's own size."""
NEXT = 3
"""Classes that are named at each pixel: the predicted one and the next two."""
MAX_PROBABILITIES = 64 << 20
"""Values of a download of probabilities at most, 2 bytes each."""


@dataclass(frozen=True)
class Segmentation:
    """The result of one picture."""

    size: tuple[int, int]
    """Height and width of the picture."""
    labels: bytes
    """PNG (H, W) with the class of each pixel."""
    shares: dict[int, float]
    """Share of the picture of each class."""
    confidence: float
    """Mean over the maps of the largest probability."""
    view: tuple[int, int]
    """Height and width of the maps."""
    maps: bytes
    """gzip of the `NEXT` most probable classes (NEXT, h, w), uint8 or uint16, then their probabilities * 255, uint8."""

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return len(self.labels) + len(self.maps)


def segment(predictor: Predictor, image: np.ndarray, proceed: Callable[[], None]) -> Segmentation:
    """Segment an image uint8 RGB (H, W, 3). `proceed` is called now and then, and may raise to give up."""
    scores = next(iter(predictor.scores([image])))
    proceed()
    dtype = np.uint8 if len(predictor.classes) <= 256 else np.uint16
    labels = scores.labels().astype(dtype, copy=False)
    view = view_size(*labels.shape)
    classes, probabilities = np.zeros((NEXT, *view), dtype), np.zeros((NEXT, *view), np.uint8)
    certain = 0.0
    for start, stop, band in scores.probabilities(view):
        proceed()
        left = band.copy()
        certain += float(left.max(0).sum(dtype=np.float64))
        for rank in range(min(NEXT, len(left))):
            best = left.argmax(0)[None]
            classes[rank, start:stop] = best[0]
            probabilities[rank, start:stop] = np.rint(255 * np.take_along_axis(left, best, 0)[0])
            np.put_along_axis(left, best, -1, 0)
    return Segmentation(
        size=(labels.shape[0], labels.shape[1]),
        labels=as_png(label_picture(labels, predictor.palette)),
        shares=label_shares(labels, range(len(predictor.classes))),
        confidence=certain / (view[0] * view[1]),
        view=view,
        maps=gzip.compress(classes.tobytes() + probabilities.tobytes(), 3, mtime=0),
    )


def summary(predictor: Predictor, result: Segmentation) -> dict[str, Any]:
    """The classes of a picture with their shares, largest first, as plain JSON values."""
    present = sorted(filter(result.shares.get, result.shares), key=lambda index: -result.shares[index])
    return {
        "height": result.size[0],
        "width": result.size[1],
        "mean_confidence": round(result.confidence, 6),
        "classes": [
            {
                "label": index,
                "name": predictor.classes[index],
                "color": list(predictor.palette[index]),
                "share": round(result.shares[index], 6),
            }
            for index in present
        ],
    }


def overlay_png(predictor: Predictor, image: np.ndarray, result: Segmentation) -> bytes:
    """The picture with its classes in color and a legend, as `depict segment` writes it."""
    labels = np.asarray(Image.open(io.BytesIO(result.labels)))
    return as_png(overlay(image, labels, predictor.classes, predictor.palette, result.shares))


def probabilities_npz(predictor: Predictor, image: np.ndarray) -> bytes:
    """`probabilities` float16 (H, W, C) and `classes`, as `depict segment --probabilities` writes them."""
    height, width = image.shape[:2]
    if height * width * len(predictor.classes) > MAX_PROBABILITIES:
        raise UserError(
            f"the probabilities of {len(predictor.classes)} classes at {width} x {height} pixels are too large to "
            "download: use `depict segment --probabilities`, or a smaller picture."
        )
    file = io.BytesIO()
    classes = range(len(predictor.classes))
    write_probabilities(file, predictor.classes, classes, (height, width), predictor.probabilities(image))
    return file.getvalue()


def view_size(height: int, width: int) -> tuple[int, int]:
    """Height and width of the maps of a picture: at most `VIEW`, in its proportions."""
    factor = min(1.0, VIEW / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor))


def as_png(picture: Image.Image) -> bytes:
    """Encode quickly rather than tightly."""
    file = io.BytesIO()
    picture.save(file, "png", compress_level=1)
    return file.getvalue()
