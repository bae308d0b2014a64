"""Labels of 512 x 512 pixels from logits on a 32 x 32 grid: `argmax_labels` against computing every score.

    python benchmarks/rendering.py [--classes 150]

On the logits of ViT-T with random weights for a built-in scene, and on noise, where no two neighbors agree.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from depict.data.scenes.dataset import render
from depict.inference.resample import argmax_labels, bilinear, interpolate
from depict.model import create_model
from measure import best

SIDE, PATCH = 512, 16


def plainly(logits: torch.Tensor) -> np.ndarray:
    """All scores at once, as torch does it."""
    scores = torch.nn.functional.interpolate(logits, size=(SIDE, SIDE), mode="bilinear")
    return scores[0].argmax(0).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=150)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = create_model("depict_sa", "vit_tiny_patch16_384", options.classes, SIDE).eval()
    scene = torch.from_numpy(render(1, 0, SIDE)[0]).permute(2, 0, 1)
    with torch.inference_mode():
        cases = {
            "a scene": model.masks(model.normalize(scene)[None]).contiguous(),
            "noise": torch.randn(1, options.classes, SIDE // PATCH, SIDE // PATCH),
        }
    axis = bilinear(SIDE // PATCH, SIDE)
    print(f"{options.classes} classes    torch, all scores   numpy, all scores   ours   times faster   equal labels")
    for name, logits in cases.items():
        grid = np.ascontiguousarray(logits[0].permute(1, 2, 0).numpy())

        def in_bands(grid: np.ndarray = grid) -> np.ndarray:
            return np.concatenate([scores.argmax(2) for _, _, scores in interpolate(grid, axis, axis)])

        methods = (lambda x=logits: plainly(x), in_bands, lambda x=grid: argmax_labels(x, axis, axis))
        torch_time, numpy_time, own_time = (1e3 * best(method, seconds=2) for method in methods)
        equal = np.mean(methods[0]() == methods[2]())
        print(
            f"{name:13} {torch_time:15.1f} ms {numpy_time:16.1f} ms {own_time:6.1f} ms "
            f"{torch_time / own_time:6.2f}, {numpy_time / own_time:.2f} {equal:13.3%}"
        )


if __name__ == "__main__":
    main()
