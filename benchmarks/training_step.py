"""The whole training step of depict against a plain implementation of the same step, in one run.

    python benchmarks/training_step.py [--decoder depict_sa segmenter] [--side 512 --batch 8 --classes 150 --steps 4]

Forward, loss, backward and optimizer (SGD as published) of ViT-T with a decoder. The plain step holds every attention
matrix, in the encoder and in the decoder, and the logits at full size. Both start from the same weights and take the
same steps, each in its own process: the losses must agree. Memory excludes weights and images. A profile then shows
where the time goes, forward and backward together.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import MethodType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from measure import THREADS, alone, peak, resident

AGREE = 1e-4
METHODS = ("plain", "ours")


class Step:
    """A model, an optimizer, and one step of a training on images and labels drawn by a seed."""

    def __init__(self, method: str, decoder: str, side: int, batch: int, classes: int):
        import torch

        import depict
        from depict.config.schema import TrainConfig
        from depict.training.optim import create_optimizer, set_rate

        torch.manual_seed(0)
        self.model = depict.create_model(
            decoder, encoder="vit_tiny_patch16_224", num_classes=classes, image_size=side, dropout=0.0
        )
        if method == "plain":
            explicit(self.model)
        self.loss = {"plain": self.full_size, "ours": self.lean}[method]
        self.optimizer = create_optimizer(self.model, TrainConfig(optimizer="sgd"), 1e-3)
        set_rate(self.optimizer, 1e-3)
        self.images = torch.randn(batch, 3, side, side)
        coarse = torch.randint(0, classes, (batch, side // 32, side // 32), dtype=torch.uint8)
        self.labels = coarse.repeat_interleave(32, 1).repeat_interleave(32, 2)
        self.labels[:, :16] = 255

    def lean(self):
        """As `depict.training.loop` computes it."""
        from depict.training import losses

        masks = self.model(self.images, full_size=False)
        with part("loss"):
            total, count = losses.cross_entropy(masks, self.labels, self.model.multiple)
            return total / count

    def full_size(self):
        """As it is first written down."""
        import torch.nn.functional as F

        masks = self.model(self.images, full_size=False)
        with part("loss"):
            logits = F.interpolate(masks, size=self.labels.shape[1:], mode="bilinear")
            return F.cross_entropy(logits, self.labels.long(), ignore_index=255)

    def __call__(self) -> float:
        """Take one step; gives the loss before it."""
        loss = self.loss()
        loss.backward()
        with part("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def explicit(model: Any) -> None:
    """Give every attention of the model its N x N matrix, as the official code of encoder and decoders does."""
    import torch.nn.functional as F

    from depict.decoders.blocks import MHSABlock
    from depict.operators import MSSA

    def mssa(self, Z):
        W = F.linear(Z, self.P).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        A = (W @ W.transpose(-1, -2) * W.shape[-1] ** -0.5).softmax(-1)
        return self.step_size * ((A @ W).transpose(1, 2).flatten(2) @ self.P)

    def mhsa(self, X):
        queries, keys, values = self.queries_keys_values(X)
        A = (queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5).softmax(-1)
        return X + self.proj((A @ values).transpose(1, 2).flatten(2))

    for block in model.encoder.vit.blocks:
        block.attn.fused_attn = False
    for module in model.decoder.modules():
        for kind, forward in ((MSSA, mssa), (MHSABlock, mhsa)):
            if isinstance(module, kind):
                module.forward = MethodType(forward, module)


def part(name: str) -> contextlib.AbstractContextManager:
    """Mark what runs inside for the profile."""
    from torch.profiler import record_function

    return record_function(f"part: {name}")


def measure(method: str, decoder: str, side: int, batch: int, classes: int, steps: int) -> dict[str, Any]:
    """Seconds of the fastest step, extra bytes of the first, and all losses."""
    Step(method, decoder, 64, 1, classes)()  # load the libraries' kernels before memory is read
    step = Step(method, decoder, side, batch, classes)
    before = resident()
    losses, seconds = [step()], []
    memory = peak() - before
    for _ in range(steps - 1):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds), "bytes": memory, "losses": losses}


def profile(
    method: str, decoder: str, side: int, batch: int, classes: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of one step by part of the model and by operation."""
    import torch.profiler

    step = Step(method, decoder, side, batch, classes)
    model = step.model
    mark(model.encoder, "encoder, the rest")
    mark(model.decoder, "decoder, the rest")
    for block in model.encoder.vit.blocks:
        mark(block.attn, "encoder attention")
        mark(block.mlp, "encoder MLP")
    for layer in getattr(model.decoder, "layers", ()):
        mark(layer, "decoder MLP" if layer.name == "mlp" else "decoder attention")
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    parts: dict[str, float] = defaultdict(float)
    operations: dict[str, float] = defaultdict(float)
    events = profiler.events()
    # A step of the backward pass carries the number of the forward operation that it belongs to.
    owner = {event.sequence_nr: name for event in events if event.sequence_nr >= 0 and (name := part_of(event))}
    for event in events:
        name = part_of(event)
        if name is None:
            backward = next((e for e in lineage(event) if e.name.startswith("autograd::engine::evaluate")), None)
            name = owner.get(backward.sequence_nr) if backward else None
        parts[name or "elsewhere"] += event.self_cpu_time_total / 1e6
        operations[event.name] += event.self_cpu_time_total / 1e6
    return dict(parts), dict(operations)


