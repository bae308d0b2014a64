"""An exported model against PyTorch, on a CPU: start-up of `depict segment`, images per second, equal labels.

"One picture" is the whole command for one small picture; "start-up" is that without the network's own time. Images per
second run from pixels to labels at the model's own size; the share outside the network is resizing, cutting, rendering.

    python benchmarks/onnx_export.py [--encoder vit_tiny_patch16_384 --decoder depict_sa --side 512 --classes 150]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from depict.data.scenes.dataset import render
from depict.runs import save
from measure import THREADS, alone, best


def build(folder: Path, encoder: str, decoder: str, side: int, classes: int) -> dict[str, Path]:
    """A run with random weights, its ONNX file, and that in 8 bits."""
    import torch

    import depict
    from depict.interchange.onnx import export, quantize

    paths = {"PyTorch": folder / "run", "ONNX": folder / "model.onnx", "ONNX int8": folder / "int8.onnx"}
    torch.manual_seed(0)
    model = depict.create_model(decoder, encoder, classes, side)
    save(model, paths["PyTorch"])
    differences = export(model, paths["ONNX"])
    quantize(paths["ONNX"], paths["ONNX int8"])
    print(f"masks differ by at most {max(differences.values()):.1e}")
    return paths


def one_picture(model: Path, picture: Path, out: Path, *flags: str) -> float:
    """Seconds of the whole command for one picture, the best of three."""
    command = [sys.executable, "-m", "depict.cli", "segment", str(model), str(picture), "--out", str(out), *flags]

    def call() -> None:
        subprocess.run([*command, "--overwrite"], check=True, capture_output=True)

    return best(call, seconds=0)


def speed(
    model: Path, compiled: bool, pictures: list[np.ndarray], seconds: float
) -> tuple[float, float, list[np.ndarray]]:
    """Seconds per picture, the share of them outside the network, and the labels."""
    from depict.segment.predictor import open_predictor

    predictor: Any = open_predictor(model, device="cpu", **({"compile": True} if compiled else {}))
    inside = 0.0

    def timed(network: Callable[..., Any]) -> Callable[..., Any]:
        def call(images: Any) -> Any:
            nonlocal inside
            started = time.perf_counter()
            masks = network(images)
            inside += time.perf_counter() - started
            return masks

        return call

    predictor.network = timed(predictor.network)
    labels = [predictor.labels(picture) for picture in pictures]
    inside, rounds, started = 0.0, 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for picture in pictures:
            predictor.labels(picture)
        rounds += 1
    total = time.perf_counter() - started
    return total / (rounds * len(pictures)), 1 - inside / total, labels


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", default="vit_tiny_patch16_384")
    parser.add_argument("--decoder", default="depict_sa")
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--classes", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--compile", action="store_true", help="also PyTorch with torch.compile")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(THREADS)  # which depict passes on to onnxruntime
    print(f"{options.encoder}, {options.decoder}, {options.side} pixels, {options.classes} classes, {THREADS} threads")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        methods = build(folder, options.encoder, options.decoder, options.side, options.classes)
        picture = folder / "picture.png"
        Image.fromarray(render(1, 0, 64)[0]).save(picture)
        pictures = [render(1, index, options.side)[0] for index in range(4)]
        columns = f"{'one picture':>12} {'start-up':>9} {'images/s':>9} {'outside':>8} {'labels as PyTorch':>18}"
        print(f"{'':10} {'size':>9} {columns}")
        first: tuple[float, float, list[np.ndarray]] | None = None
        started = 0.0
        if options.compile:
            methods["compiled"] = methods["PyTorch"]
        for method, path in methods.items():
            compiled = method == "compiled"
            one = one_picture(path, picture, folder / "out" / method, *(["--compile"] if compiled else []))
            seconds, outside, labels = alone(speed, path, compiled, pictures, options.seconds)
            startup = one - seconds * (1 - outside)
            first, started = first or (seconds, outside, labels), started or startup
            same = np.mean([np.mean(a == b) for a, b in zip(labels, first[2], strict=True)])
            weights = path / "model.safetensors" if path.is_dir() else path
            print(
                f"{method:10} {weights.stat().st_size / 1e6:6.1f} MB {one:10.2f} s {startup:7.2f} s "
                f"{1 / seconds:9.2f} {outside:8.1%} "
                f"{same:18.2%}   start-up {started / startup:.1f}x, speed {first[0] / seconds:.2f}x as fast as PyTorch"
            )
    print("aim: ONNX starts in less than a second; less than 15 % outside the network")


if __name__ == "__main__":
    main()
