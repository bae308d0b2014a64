"""A sheet of samples with their labels, as training sees them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from depict.data.dataset import IGNORE, Dataset
from depict.data.transforms import Augmentation, sample_generator
from depict.io.files import atomic_path
from depict.viz.overlays import INK, PAPER, blend_labels, fit_text

COLUMNS, ROWS = 3, 4
TILE, GAP, MARGIN, TITLE, CAPTION = 224, 6, 28, 52, 22
LEGEND_ROW, LEGEND_COLUMN = 24, 230
FAINT, PADDING = (120, 122, 128), (228, 228, 226)
PAIR = 2 * TILE + GAP
WIDTH = 2 * MARGIN + COLUMNS * PAIR + (COLUMNS - 1) * 3 * GAP


class Sample(NamedTuple):
    """One sample, neither normalized nor padded."""

    name: str
    image: np.ndarray
    """uint8 (h, w, 3)."""
    labels: np.ndarray
    """uint8 (h, w)."""


def draw_samples(dataset: Dataset, path: Path, augmentation: Augmentation | None, seed: int = 0) -> None:
    """Draw 12 samples, each as the image and with its labels; samples of a smaller set are repeated.

    They are augmented as in training, or whole images if there is no `augmentation`.
    """
    samples = random_samples(dataset, augmentation, seed)
    counts = np.sum([np.bincount(sample.labels.ravel(), minlength=256) for sample in samples], axis=0)
    legend = _draw_legend(dataset, counts)
    sizes = [sample.labels.shape if augmentation is None else augmentation.crop for sample in samples]
    tall = max(height * TILE // max(height, width) for height, width in sizes)
    top, row = MARGIN + TITLE, tall + CAPTION + GAP
    height = top + ROWS * row + 16 + legend.height + MARGIN
    sheet = Image.new("RGB", (WIDTH, height), PAPER)
    draw, small = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    draw.text((MARGIN, MARGIN - 6), f"{dataset.name}, {dataset.split}", INK, ImageFont.load_default(24))
    draw.text((MARGIN, MARGIN + 24), f"{_subject(augmentation)}, and their labels", FAINT, small)
    for number, ((name, image, labels), size) in enumerate(zip(samples, sizes, strict=True)):
        x = MARGIN + number % COLUMNS * (PAIR + 3 * GAP)
        y = top + number // COLUMNS * row
        sheet.paste(_tile(image, size), (x, y))
        sheet.paste(_tile(blend_labels(image, labels, dataset.palette), size), (x + TILE + GAP, y))
        draw.text((x, y + tall + 3), fit_text(name, small, PAIR), FAINT, small)
    sheet.paste(legend, (MARGIN, height - MARGIN - legend.height))
    with atomic_path(path) as temporary:
        sheet.save(temporary, format="PNG")


def random_samples(dataset: Dataset, augmentation: Augmentation | None, seed: int) -> list[Sample]:
    """Random samples, each time augmented in another way."""
    order = np.random.default_rng(seed).permutation(len(dataset)).tolist()
    samples = []
    for number in range(COLUMNS * ROWS):
        epoch, position = divmod(number, len(dataset))
        index = order[position]
        image, labels = dataset.read(index)
        if augmentation is not None:
            image, labels = augmentation.vary(image, labels, sample_generator(seed, epoch, index))
        samples.append(Sample(dataset.name_of(index), image.permute(1, 2, 0).numpy(), labels.numpy()))
    return samples


def _subject(augmentation: Augmentation | None) -> str:
    """What the tiles are, for the title."""
    if augmentation is None:
        return "whole images, not augmented"
    height, width = augmentation.crop
    small, large = augmentation.scale_range
    steps = ["mirrored at random"] * augmentation.flip + ["colors distorted"] * augmentation.color_jitter
    changes = "".join(f", {step}" for step in steps)
    return (
        f"crops of {width} x {height} pixels from images of short edge {augmentation.short_edge} times "
        f"{small:g} to {large:g}{changes}"
    )


def _draw_legend(dataset: Dataset, counts: np.ndarray) -> Image.Image:
    """Color, name and share of the classes present, by `counts` of pixels per label, and of ignored pixels."""
    present = [label for label in np.argsort(-counts[:IGNORE], kind="stable").tolist() if counts[label]]
    entries = [(dataset.classes[label], dataset.palette[label], counts[label]) for label in present]
    per_row = (WIDTH - 2 * MARGIN) // LEGEND_COLUMN
    rows = -(-(len(entries) + 1) // per_row)
    legend = Image.new("RGB", (WIDTH - 2 * MARGIN, rows * LEGEND_ROW), PAPER)
    draw, font = ImageDraw.Draw(legend), ImageFont.load_default(13)
    total = max(1, int(counts.sum()))
    for number, (name, color, count) in enumerate([*entries, ("ignored", None, counts[IGNORE])]):
        x, y = number % per_row * LEGEND_COLUMN, number // per_row * LEGEND_ROW
        draw.rectangle((x, y + 3, x + 16, y + 19), color or PAPER, outline=color or FAINT)
        if color is None:
            draw.line((x, y + 19, x + 16, y + 3), FAINT)
        draw.text((x + 24, y + 3), fit_text(name, font, 200, f"  {100 * count / total:.1f} %"), INK, font)
    return legend


def _tile(picture: np.ndarray, full: tuple[int, int]) -> Image.Image:
    """Scale so that a picture of the size `full` fills the tile; a smaller one leaves padding visible."""
    width, height, *size = (max(1, side * TILE // max(full)) for side in (*full[::-1], *picture.shape[1::-1]))
    tile = Image.new("RGB", (width, height), PADDING)
    tile.paste(Image.fromarray(picture).resize((size[0], size[1]), Image.Resampling.LANCZOS), (0, 0))
    return tile
