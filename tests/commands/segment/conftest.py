"""A small run and a few pictures for `depict segment`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from depict.model import create_model
from depict.runs import save
from support.segmenting import CLASSES, PALETTE


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    model = create_model("linear", "vit_tiny_patch16_224", image_size=32, classes=CLASSES, palette=PALETTE)
    model.encoder.vit.blocks = model.encoder.vit.blocks[:1]
    config = model.config
    config.encoder.depth = 1
    torch.nn.init.normal_(model.decoder.head.weight, std=0.5)
    folder = tmp_path_factory.mktemp("runs") / "run"
    save(model, folder)
    return folder


@pytest.fixture
def pictures(tmp_path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    random = np.random.default_rng(0)
    for index, size in enumerate([(40, 50), (33, 20), (70, 40)]):
        small = random.integers(0, 256, (4, 4, 3), np.uint8)
        Image.fromarray(small).resize(size[::-1], Image.Resampling.BICUBIC).save(folder / f"{index + 8}.png")
    return folder
