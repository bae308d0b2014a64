"""A model small enough for tests: one block of 64 dimensions, windows of 32 pixels."""

from __future__ import annotations

import torch

from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig
from depict.data import dataset_class
from depict.model import SegmentationModel


def tiny_model(decoder: str = "depict_sa", encoder: str = "vit_tiny_patch16_384", **data: object) -> SegmentationModel:
    """A model with random weights from a fixed seed and the classes of `scenes`."""
    torch.manual_seed(3)
    scenes = dataset_class("scenes")
    config = Config(
        encoder=EncoderConfig(encoder, pretrained=False, dim=64, depth=1),
        decoder=DecoderConfig(decoder, layers=None if decoder == "linear" else 1),
        data=DataConfig(name="scenes", short_edge=40, max_aspect=4.0, **data),  # type: ignore[arg-type]
        image_size=32,
    )
    model = SegmentationModel(config, scenes.classes, scenes.palette)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)  # so that several classes are predicted
    return model.eval()
