"""docs/images/photographs.png: photographs, and the labels that the shipped model gives them.

    python docs/images/photographs.py FOLDER

FOLDER holds china.jpg of scikit-learn (Daniel Büchele, CC BY 2.0), and rocket.jpg (SpaceX) and astronaut.png (NASA) of
scikit-image, which are in the public domain. They are in the folders `sklearn/datasets/images` and `skimage/data` of
the installed packages.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

import depict
from depict.viz.overlays import PAPER

MODEL = "depict-ade20k"
FILES = ("china.jpg", "rocket.jpg", "astronaut.png")
HEIGHT, GAP = 320, 10


def main(folder: Path) -> None:
    """One column for each photograph: the picture above, its overlay with the legend below."""
    model = depict.load(MODEL)
    columns = []
    for file in FILES:
        photograph = Image.open(folder / file).convert("RGB")
        width = round(photograph.width * HEIGHT / photograph.height)
        photograph = photograph.resize((width, HEIGHT), Image.Resampling.LANCZOS)
        columns.append((photograph, model.predict(photograph).overlay()))
    height = HEIGHT + GAP + max(overlay.height for _, overlay in columns)
    width = sum(photograph.width for photograph, _ in columns) + GAP * (len(columns) - 1)
    sheet = Image.new("RGB", (width, height), PAPER)
    left = 0
    for photograph, overlay in columns:
        sheet.paste(photograph, (left, 0))
        sheet.paste(overlay, (left, HEIGHT + GAP))
        left += photograph.width + GAP
    sheet.save(Path(__file__).with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
