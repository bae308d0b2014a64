"""Draw every table and picture of docs/results.md again from the small files beside this script.

    python docs/results/redraw.py [--take RUNS]

`--take RUNS` first copies what is small of the studies in the folder RUNS: study.yaml, and of each cell its
configuration, metrics and evaluations; no weights, no images.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

HERE = Path(__file__).parent
KEPT = ("study.yaml", "config.yaml", "metrics.jsonl", "evaluation.json", "evaluation_multiscale.json")
PICTURE = HERE.parent / "images" / "camvid_labels.png"


def take(runs: Path) -> None:
    """Copy the small files of all studies below `runs`."""
    for study in sorted(runs.glob("*/study.yaml")):
        for file in sorted(study.parent.rglob("*")):
            if file.name in KEPT:
                target = HERE / file.relative_to(runs)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


def redraw_studies() -> None:
    """Every study's tables and picture."""
    from depict.studies.plan import read_study
    from depict.studies.results import write_results

    for folder in sorted(path.parent for path in HERE.glob("*/study.yaml")):
        study = read_study(folder)
        assert study
        print(write_results(study, folder))


def draw_labels() -> None:
    """The label maps that the decoders gave: images in columns, decoders in rows."""
    from depict.data.camvid import CamVid

    rows = sorted(path for path in (HERE / "labels").iterdir() if path.is_dir())
    names = sorted(path.name for path in rows[0].glob("*.png"))
    figure = Figure(figsize=(1.9 * len(names), 1.5 * len(rows) + 0.5))
    for number, row in enumerate(rows):
        for column, name in enumerate(names):
            axes = figure.add_subplot(len(rows), len(names), number * len(names) + column + 1)
            with Image.open(row / name) as picture:
                axes.imshow(np.array(picture.convert("RGB")), interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if column == 0:
                axes.set_ylabel(row.name[2:].replace("_", "-"), fontsize=10)
    pairs = zip(CamVid.classes, CamVid.palette, strict=True)
    patches = [Patch(color=np.array(colour) / 255, label=name) for name, colour in pairs]
    figure.legend(handles=patches, loc="lower center", ncols=len(patches), frameon=False, fontsize=8, handlelength=1)
    figure.subplots_adjust(left=0.03, right=0.995, top=0.99, bottom=0.09, wspace=0.03, hspace=0.03)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


def main() -> None:
    """Copy if asked to, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, metavar="RUNS")
    options = parser.parse_args()
    matplotlib.use("Agg")
    if options.take:
        take(options.take)
    redraw_studies()
    draw_labels()


if __name__ == "__main__":
    main()
