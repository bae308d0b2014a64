"""Why training on a CPU keeps freed memory: training steps with glibc's defaults and with `depict.devices.kept_memory`.

    python benchmarks/allocation.py [--encoder tf_efficientnet_lite0 --side 256 --batch 8 --decoder depict_us]

Each method runs in its own process, by turns, and the losses must be equal. Page faults are those of one step after the
first: the kernel fills each page with zeros.
"""

from __future__ import annotations

import argparse
import contextlib
import resource

from measure import alone, best, peak, resident

METHODS = ("glibc's defaults", "kept")


def measure(keep: bool, encoder: str, decoder: str, side: int, batch: int) -> dict[str, float]:
    """Seconds, page faults and loss of a training step, and the memory that it adds to the model."""
    import torch

    import depict
    from depict.devices import kept_memory
    from depict.training.losses import plain_loss

    with kept_memory() if keep else contextlib.nullcontext():
        torch.manual_seed(0)
        model = depict.create_model(decoder, encoder=encoder, num_classes=11, image_size=side, pretrained=False)
        images = torch.randn(batch, 3, side, side)
        labels = torch.randint(11, (batch, side, side), dtype=torch.uint8)
        before, values = resident(), []

        def step() -> None:
            loss = plain_loss(model.train(), model(images, full_size=False), labels)
            loss.backward()
            model.zero_grad(set_to_none=True)
            values.append(loss.item())

        step()
        faults = _faults()
        step()
        faults = _faults() - faults
        return {"seconds": best(step), "faults": faults, "bytes": peak() - before, "loss": values[0]}


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="tf_efficientnet_lite0")
    parser.add_argument("--decoder", default="depict_us")
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    arguments = (options.encoder, options.decoder, options.side, options.batch)
    rounds = [[alone(measure, keep, *arguments) for keep in (False, True)] for _ in range(options.rounds)]
    assert len({row["loss"] for pair in rounds for row in pair}) == 1, "the losses differ"
    rows = [min((pair[index] for pair in rounds), key=lambda row: row["seconds"]) for index in (0, 1)]
    print(f"{options.encoder} + {options.decoder}, {options.batch} x {options.side} x {options.side}, training step:")
    for name, row in zip(METHODS, rows, strict=True):
        print(f"  {name:<17}{row['seconds']:7.3f} s{row['faults']:9.0f} page faults{row['bytes'] / 1e6:7.0f} MB")
    print(f"  kept / defaults: time {rows[1]['seconds'] / rows[0]['seconds']:.2f}, ", end="")
    print(f"memory {rows[1]['bytes'] / rows[0]['bytes']:.2f}")


if __name__ == "__main__":
    main()
