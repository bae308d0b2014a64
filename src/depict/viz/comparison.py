"""Picture, ground truth, prediction and errors of an image next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from depict.data.dataset import IGNORE
from depict.viz.overlays import INK, PAPER, draw_legend, fit_text
from depict.viz.patches import paint

if TYPE_CHECKING:
    from depict.data.palette import Color

WRONG_COLOR = (255, 64, 32)
IGNORED_COLOR = (96, 96, 96)
TILE, GAP, CAPTION, TITLE = 256, 8, 22, 30
FAINT = (110, 112, 118)
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Comparison:
    """The panels of one image, uint8 (h, w, 3) of one size, and what they show."""

    index: int
    """Of the image in its data set."""
    name: str
    accuracy: float
    """Share of the labeled pixels that are right; NaN if no pixel is labeled."""
    picture: Pixels
    truth: Pixels
    prediction: Pixels
    errors: Pixels
    shares: dict[int, float]
    """Share of the labeled pixels of each class that is labeled or predicted."""

    @property
    def panels(self) -> dict[str, Pixels]:
        """The four panels by title."""
        return {
            "picture": self.picture,
            "truth": self.truth,
            "prediction": self.prediction,
            "errors in red": self.errors,
        }


def compare(
    index: int,
    name: str,
    image: Pixels,
    truth: NDArray[np.integer],
    prediction: NDArray[np.integer],
    palette: Sequence[Color],
    side: int = TILE,
) -> Comparison:
    """Compare labels (H, W) with those predicted for an image (H, W, 3).

    The longest side of a panel is at most `side` pixels; small images are enlarged to TILE pixels.
    """
    labeled = truth != IGNORE
    accuracy = float((truth == prediction)[labeled].mean()) if labeled.any() else float("nan")
    counts = np.bincount(truth[labeled], minlength=len(palette))
    predicted = np.bincount(prediction[labeled], minlength=len(palette))
    shares = {int(c): counts[c] / counts.sum() for c in np.flatnonzero(counts + predicted)}
    scale = min(side / max(truth.shape), max(1.0, TILE / max(truth.shape)))
    size = (max(1, round(truth.shape[1] * scale)), max(1, round(truth.shape[0] * scale)))
    picture = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
    rows, columns = (((np.arange(n) + 0.5) * m / n).astype(int) for n, m in zip(size[::-1], truth.shape, strict=True))
    truth, prediction = truth[rows][:, columns], prediction[rows][:, columns]
    colors = dict(enumerate(palette))
    errors = error_picture(picture, truth, prediction)
    return Comparison(index, name, accuracy, picture, paint(truth, colors), paint(prediction, colors), errors, shares)


def error_picture(image: Pixels, truth: NDArray[np.integer], prediction: NDArray[np.integer]) -> Pixels:
    """The image (H, W, 3) with correct pixels dimmed, wrong ones red and ignored ones gray."""
    correct = (0.4 * image).astype(np.uint8)
    wrong = (0.3 * image + 0.7 * np.array(WRONG_COLOR)).astype(np.uint8)
    errors = np.where((truth == prediction)[..., None], correct, wrong)
    errors[truth == IGNORE] = IGNORED_COLOR
    return errors


def draw_comparisons(
    comparisons: Sequence[Comparison], title: str, classes: Sequence[str], palette: Sequence[Color]
) -> Image.Image:
    """A sheet with a row for each image, and a legend with the share of each class in the truth."""
    height, column = (max(comparison.picture.shape[axis] for comparison in comparisons) for axis in (0, 1))
    titles, step = list(comparisons[0].panels), max(column, 120) + GAP
    width = len(titles) * step + GAP
    shares: dict[int, float] = {}
    for comparison in comparisons:
        for label, share in comparison.shares.items():
            shares[label] = shares.get(label, 1e-9) + share / len(comparisons)  # shown even if only predicted
    legend = draw_legend(width, classes, palette, shares)
    top, line = TITLE + CAPTION, height + CAPTION + GAP
    sheet = Image.new("RGB", (width, top + line * len(comparisons) + legend.height), PAPER)
    draw, font, small = ImageDraw.Draw(sheet), ImageFont.load_default(17), ImageFont.load_default(13)
    draw.text((GAP, GAP), fit_text(title, font, width - 2 * GAP), INK, font)
    for number, heading in enumerate(titles):
        draw.text((GAP + number * step, TITLE + 4), heading, FAINT, small)
    for row, comparison in enumerate(comparisons):
        y = top + row * line
        for number, panel in enumerate(comparison.panels.values()):
            sheet.paste(Image.fromarray(panel), (GAP + number * step, y))
        right = "no labels" if np.isnan(comparison.accuracy) else f"{100 * comparison.accuracy:.1f} % of pixels right"
        text = fit_text(comparison.name, small, width - 2 * GAP, f": {right}")
        draw.text((GAP, y + comparison.picture.shape[0] + 3), text, FAINT, small)
    sheet.paste(legend, (0, sheet.height - legend.height))
    return sheet
