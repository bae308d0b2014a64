"""Growth of one attention step with the number of tokens, in one run: explicit, fused, exact MSSA and CBSA.

    python benchmarks/operators.py [--picture docs/images/operators.png] [--json FILE] [--most N]

For D = 384 and 1024 with 3 heads of 100, batch 1: time and peak extra memory, forward and forward + backward, over the
number of tokens N. Explicit attention, as in the official code, goes up to 16,384 tokens: its matrix grows with N^2.
The exact step is also given as a share of the machine's peak, the speed of a 2048 x 2048 matrix product in the same
run, and its time as a multiple of that of half as many tokens ("doubling"). Each cell runs in its own process, which
keeps freed memory as `depict train` does. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from measure import alone, best, peak, resident

TOKENS = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]
MOST_EXPLICIT = 16384
DIMENSIONS = (384, 1024)
HEADS, HEAD_DIM = 3, 100
LOOKS = {  # color, marker and label in the picture
    "explicit": ("#D55E00", "o", "explicit softmax, as official"),
    "fused": ("#0072B2", "s", "fused softmax"),
    "exact": ("#009E73", "D", "exact"),
    "CBSA": ("#CC79A7", "^", "CBSA"),
}
SLOW = 5.0
"""Seconds; a slower call is timed once."""


def cell(path: str, D: int, N: int, backward: bool) -> dict[str, float]:
    """Seconds and extra bytes of one operator call."""
    import torch

    from depict.devices import kept_memory
    from depict.operators import CBSA, mssa, mssa_exact

    torch.manual_seed(0)
    Z = torch.randn(1, N, D, requires_grad=backward)
    P = (D**-0.5 * torch.randn(HEADS * HEAD_DIM, D)).requires_grad_(backward)
    a = torch.full((HEADS,), HEAD_DIM / N).requires_grad_(backward)
    grid = (1 << math.ceil(math.log2(N) / 2), 1 << math.floor(math.log2(N) / 2))
    module = CBSA(D, HEADS, HEAD_DIM).requires_grad_(backward)

    def official(Z):
        W = (Z @ P.T).view(1, N, HEADS, HEAD_DIM).transpose(1, 2)
        A = (W @ W.transpose(-1, -2) * HEAD_DIM**-0.5).softmax(-1)
        return (A @ W).transpose(1, 2).reshape(1, N, HEADS * HEAD_DIM) @ P

    operator = {
        "explicit": official,
        "fused": lambda Z: mssa(Z, P, HEADS),
        "exact": lambda Z: mssa_exact(Z, P, a),
        "CBSA": lambda Z: module(Z, grid),
    }[path]
    slope = torch.ones(1, N, D)

    def call():
        if not backward:
            with torch.no_grad():
                return operator(Z)
        Z.grad = P.grad = a.grad = None
        return operator(Z).backward(slope)

    small = torch.randn(1, 16, D, requires_grad=backward)
    warm = (small @ P.T @ P).sum()  # load the libraries' kernels before memory is read
    if backward:
        warm.backward()
    with kept_memory():
        before = resident()
        first = best(call, seconds=0, least=1)
        memory = peak() - before
        return {"seconds": first if first > SLOW else best(call), "bytes": float(memory)}


def machine_peak() -> float:
    """Operations per second of a 2048 x 2048 product in float32."""
    import torch

    A = torch.randn(2048, 2048)
    return 2 * 2048**3 / best(lambda: A @ A)


def products(D: int, N: int) -> int:
    """Operations of the exact step's matrix products with tokens, two per multiply-add."""
    K = HEADS * HEAD_DIM
    return 2 * N * (2 * D * D if D <= K else 2 * D * K + K * HEAD_DIM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--most", type=int, default=TOKENS[-1], help="largest N")
    options = parser.parse_args()
    tokens = [N for N in TOKENS if options.most >= N]
    fastest = alone(machine_peak)
    print(f"machine: {fastest / 1e9:.0f} GFLOP/s in a 2048 x 2048 product")
    rows: list[dict[str, Any]] = []
    for backward in (False, True):
        for D in DIMENSIONS:
            print(f"\n{'Forward + backward' if backward else 'Forward'}, D = {D}:\n\n{head(backward)}")
            before = None
            for N in tokens:
                row: dict[str, Any] = {"D": D, "tokens": N, "backward": backward}
                for path in LOOKS:
                    if path != "explicit" or N <= MOST_EXPLICIT:
                        row[path] = alone(cell, path, D, N, backward)
                exact = row["exact"]["seconds"]
                row["doubling"] = None if before is None else exact / before
                row["share_of_peak"] = None if backward else products(D, N) / exact / fastest
                before = exact
                rows.append(row)
                print(line(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"peak": fastest, "rows": rows}, indent=1) + "\n")
    if options.picture:
        draw(rows, options.picture)


def head(backward: bool) -> str:
    """The first two lines of a Markdown table."""
    names = ["N", *(f"{name}, ms" for name in LOOKS), "explicit / exact", "fused / exact"]
    names += [f"memory of {', '.join(LOOKS)}, MB", "doubling", *([] if backward else ["of peak"])]
    return f"| {' | '.join(names)} |\n{'|---:' * len(names)}|"


def line(row: dict[str, Any]) -> str:
    """One line of it."""

    def cells(paths: Iterable[str], key: str, unit: float, digits: int) -> list[str]:
        return [f"{row[path][key] * unit:.{digits}f}" if path in row else "–" for path in paths]

    exact = row["exact"]["seconds"]
    texts = [
        str(row["tokens"]),
        *cells(LOOKS, "seconds", 1e3, 1),
        *cells(("explicit", "fused"), "seconds", 1 / exact, 1),
    ]
    texts.append(", ".join(cells(LOOKS, "bytes", 1e-6, 0)))
    texts.append("" if row["doubling"] is None else f"{row['doubling']:.2f}")
    texts += [] if row["share_of_peak"] is None else [f"{100 * row['share_of_peak']:.0f} %"]
    return f"| {' | '.join(texts)} |"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A row for each D: time and memory over N."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(DIMENSIONS), 2, figsize=(9, 7), sharex=True, sharey="col", constrained_layout=True)
    for line_of_axes, D in zip(axes, DIMENSIONS, strict=True):
        for axis, key, unit, quantity in (
            (line_of_axes[0], "seconds", 1e3, "time [ms]"),
            (line_of_axes[1], "bytes", 1e-6, "extra memory [MB]"),
        ):
            axis.plot([], [], "-", color="gray", label="forward")
            axis.plot([], [], "--", color="gray", label="forward + backward")
            for name, (color, marker, text) in LOOKS.items():
                for backward, style in ((False, "-"), (True, "--")):
                    own = [r for r in rows if r["D"] == D and r["backward"] == backward and name in r]
                    values = [max(r[name][key] * unit, 0.1) for r in own]
                    counts = [r["tokens"] for r in own]
                    label = None if backward else text
                    axis.plot(counts, values, style, color=color, marker=marker, markersize=4, label=label)
            axis.set(xscale="log", yscale="log", ylabel=quantity)
            axis.set_title(f"D = {D}", fontsize=10)
            ticks = sorted({r["tokens"] for r in rows})
            axis.set_xticks(ticks, [str(N) if N < 1024 else f"{N // 1024}k" for N in ticks], fontsize=8)
            axis.minorticks_off()
            axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("tokens N")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8)
    figure.suptitle(f"One attention step, {HEADS} heads of {HEAD_DIM}, batch 1, 2 CPU threads", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
