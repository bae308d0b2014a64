"""A picture of augmented samples with their masks, as training sees them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from depict.data.dataset import IGNORE, Dataset
from depict.data.transforms import Augmentation, sample_generator
from depict.io.files import atomic_path
from depict.viz.overlays import INK, PAPER, colored, shortened

COLUMNS, ROWS, TILE, GAP, MARGIN = 3, 4, 224, 6, 28
FAINT = (120, 122, 128)
LEGEND_ROW = 24


def draw_samples(dataset: Dataset, path: Path, seed: int = 0) -> None:
    """Draw 12 samples, each twice: the augmented crop, and the crop under its labels. A small set comes again."""
    recipe, samples = dataset.recipe, _augmented(dataset, seed)
    counts = np.sum([np.bincount(labels.ravel(), minlength=256) for _, _, labels in samples], axis=0)
    present = [label for label in np.argsort(-counts[:IGNORE], kind="stable").tolist() if counts[label]]

    pair, caption = 2 * TILE + GAP, 22
    width = 2 * MARGIN + COLUMNS * pair + (COLUMNS - 1) * 3 * GAP
    per_row = max(1, (width - 2 * MARGIN) // 230)
    legend_rows = -(-(len(present) + 1) // per_row)
    top = MARGIN + 52
    height = top + ROWS * (TILE + caption + GAP) + 16 + legend_rows * LEGEND_ROW + MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    title, small = ImageFont.load_default(24), ImageFont.load_default(13)
    draw.text((MARGIN, MARGIN - 6), f"{dataset.name}, {dataset.split}", INK, title)
    draw.text((MARGIN, MARGIN + 24), f"augmented crops of {recipe.crop}x{recipe.crop}, and their labels", FAINT, small)
    for number, (name, image, labels) in enumerate(samples):
        x = MARGIN + number % COLUMNS * (pair + 3 * GAP)
        y = top + number // COLUMNS * (TILE + caption + GAP)
        sheet.paste(_tile(image, recipe.crop), (x, y))
        sheet.paste(_tile(colored(image, labels, dataset.palette), recipe.crop), (x + TILE + GAP, y))
        draw.text((x, y + TILE + 3), shortened(name, small, pair), FAINT, small)
    y = height - MARGIN - legend_rows * LEGEND_ROW
    total = max(1, int(counts.sum()))
    entries = [(dataset.classes[label], dataset.palette[label], counts[label]) for label in present]
    for number, (name, color, count) in enumerate([*entries, ("ignored", None, counts[IGNORE])]):
        x, line = MARGIN + number % per_row * 230, y + number // per_row * LEGEND_ROW
        box = (x, line + 3, x + 16, line + 19)
        draw.rectangle(box, color or PAPER, outline=color or FAINT)
        if color is None:
            draw.line((x, line + 19, x + 16, line + 3), FAINT)
        draw.text((x + 24, line + 3), shortened(name, small, 200, f"  {100 * count / total:.1f} %"), INK, small)
    with atomic_path(path) as temporary:
        sheet.save(temporary, format="PNG")


def _augmented(dataset: Dataset, seed: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(name, image (h, w, 3), labels (h, w)) of some samples, not yet normalized and padded."""
    recipe = dataset.recipe
    augmentation = Augmentation(
        recipe.short_edge, recipe.max_aspect, (recipe.crop, recipe.crop), (0.5,) * 3, (0.5,) * 3
    )
    order = np.random.default_rng(seed).permutation(len(dataset)).tolist()
    samples = []
    for number in range(COLUMNS * ROWS):
        epoch, place = divmod(number, len(dataset))
        index = order[place]
        image, labels = augmentation.vary(*dataset.read(index), sample_generator(seed, epoch, index))
        samples.append((dataset.name_of(index), image.permute(1, 2, 0).numpy(), labels.numpy()))
    return samples


def _tile(picture: np.ndarray, crop: int) -> Image.Image:
    """Scale so that a whole crop fills the tile; smaller ones leave the padding visible."""
    tile = Image.new("RGB", (TILE, TILE), (228, 228, 226))
    size = (max(1, picture.shape[1] * TILE // crop), max(1, picture.shape[0] * TILE // crop))
    tile.paste(Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS), (0, 0))
    return tile