def mark(module: Any, name: str) -> None:
    """Let every forward pass of the module be a part of that name."""
    entered = []

    def enter(*_):
        entered.append(part(name))
        entered[-1].__enter__()

    def leave(*_):
        entered.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)


def lineage(event: Any):
    """The event and what it ran inside, from the inside out."""
    while event is not None:
        yield event
        event = event.cpu_parent


def part_of(event: Any) -> str | None:
    """The innermost part that the event ran inside."""
    return next((e.name[6:] for e in lineage(event) if e.name.startswith("part: ")), None)


def compare(decoder: str, side: int, batch: int, classes: int, steps: int) -> None:
    print(f"\n{decoder}: ViT-T, {side} x {side}, batch {batch}, {classes} classes, {THREADS} threads, ", end="")
    print(f"best of {steps - 1} steps")
    found = {method: alone(measure, method, decoder, side, batch, classes, steps) for method in METHODS}
    for method, row in found.items():
        print(f"  {method:<6}{row['seconds']:8.2f} s {row['bytes'] / 1e6:9.0f} MB")
    plain, ours = found["plain"], found["ours"]
    print(f"  plain / ours: time {plain['seconds'] / ours['seconds']:.2f} (aim >= 2); ", end="")
    print(f"ours / plain: memory {ours['bytes'] / plain['bytes']:.3f} (aim <= 0.4)")
    difference = max(abs(a - b) for a, b in zip(plain["losses"], ours["losses"], strict=True))
    print(f"  largest difference of the losses of {steps} steps: {difference:.1e}", flush=True)
    if not difference <= AGREE:
        raise SystemExit(f"the losses differ by more than {AGREE}: {plain['losses']}, {ours['losses']}")
    (plain_parts, _), (parts, operations) = (
        alone(profile, method, decoder, side, batch, classes) for method in METHODS
    )
    whole = sum(parts.values())
    print(f"  {'where the time goes':<24}{'plain':>10}{'ours':>10}{'of ours':>10}")
    for name in sorted(parts, key=lambda name: -parts[name]):
        spent = f"{plain_parts.get(name, 0):>8.2f} s{parts[name]:>8.2f} s"
        print(f"  {name:<24}{spent}{100 * parts[name] / whole:>8.1f} %")
    print(f"  {'all':<24}{sum(plain_parts.values()):>8.2f} s{whole:>8.2f} s")
    print("  the longest operations of ours:")
    for name in sorted(operations, key=lambda name: -operations[name])[:8]:
        print(f"    {name:<52}{operations[name]:>8.2f} s{100 * operations[name] / whole:>8.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decoder", nargs="+", choices=["depict_sa", "segmenter"], default=["depict_sa"])
    parser.add_argument("--side", type=int, default=512, help="a multiple of 32")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--classes", type=int, default=150)
    parser.add_argument("--steps", type=int, default=4, help="at least 2")
    options = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler logs every start and of missing GPUs
    for decoder in options.decoder:
        compare(decoder, options.side, options.batch, options.classes, options.steps)


if __name__ == "__main__":
    main()
