"""MSSA, fused against explicit attention as in the official code, in one run.

    python benchmarks/operators.py [--picture docs/images/operators.png]

For D = 384 and 1024 with 3 heads of 100, batch 1: time and peak extra memory, forward and forward + backward, over the
number of tokens N. Each cell runs in its own process.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from measure import alone, best, peak, resident

TOKENS = [256, 512, 1024, 2048, 4096, 8192, 16384]
DIMENSIONS = (384, 1024)
HEADS, HEAD_DIM = 3, 100


def cell(path: str, D: int, N: int, backward: bool) -> dict[str, float]:
    """Seconds and extra bytes of one operator call."""
    import torch

    from depict.operators import mssa

    def official(Z, P):
        W = (Z @ P.T).view(1, N, HEADS, HEAD_DIM).transpose(1, 2)
        A = (W @ W.transpose(-1, -2) * HEAD_DIM**-0.5).softmax(-1)
        return (A @ W).transpose(1, 2).reshape(1, N, HEADS * HEAD_DIM) @ P

    def fused(Z, P):
        return mssa(Z, P, HEADS)

    operator = {"explicit": official, "fused": fused}[path]
    generator = torch.Generator().manual_seed(0)
    Z = torch.randn(1, N, D, generator=generator, requires_grad=backward)
    P = (D**-0.5 * torch.randn(HEADS * HEAD_DIM, D, generator=generator)).requires_grad_(backward)
    slope = torch.ones(1, N, D)

    def call():
        if not backward:
            with torch.no_grad():
                return operator(Z, P)
        Z.grad = P.grad = None
        return operator(Z, P).backward(slope)

    small = torch.randn(1, N, D)[:, :16].requires_grad_(backward)
    warm = (small @ P.T @ P).sum()  # load the libraries' kernels before memory is read
    if backward:
        warm.backward()
    before = resident()
    call()
    memory = peak() - before
    return {"seconds": best(call), "bytes": float(memory)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--most", type=int, default=TOKENS[-1], help="largest N")
    options = parser.parse_args()
    tokens = [N for N in TOKENS if options.most >= N]
    found: dict[tuple[str, int, int, bool], dict[str, float]] = {}
    for backward in (False, True):
        for D in DIMENSIONS:
            print(f"\n{'forward + backward' if backward else 'forward'}, D = {D}, {HEADS} heads of {HEAD_DIM}")
            print(
                f"{'N':>7}{'explicit':>12}{'fused':>12}{'times faster':>14}{'explicit':>12}{'fused':>12}{'memory':>9}"
            )
            for N in tokens:
                a, b = (alone(cell, path, D, N, backward) for path in ("explicit", "fused"))
                found["explicit", D, N, backward], found["fused", D, N, backward] = a, b
                faster, share = a["seconds"] / b["seconds"], b["bytes"] / max(1.0, a["bytes"])
                times = f"{a['seconds'] * 1e3:>9.1f} ms{b['seconds'] * 1e3:>9.1f} ms{faster:>13.2f}x"
                memory = f"{a['bytes'] / 1e6:>9.1f} MB{b['bytes'] / 1e6:>9.1f} MB{share:>9.3f}"
                print(f"{N:>7}{times}{memory}", flush=True)
    if options.picture:
        draw(found, tokens, options.picture)


def draw(found: dict, tokens: list[int], path: Path) -> None:
    """A row for each D: time and memory over N."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(DIMENSIONS), 2, figsize=(9, 7), sharex=True, sharey="col", constrained_layout=True)
    looks = {"explicit": ("#D55E00", "o", "explicit, as official"), "fused": ("#0072B2", "s", "fused")}
    for row, D in zip(axes, DIMENSIONS, strict=True):
        for axis, key, unit, label in (
            (row[0], "seconds", 1e3, "time [ms]"),
            (row[1], "bytes", 1e-6, "extra memory [MB]"),
        ):
            for name, (color, marker, text) in looks.items():
                for backward, style in ((False, "-"), (True, "--")):
                    values = [max(found[name, D, N, backward][key] * unit, 0.1) for N in tokens]
                    what = f"{text}, {'forward + backward' if backward else 'forward'}"
                    axis.plot(tokens, values, style, color=color, marker=marker, markersize=4, label=what)
            axis.set(xscale="log", yscale="log", ylabel=label)
            axis.set_title(f"D = {D}", fontsize=10)
            axis.set_xticks(tokens, [str(N) for N in tokens], fontsize=8)
            axis.minorticks_off()
            axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("tokens N")
    axes[0][0].legend(fontsize=8)
    figure.suptitle(f"One MSSA step, {HEADS} heads of {HEAD_DIM}, batch 1, 2 CPU threads", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
