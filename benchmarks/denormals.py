"""Why training flushes denormals to zero: one MSSA step with sharp attention, forward and backward.

Bases that have grown in training make the softmax sharp: many probabilities become denormal, and a CPU is slow with
those. Each method runs in its own process.

    python benchmarks/denormals.py
"""

from __future__ import annotations

from measure import alone, best

GROWTHS = (1.0, 2.0, 3.0, 4.0)


def measure(flush: bool, growth: float) -> tuple[float, float]:
    """Seconds of a step, and the size of its gradient."""
    import torch

    from depict.operators import MSSA

    torch.set_flush_denormal(flush)
    torch.manual_seed(0)
    operator, Z = MSSA(192, 3, 100), torch.randn(8, 690, 192)
    with torch.no_grad():
        operator.P.mul_(growth)

    def step() -> None:
        operator.zero_grad()
        operator(Z).square().sum().backward()

    seconds = best(step)
    assert operator.P.grad is not None
    return seconds, operator.P.grad.norm().item()


def main() -> None:
    print("MSSA, 8 x 690 tokens of 192, 3 heads of 100: forward and backward")
    print("bases times     kept    flushed       ratio   difference of the gradients")
    for growth in GROWTHS:
        (kept, expected), (flushed, found) = (alone(measure, flush, growth) for flush in (False, True))
        print(f"{growth:11g} {kept:7.2f} s {flushed:11.2f} s {kept / flushed:7.2f} {abs(found / expected - 1):12.1e}")


if __name__ == "__main__":
    main()
