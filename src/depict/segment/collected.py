"""What `depict segment` makes of the label maps of all pictures together, at the end: videos, a COCO file, a sheet.

All of it comes from files that are already written, so that it also works after resuming and with several processes.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from depict.io.coco import annotate, categories
from depict.io.files import atomic_path
from depict.io.geotiff import open_raster
from depict.io.images import MAX_PIXELS
from depict.segment.inputs import Input
from depict.segment.outputs import Outputs, read_picture
from depict.segment.summary import Row, printable
from depict.segment.video import draw_video
from depict.viz.overlays import INK, PAPER, fit_text, label_shares, overlay

COCO, SHEET = "coco.json", "contact_sheet.png"
FILES = (COCO, SHEET)
COLUMNS, ROWS = 6, 8
"""Pictures of a contact sheet."""
TILE, GAP, CAPTION = 240, 8, 20
"""Pixels of a picture's longer side, between pictures, and for the line below each."""


def video_path(outputs: Outputs, video: Input) -> Path:
    """The video of overlays."""
    return outputs.folder / "overlays" / (video.name if video.name.lower().endswith(".mp4") else f"{video.name}.mp4")


def write_video(video: Input, outputs: Outputs, done: Container[str]) -> Path:
    """Draw the overlays of a video's frames as a video; frames that are not `done` stay as they are."""

    def draw(number: int, image: np.ndarray) -> Image.Image:
        name = f"{video.name}/{number:06d}"
        path = outputs.files(name, "frame")["labels"]
        labels = read_picture(path, ("P", "I;16")) if printable(name) in done else None
        if labels is None or labels.shape != image.shape[:2]:
            labels = np.full(image.shape[:2], np.iinfo(outputs.label_values.dtype).max, outputs.label_values.dtype)
        shares = label_shares(labels, outputs.shown)
        return overlay(image, labels, outputs.classes, outputs.palette, shares, outputs.opacity, room_for_all=True)

    path = video_path(outputs, video)
    draw_video(video.path, path, draw)
    return path


def write_coco(
    inputs: Sequence[Input], outputs: Outputs, polygons: bool, done: Container[str]
) -> tuple[Path, list[str]]:
    """Write the label maps of all inputs that are `done`, by name, as one COCO file, one after the other.

    Returns the file, and the names of the rasters that are left out because their masks would not fit into memory.
    """
    path, count = outputs.folder / COCO, 0
    images: list[dict[str, Any]] = []
    left_out: list[str] = []
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"annotations": [')
        for name, labels in _label_maps(inputs, outputs, done):
            if labels is None:
                left_out.append(name)
                continue
            size = {"height": labels.shape[0], "width": labels.shape[1]}
            images.append({"id": len(images) + 1, "file_name": printable(name), **size})
            for annotation in annotate(labels, outputs.classes, outputs.shown, polygons):
                count += 1
                entry = {"id": count, "image_id": len(images)} | annotation
                file.write((",\n" if count > 1 else "\n") + json.dumps(entry))
        rest = {"images": images, "categories": categories(outputs.classes, outputs.shown)}
        file.write("\n], " + json.dumps(rest, ensure_ascii=False)[1:] + "\n")
    return path, left_out


def _label_maps(
    inputs: Sequence[Input], outputs: Outputs, done: Container[str]
) -> Iterator[tuple[str, np.ndarray | None]]:
    """File name and label map of each picture and frame that has one; None if it is a raster that is too large."""
    for one in (entry for entry in inputs if entry.error is None):
        if one.video:
            for path in sorted((outputs.folder / "labels" / one.name).glob("*.png")):
                labels = read_picture(path, ("P", "I;16")) if printable(f"{one.name}/{path.stem}") in done else None
                if labels is not None:
                    yield f"{one.name}/{path.name}", labels
            continue
        if printable(one.name) not in done:
            continue
        suffix = one.path.suffix
        name = one.name if PurePosixPath(one.name).suffix == suffix else one.name + suffix
        raster = outputs.files(one.name, "raster")["labels"]
        if (labels := read_picture(outputs.files(one.name)["labels"], ("P", "I;16"))) is not None:
            yield name, labels
        elif raster.is_file():
            with open_raster(raster) as written:
                small = written.width * written.height <= MAX_PIXELS
                yield name, written.read(1) if small else None


def write_sheet(rows: Sequence[Row], outputs: Outputs) -> Path:
    """Draw the first overlays in the order of `rows`, with name and confidence; frames of videos are left out."""
    overlays = [outputs.folder / "overlays" / f"{row['name']}.png" for row in rows]
    pairs = zip(rows, overlays, strict=True)
    shown = [(row, path) for row, path in pairs if row["status"] != "failed" and path.is_file()][: COLUMNS * ROWS]
    tiles = [_tile(row, path) for row, path in shown]
    tall = max((tile.height for tile in tiles), default=1)
    column, line = TILE + GAP, tall + CAPTION + GAP
    columns, lines = max(1, min(COLUMNS, len(tiles))), -(-len(tiles) // COLUMNS)
    sheet = Image.new("RGB", (columns * column + GAP, lines * line + GAP), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for number, ((row, _), tile) in enumerate(zip(shown, tiles, strict=True)):
        x, y = GAP + number % COLUMNS * column, GAP + number // COLUMNS * line
        sheet.paste(tile, (x, y))
        end = f"  {100 * row['confidence']:.1f} %" if "confidence" in row else ""
        draw.text((x, y + tall + 2), fit_text(row["name"], font, TILE, end), INK, font)
    with atomic_path(outputs.folder / SHEET) as temporary:
        sheet.save(temporary, "png")
    return outputs.folder / SHEET


def _tile(row: Row, path: Path) -> Image.Image:
    """An overlay without its legend, scaled down."""
    with Image.open(path) as picture:
        width = min(picture.width, row["width"])
        tile = picture.crop((0, 0, width, max(1, round(width * row["height"] / row["width"]))))
        tile.thumbnail((TILE, TILE))
        return tile
