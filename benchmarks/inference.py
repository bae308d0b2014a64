"""Multi-scale inference with flips: in bands against plain loops, in one run.

a) CamVid images if ../shared/camvid exists (generated ones otherwise), 11 classes, ViT-T, window 352;
b) 150 classes on a large image, ViT-T, window 512, resized to 512 first (as for ADE20K) and at its own size;
c) 150 classes on 4096 x 4096 pixels at their own size, in bands only, with one convolution as the network.
The methods alternate, each in its own process; the fastest round counts. Peak memory excludes the model and the images.

    python benchmarks/inference.py [--images 20 --size 1024 --rounds 3] [--only camvid|resized|whole|huge]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).parents[1]
SHARED = REPOSITORY.parent / "shared"
CASES = {
    "camvid": (11, 352, 360, 2.0),
    "resized": (150, 512, 512, 4.0),
    "whole": (150, 512, None, 4.0),
    "huge": (150, 512, None, 4.0),
}
"""Classes, window, short_edge, max_aspect."""


def pictures(case: str, count: int, size: int):
    """Images uint8 (3, H, W)."""
    import torch

    from depict.io.images import read_image

    files = sorted((SHARED / "camvid" / "val").glob("*.png"))[:count]
    if case == "camvid" and files:
        return [torch.tensor(read_image(file)).permute(2, 0, 1) for file in files]
    generator = torch.Generator().manual_seed(0)
    size = 4096 if case == "huge" else size
    count, height, width = (count, 360, 480) if case == "camvid" else (1, size, size)
    coarse = torch.rand(count, 3, height // 20, width // 20, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic")
    return list((255 * smooth).clamp(0, 255).to(torch.uint8))


def measure(method: str, case: str, count: int, size: int, out: Path) -> None:
    import torch

    import depict
    from depict.inference.sliding import MULTISCALE, NetworkSpec, SlidingWindow
    from depict.inference.torch_backend import apply

    sys.path.insert(0, str(REPOSITORY / "tests"))
    from support.naive_inference import naive_probabilities

    torch.manual_seed(0)
    classes, window, short_edge, max_aspect = CASES[case]
    weights = SHARED / "weights" / "vit_tiny_patch16_224.safetensors"
    model = depict.create_model(
        "depict_sa",
        encoder="vit_tiny_patch16_224",
        num_classes=classes,
        image_size=window,
        pretrained=str(weights) if weights.is_file() else False,
    ).eval()
    if case == "huge":
        patches = torch.nn.Conv2d(3, classes, 16, stride=16)
        model.masks = patches.forward
    images = pictures(case, count, size)
    spent = {"network": 0.0, "windows": 0.0}

    def network(x):
        start = time.perf_counter()
        masks = model.masks(x)
        spent["network"] += time.perf_counter() - start
        return masks

    normalization = {"mean": model.mean, "std": model.std}
    stride = window - 32

    def bands(image):
        sliding = SlidingWindow((window, window), (stride, stride), short_edge, max_aspect, MULTISCALE, flip=True)
        start, inside = time.perf_counter(), spent["network"]
        scores = next(apply(network, [image], sliding, NetworkSpec(**normalization, multiple=model.multiple)))
        spent["windows"] += time.perf_counter() - start - (spent["network"] - inside)
        return scores.labels()

    def loops(image):
        options = {
            "window": window,
            "stride": stride,
            "short_edge": short_edge,
            "max_aspect": max_aspect,
            "scales": MULTISCALE,
            "flip": True,
            "patch_size": model.multiple,
        }
        return naive_probabilities(network, image, **options, **normalization).argmax(0).to(torch.uint8)

    with torch.inference_mode():
        predict = {"bands": bands, "loops": loops}[method]
        model.masks(torch.zeros(8, 3, window, window))  # the model's own working memory belongs to neither method
        before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        start = time.perf_counter()
        labels = [predict(image).numpy() for image in images]
        spent["total"] = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    np.savez(out, *labels)
    print(json.dumps(spent | {"megabytes": peak / 1e6, "images": len(images)}))


def compare(case: str, count: int, size: int, rounds: int) -> None:
    found, labels = {}, {}
    methods = ("bands",) if case == "huge" else ("loops", "bands")
    with tempfile.TemporaryDirectory() as folder:
        for method in methods * (1 if case == "huge" else rounds):
            out = Path(folder) / f"{method}.npz"
            command = [sys.executable, __file__, "--images", str(count), "--size", str(size)]
            command += ["--only", case, "--method", method, "--out", str(out)]
            row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            if method not in found or row["total"] < found[method]["total"]:
                found[method] = row
            with np.load(out) as file:
                labels[method] = [file[name] for name in file.files]
    classes, window, short_edge, _ = CASES[case]
    shape = " x ".join(map(str, labels["bands"][0].shape))
    resized = f"resized to {short_edge}" if short_edge else "at its own size"
    print(f"{case}: {found['bands']['images']} image(s) of {shape}, {resized}, {classes} classes, window {window}")
    for method, row in found.items():
        outside = row["total"] - row["network"]
        line = f"  {method:<6}{row['total']:8.2f} s, network {row['network']:.2f} s, outside {outside:.2f} s "
        line += f"({100 * outside / row['total']:.1f} %), {row['megabytes']:.0f} MB at the peak"
        print(line)
    bands = found["bands"]
    rendering = bands["total"] - bands["network"] - bands["windows"]
    print(f"  bands outside the network: windows {bands['windows']:.2f} s, rendering {rendering:.2f} s")
    if case == "huge":
        return
    loops = found["loops"]
    equal = np.mean(np.concatenate([(a == b).ravel() for a, b in zip(*labels.values(), strict=True)]))
    print(f"  loops / bands: time {loops['total'] / bands['total']:.2f}; ", end="")
    print(f"bands / loops: memory {bands['megabytes'] / loops['megabytes']:.3f}; equal labels {100 * equal:.4f} %")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.method:
        measure(options.method, options.only, options.images, options.size, options.out)
        return
    for case in [options.only] if options.only else CASES:
        compare(case, options.images, options.size, options.rounds)


if __name__ == "__main__":
    main()
