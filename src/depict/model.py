"""The whole model: image -> encoder -> Z0 -> decoder -> masks -> labels; made, saved, loaded."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depict.config.resolve import as_pair, with_defaults
from depict.config.schema import Config, DecoderConfig, EncoderConfig
from depict.data.dataset import Color, default_palette
from depict.decoders import create_decoder, decoder_options
from depict.decoders.base import Trace
from depict.errors import UserError
from depict.inference.sliding import MULTISCALE, SlidingWindow
from depict.inference.torch_backend import predict
from depict.io.images import to_rgb

if TYPE_CHECKING:
    from depict.io.images import Picture


class SegmentationModel(nn.Module):
    """An encoder and a decoder with the names and colors of the classes.

    `config` says how it was made; `side` and `ratio` of its data section say to what size images are brought first.
    """

    def __init__(self, config: Config, classes: Sequence[str], palette: Sequence[Color] | None = None):
        super().__init__()
        # timm is slow to import and needed here only, not for decoders and costs.
        from depict.encoder import Encoder

        self.image_size = as_pair(config.image_size)
        self.classes = tuple(classes)
        self.palette = default_palette(len(self.classes)) if palette is None else tuple(palette)
        if not self.classes:
            raise UserError("a model needs at least one class; num_classes must be at least 1.")
        if len(set(self.classes)) != len(self.classes):
            raise UserError("two classes have the same name.")
        if len(self.palette) != len(self.classes):
            raise UserError(f"{len(self.palette)} colors do not match {len(self.classes)} classes.")
        encoder = dataclasses.asdict(config.encoder)
        freeze = encoder.pop("freeze")
        decoder = with_defaults(config.decoder)
        self.config = dataclasses.replace(config, image_size=self.image_size, decoder=decoder)
        self.encoder = Encoder(image_size=self.image_size, **encoder)
        self.decoder = create_decoder(decoder.name, self.encoder.dim, len(self.classes), **decoder.options())
        if freeze:
            self.encoder.freeze()

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.classes)

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return self.encoder.patch_size

    @property
    def mean(self) -> tuple[float, float, float]:
        """RGB mean in 0..1 for `normalize`."""
        return self.encoder.mean

    @property
    def std(self) -> tuple[float, float, float]:
        """RGB standard deviation in 0..1 for `normalize`."""
        return self.encoder.std

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 RGB (..., 3, H, W) -> float with the encoder's own mean and deviation."""
        mean = torch.tensor(self.mean, device=images.device).view(3, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(3, 1, 1)
        return (images.float() / 255 - mean) / std

    def tokens(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Z0 (B, N, D) and the grid of normalized images (B, 3, H, W), zero-padded right and below to the patch."""
        if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
            raise UserError(f"images must have shape (batch, 3, height, width), not {tuple(images.shape)}.")
        below, right = (-side % patch for side, patch in zip(images.shape[-2:], self.patch_size, strict=True))
        return self.encoder(F.pad(images, (0, right, 0, below)))

    def masks(self, images: Tensor) -> Tensor:
        """Logits (B, C, h, w) on the patch grid of normalized images (B, 3, H, W), padded to the patch."""
        return self.decoder(*self.tokens(images))

    def forward(self, images: Tensor, full_size: bool = True) -> Tensor:
        """Logits (B, C, H, W) of normalized images (B, 3, H, W), or just `masks` if not `full_size`."""
        masks = self.masks(images)
        if not full_size:
            return masks
        size = [count * patch for count, patch in zip(masks.shape[-2:], self.patch_size, strict=True)]
        logits = F.interpolate(masks, size=size, mode="bilinear", align_corners=False)
        return logits[..., : images.shape[-2], : images.shape[-1]]

    def sliding_window(self, multiscale: bool = False) -> SlidingWindow:
        """How the model is applied to an image of any size: windows of its own size, overlapping by 32 pixels."""
        return SlidingWindow(
            window=self.image_size,
            stride=tuple(max(side - 32, (side + 1) // 2) for side in self.image_size),  # type: ignore[arg-type]
            short_edge=self.config.data.short_edge,
            max_aspect=self.config.data.max_aspect or 4.0,
            scales=MULTISCALE if multiscale else (1.0,),
            flip=multiscale,
        )

    def segment(self, image: Picture, multiscale: bool = False) -> Tensor:
        """The class of every pixel of one picture of any size and kind, integers (H, W)."""
        pixels = torch.tensor(to_rgb(image)).permute(2, 0, 1)
        with eval_mode(self):
            return predict(
                self.masks,
                pixels,
                self.sliding_window(multiscale),
                mean=self.mean,
                std=self.std,
                patch_size=self.patch_size,
                device=self.device,
            )

    @torch.no_grad()
    def unroll(self, image: Picture, attention: bool = False) -> Trace:
        """Every step that the decoder takes for one picture, which is seen whole, at the size of the protocol."""
        pixels = torch.tensor(to_rgb(image), device=self.device).permute(2, 0, 1)
        size = self.sliding_window().layout(pixels.shape[1], pixels.shape[2], 1.0).size
        resized = F.interpolate(pixels[None].float(), size=size, mode="bilinear", align_corners=False).round()
        with eval_mode(self):
            return self.decoder.unroll(*self.tokens(self.normalize(resized)), attention=attention)


def create_model(
    decoder: str = "depict_sa",
    encoder: str = "vit_small_patch16_384",
    num_classes: int | None = None,
    image_size: int | tuple[int, int] = 512,
    pretrained: bool | str | Path = False,
    drop_path: float = 0.0,
    classes: Sequence[str] | None = None,
    palette: Sequence[Color] | None = None,
    **options: Any,
) -> SegmentationModel:
    """Build a model by the names of its parts.

    `pretrained` is about the encoder: True takes timm's hub, a path a local file. Give `num_classes` or the
    `classes` by name. `options` are the decoder's, such as layers, heads and head_dim.
    """
    known = decoder_options(decoder)
    for option in options:
        if option not in known:
            create_decoder(decoder, 1, 1, **options)  # raises with the names that exist
    if classes is None:
        if num_classes is None or num_classes < 1:
            raise UserError(f"num_classes must be at least 1, not {num_classes}.")
        classes = [f"class {index}" for index in range(num_classes)]
    elif num_classes is not None and num_classes != len(classes):
        raise UserError(f"{len(classes)} class names do not match num_classes={num_classes}.")
    source = pretrained if isinstance(pretrained, bool) else str(pretrained)
    config = Config(
        encoder=EncoderConfig(name=encoder, pretrained=source, drop_path=drop_path),
        decoder=DecoderConfig(name=decoder, **options),
        image_size=image_size,
    )
    return SegmentationModel(config, classes, palette)


@contextlib.contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; the mode it was in afterwards."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
