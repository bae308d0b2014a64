"""`depict segment` from files to files: pictures per second, and the share of the time outside the network.

JPEG files of 683 x 512 pixels, cut from the built-in scenes, are read, segmented in windows of 512 and written as label
maps and overlays, as the command does; the naive method runs the same steps sequentially. Weights are random.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from PIL import Image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="vit_tiny_patch16_384")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--classes", type=int, default=150)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_pictures(folder / "pictures", options.count)
        make_run(folder / "run", options.encoder, options.classes)
        compare(folder, options)


def compare(folder: Path, options: argparse.Namespace) -> None:
    from depict.io.images import read_image
    from depict.segment.inputs import find_inputs
    from depict.segment.outputs import Outputs
    from depict.segment.pipeline import segment_all
    from depict.segment.predictor import open_predictor
    from depict.viz.overlays import label_shares

    predictor = open_predictor(folder / "run", compile=options.compile)
    network, inside = predictor.network, [0.0]

    def timed(images):
        started = time.perf_counter()
        logits = network(images)
        inside[0] += time.perf_counter() - started
        return logits

    predictor.network = timed
    inputs, _ = find_inputs([str(folder / "pictures")], folder)
    shown = tuple(range(options.classes))

    def naive(outputs: Outputs) -> None:
        for one in inputs:
            image = read_image(one.path)
            labels = outputs.label_values[predictor.labels(image)]
            outputs.write(one.name, "picture", image, labels, label_shares(labels, shown), None)

    def ahead(outputs: Outputs) -> None:
        rows = list(segment_all(predictor, inputs, outputs, options.workers))
        assert all(row["status"] == "written" for row in rows)

    predictor.labels(read_image(inputs[0].path))  # warm, compiled
    seconds = {}
    for name, method in (("sequential", naive), ("depict segment", ahead)):
        inside[0] = 0.0
        started = time.perf_counter()
        method(Outputs(folder / name, predictor.classes, predictor.palette, shown))
        seconds[name] = time.perf_counter() - started
        outside = 1 - inside[0] / seconds[name]
        print(f"{name:20} {len(inputs) / seconds[name]:6.2f} images/s, {100 * outside:.1f} % outside the network")
    naive_time, own_time = seconds.values()
    print(f"ratio {naive_time / own_time:.2f} ({options.encoder}, {options.classes} classes)")


def make_pictures(folder: Path, count: int) -> None:
    from depict.data.scenes.dataset import render

    folder.mkdir()
    for number in range(count):
        Image.fromarray(render(0, number, 683)[0][:512]).save(folder / f"{number}.jpg", quality=92)


def make_run(folder: Path, encoder: str, classes: int) -> None:
    import torch

    from depict import create_model, save

    torch.manual_seed(0)
    save(create_model("depict_sa", encoder, num_classes=classes, image_size=512), folder)


if __name__ == "__main__":
    main()
