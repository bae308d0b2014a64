"""Cross-entropy on upsampled masks: in bands (`depict.training.losses`) against upsampling everything, in one run.

Each method runs forward and backward in its own process; peak memory excludes masks and labels.

    python benchmarks/loss.py [--classes 150 --side 512 --batch 8]
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

PATCH = 16


def measure(method: str, classes: int, side: int, batch: int, repeats: int, out: Path) -> None:
    import torch
    import torch.nn.functional as F

    from depict.training.losses import cross_entropy

    def plain(masks, labels):
        logits = F.interpolate(masks, size=labels.shape[1:], mode="bilinear")
        return F.cross_entropy(logits, labels.long(), ignore_index=255)

    def lean(masks, labels):
        total, count = cross_entropy(masks, labels, (PATCH, PATCH))
        return total / count

    loss = {"plain": plain, "lean": lean}[method]
    generator = torch.Generator().manual_seed(0)
    masks = 3 * torch.randn(batch, classes, side // PATCH, side // PATCH, generator=generator)
    labels = torch.randint(0, classes, (batch, side, side), generator=generator).to(torch.uint8)
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = 255
    small = masks[:1, :, :2, :2].clone().requires_grad_()
    loss(small, labels[:1, : 2 * PATCH, : 2 * PATCH]).backward()  # load the libraries' kernels
    masks.requires_grad_()
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    seconds = []
    for _ in range(repeats):
        masks.grad = None
        start = time.perf_counter()
        value = loss(masks, labels)
        value.backward()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    torch.save({"value": value.detach(), "gradient": masks.grad}, out)
    print(json.dumps({"seconds": min(seconds), "megabytes": peak / 1e6}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--classes", type=int, default=150)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.method:
        measure(options.method, options.classes, options.side, options.batch, options.repeats, options.out)
        return
    import torch

    found, values = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for method in ("plain", "lean"):
            out = Path(folder) / f"{method}.pt"
            command = [sys.executable, __file__, *sys.argv[1:], "--method", method, "--out", str(out)]
            found[method] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            values[method] = torch.load(out, weights_only=True)
    print(
        f"cross-entropy, {options.classes} classes, {options.side} x {options.side}, batch {options.batch}, ",
        end="",
    )
    print(f"forward and backward, best of {options.repeats}")
    for method, row in found.items():
        print(f"  {method:<6}{row['seconds']:8.3f} s {row['megabytes']:9.0f} MB at the peak")
    plain, lean = found["plain"], found["lean"]
    print(f"  lean / plain: time {lean['seconds'] / plain['seconds']:.3f} (aim <= 0.5), ", end="")
    print(f"memory {lean['megabytes'] / plain['megabytes']:.3f} (aim <= 0.1)")
    value = (values["lean"]["value"] - values["plain"]["value"]).abs().item()
    slope = (values["lean"]["gradient"] - values["plain"]["gradient"]).abs().max().item()
    print(f"  largest difference: value {value:.1e}, gradient {slope:.1e} (aim <= 1e-6)")


if __name__ == "__main__":
    main()
