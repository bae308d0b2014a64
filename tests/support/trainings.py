"""Trainings of seconds: a ViT of two blocks on ten pictures of 40 x 48 pixels, in Python and as a command line."""

from __future__ import annotations

from pathlib import Path

import torch

from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, TrainConfig
from depict.runs import read_metrics


def small_config(root: Path, freeze=False, drop_path=0.0, image_size=32, limit=None, seed=0, **train) -> Config:
    """Two epochs of three steps on the folder `root`; `train` are settings of TrainConfig."""
    encoder = EncoderConfig(
        "vit_tiny_patch16_224", False, drop_path=drop_path, freeze=freeze, patch_size=8, dim=64, depth=2
    )
    return Config(
        encoder=encoder,
        decoder=DecoderConfig("depict_sa", layers=1, heads=2, head_dim=8),
        data=DataConfig("folder", root, short_edge=40, max_aspect=2, workers=0, limit=limit),
        train=TrainConfig(**{"epochs": 2, "batch": 4, "lr": 1e-3, "device": "cpu"} | train),
        image_size=image_size,
        seed=seed,
    )


def small_command(root: Path, out: Path, *more: str, workers: int = 0) -> list[str]:
    """The words after `depict` that train the same, with drop-path."""
    words = f"""train --out {out} --data folder --root {root} --data.short-edge 40 --data.max-aspect 2
        --data.workers {workers} --encoder vit_tiny_patch16_224 --encoder.pretrained False --encoder.drop-path 0.2
        --encoder.patch-size 8 --encoder.dim 64 --encoder.depth 2
        --decoder depict_sa --decoder.layers 1 --decoder.heads 2 --decoder.head-dim 8
        --image-size 32 --epochs 2 --batch 4 --lr 1e-3 --device cpu"""
    return [*words.split(), *more]


def losses(out: Path) -> list[float]:
    """The losses that a run has logged."""
    return [line["loss"] for line in read_metrics(out) if "loss" in line]


def scores(out: Path) -> list[float]:
    """The mIoU of every validation of a run."""
    return [line["miou"] for line in read_metrics(out) if "miou" in line]


def saved_state(out: Path) -> dict:
    """The state that a run resumes from."""
    return torch.load(out / "state" / "last.pt", weights_only=True)


def assert_same_run(first: Path, second: Path) -> None:
    """Both kept weights are equal bit for bit, and so are the logged losses."""
    for name in ("last.safetensors", "model.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert losses(first) == losses(second)
