"""Rewrite the tables of the pages in docs, and the pictures of label maps.

    python docs/results/redraw.py [--take RUNS]

Everything comes from the files next to this script. Each study keeps its study.yaml, the results.json of `depict study`
and the times.json of `benchmarks/peers.py --time`. `--take RUNS` first copies these files of all studies in RUNS.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

import ade20k_tables
import camvid_tables
import encoder_tables
from kept import HERE, take

PAGES = tuple(HERE.parent / f"{name}.md" for name in ("results", "architecture", "masks", "ade20k", "shipped-model"))
IMAGES = HERE.parent / "images"
LABEL_ROWS = {
    "1_linear": "linear",
    "2_segmenter": "Segmenter",
    "3_depict_sa": "DEPICT-SA",
    "4_depict_ca": "DEPICT-CA",
    "5_segmenter_finetuned": "Segmenter\nfine-tuned",
    "6_depict_sa_finetuned": "DEPICT-SA\nfine-tuned",
}
"""Strips of six label maps each, and how their row is labeled."""
STRIDE_ROWS = {"7_truth": "truth", "8_stride_16": "stride 16", "9_stride_8": "stride 8", "10_stride_4": "stride 4"}
"""The same with three label maps, of the linear decoder on the levels of EfficientNet-Lite0."""
TABLES = camvid_tables.TABLES | encoder_tables.TABLES | ade20k_tables.TABLES
"""The tables of the pages, each between `<!-- table: NAME -->` and `<!-- end -->`."""


def filled(text: str) -> str:
    """A page with all its tables rewritten."""
    block = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
    return block.sub(lambda found: f"<!-- table: {found[1]} -->\n\n{TABLES[found[1]]()}\n\n<!-- end -->", text)


def draw_labels(rows: dict[str, str], columns: int, picture: Path) -> None:
    """Draw strips of label maps: images in columns, decoders in rows."""
    from depict.data.camvid import CamVid

    row = 8.7 / columns
    height = row * len(rows) + 0.4
    figure = Figure(figsize=(11.4, height))
    for axes, (name, label) in zip(figure.subplots(len(rows), 1), rows.items(), strict=True):
        with Image.open(HERE / "labels" / f"{name}.png") as strip:
            axes.imshow(np.array(strip.convert("RGB")), interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_ylabel(label, fontsize=9)
        for column in range(1, columns):
            axes.axvline(480 * column, color="white", lw=2)
    pairs = zip(CamVid.classes, CamVid.palette, strict=True)
    patches = [Patch(color=np.array(color) / 255, label=name) for name, color in pairs]
    figure.legend(handles=patches, loc="lower center", ncols=len(patches), frameon=False, fontsize=8, handlelength=1)
    figure.subplots_adjust(left=0.04, right=0.995, top=0.99, bottom=0.4 / height, wspace=0.03, hspace=0.03)
    figure.savefig(picture, dpi=110, metadata={"Software": None})


def main() -> None:
    """Copy if requested, then rewrite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, metavar="RUNS")
    options = parser.parse_args()
    if options.take:
        take(options.take)
    draw_labels(LABEL_ROWS, 6, IMAGES / "camvid_labels.png")
    draw_labels(STRIDE_ROWS, 3, IMAGES / "strides.png")
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
