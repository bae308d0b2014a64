"""What the tests of studies share: a few pictures, and settings of very small trainings on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, TrainConfig
from support.layouts import rectangles


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Callable[..., Config]:
    """Settings of a study on eight training and two validation pictures; arguments are those of the training."""
    root = rectangles(tmp_path_factory.mktemp("pictures"), train=8, val=2, size=(32, 40))

    def make(**training: object) -> Config:
        return Config(
            encoder=EncoderConfig("vit_tiny_patch16_224", False, patch_size=8, dim=64, depth=1),
            decoder=DecoderConfig("depict_sa", layers=1, heads=1, head_dim=8),
            data=DataConfig("folder", root, short_edge=32, max_aspect=2, workers=0),
            train=TrainConfig(**{"epochs": 1, "batch": 4, "lr": 1e-3, "device": "cpu"} | training),
            image_size=32,
        )

    return make
