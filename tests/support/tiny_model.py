"""Models small enough for tests: a plain ViT of one block, or a tiny encoder with a neck; windows of 32 pixels."""

from __future__ import annotations

import torch

from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, NeckConfig
from depict.data import dataset_class
from depict.model import SegmentationModel


def tiny_model(decoder: str = "depict_sa", encoder: str = "vit_tiny_patch16_384", **data: object) -> SegmentationModel:
    """A model with random weights from a fixed seed and the classes of `scenes`."""
    return _random(
        Config(
            encoder=EncoderConfig(encoder, pretrained=False, dim=64, depth=1),
            decoder=DecoderConfig(decoder, layers=None if decoder == "linear" else 1),
            data=DataConfig(name="scenes", short_edge=40, max_aspect=4.0, **data),  # type: ignore[arg-type]
            image_size=32,
        )
    )


def tiny_neck_model(
    decoder: str = "depict_sa", encoder: str = "test_efficientnet", stride: int = 4, operator: str = "exact"
) -> SegmentationModel:
    """The same with a neck of 24 dimensions; images are padded to 32 pixels, masks have the given stride."""
    options = {} if decoder == "linear" else {"layers": 1, "heads": 2, "head_dim": 8}
    own = {"operator": operator} if decoder in ("depict_sa", "depict_ca") else {}
    return _random(
        Config(
            encoder=EncoderConfig(encoder, pretrained=False),
            decoder=DecoderConfig(decoder, **options, **own),  # type: ignore[arg-type]
            neck=NeckConfig(dim=24),
            data=DataConfig(name="scenes", short_edge=40, max_aspect=4.0),
            image_size=32,
            stride=stride,
        )
    )


def _random(config: Config) -> SegmentationModel:
    torch.manual_seed(3)
    scenes = dataset_class("scenes")
    model = SegmentationModel(config, scenes.classes, scenes.palette)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)  # so that several classes are predicted
    return model.eval()
