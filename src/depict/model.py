"""The whole model: image -> encoder -> levels -> neck -> Z0 -> decoder -> masks -> labels."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depict.config.ranges import check_ranges, whole
from depict.config.resolve import as_pair, with_defaults
from depict.config.schema import Config, DecoderConfig, EncoderConfig, NeckConfig
from depict.costs import counted_multiply_adds
from depict.data.palette import Color, palette_for
from depict.decoders import create_decoder, decoder_options, level_decoder
from depict.decoders.base import LevelDecoder, Trace
from depict.errors import UserError
from depict.inference.preprocess import NetworkInput, normalize
from depict.inference.sliding import MULTISCALE, Layout, SlidingWindow, padded_size
from depict.inference.torch_backend import Network, eval_mode
from depict.inference.torch_predictor import TorchPredictor
from depict.io.classes import MOST_CLASSES, check_classes, check_colors
from depict.io.images import read_image, to_rgb
from depict.neck import STEM_STRIDE, Neck, Stem, grid_settings, pack, unpack
from depict.prediction import Prediction, predict

if TYPE_CHECKING:
    from depict.io.images import ImageLike


class SegmentationModel(nn.Module):
    """An encoder, a neck where one is needed, and a decoder, with the names and colors of the classes.

    `config` is the configuration it was built from. Its `data.short_edge` and `data.max_aspect` are
    the size that images are resized to before inference. `stride` is the cell of the grid of tokens
    and masks, in pixels; images are padded to multiples of `multiple`, which the encoder needs.
    """

    def __init__(self, config: Config, classes: Sequence[str], palette: Sequence[Color] | None = None):
        super().__init__()
        # timm is slow to import and needed here only, not for decoders and costs.
        from depict.encoders import create_encoder

        check_ranges(config)
        self.image_size = as_pair(config.image_size)
        self.classes = check_classes(classes, "the model")
        self.palette = palette_for(self.classes) if palette is None else check_colors(palette, "the model")
        if len(self.palette) != len(self.classes):
            raise UserError(f"{len(self.palette)} colors do not match {len(self.classes)} classes.")
        encoder = dataclasses.asdict(config.encoder)
        freeze = encoder.pop("freeze")
        decoder = with_defaults(config.decoder)
        levels = level_decoder(decoder.name)
        finest = levels.finest if levels else config.stride
        self.encoder = create_encoder(image_size=self.image_size, stride=finest, **encoder)
        stride, dim = grid_settings(self.encoder, config.stride, config.neck.dim, config.neck.stem, levels)
        self.stride = self.encoder.strides[0] if stride is None else (stride, stride)
        (height, width), (rows, columns) = self.encoder.multiple, self.stride
        self.multiple = math.lcm(height, rows), math.lcm(width, columns)
        self.stem = Stem() if config.neck.stem else None
        dims = [*([self.stem.dim] if self.stem else []), *self.encoder.dims]
        self.neck = Neck(dims, dim) if dim else None
        sizes = self.encoder.dims if levels else dim or self.encoder.dim
        self.decoder = create_decoder(decoder.name, sizes, len(self.classes), **decoder.options())
        neck = NeckConfig(dim, config.neck.stem)
        self.config = dataclasses.replace(config, image_size=self.image_size, stride=stride, neck=neck, decoder=decoder)
        if freeze:
            self.encoder.freeze()

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.classes)

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
        """uint8 RGB (..., 3, H, W) -> float32, with the encoder's own mean and standard deviation."""
        return normalize(images, self.mean, self.std)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of tokens, h and w, of an image of `size` pixels."""
        height, width = padded_size(size, self.multiple)
        return height // self.stride[0], width // self.stride[1]

    def neck_multiply_adds(self, size: tuple[int, int]) -> int:
        """Multiply-adds of neck and stem for one image of `size` pixels; 0 without a neck."""
        padded = padded_size(size, self.multiple)
        strides = [*([(STEM_STRIDE, STEM_STRIDE)] if self.stem else []), *self.encoder.strides]
        sizes = [(padded[0] // height, padded[1] // width) for height, width in strides]
        stem = self.stem.multiply_adds(padded) if self.stem else 0
        return stem + (self.neck.multiply_adds(sizes) if self.neck else 0)

    def head_multiply_adds(self, size: tuple[int, int]) -> int:
        """Multiply-adds of all that follows the encoder, for one image of `size` pixels."""
        grid = self.grid(size)
        if not isinstance(self.decoder, LevelDecoder):
            return self.decoder.multiply_adds(math.prod(grid)) + self.neck_multiply_adds(size)
        height, width = padded_size(size, self.multiple)
        sizes = [(height // rows, width // columns) for rows, columns in self.encoder.strides]
        levels = [torch.empty(1, *each, dim, device="meta") for each, dim in zip(sizes, self.encoder.dims, strict=True)]
        return counted_multiply_adds(copy.deepcopy(self.decoder).to("meta"), levels, grid)

    def levels(self, images: Tensor) -> tuple[list[Tensor], tuple[int, int]]:
        """The encoder's levels (B, h, w, D), the stem's first, and the size of the padded images.

        Images (B, 3, H, W) are normalized, and are zero-padded on the right and bottom.
        """
        if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
            raise UserError(f"images must have shape (batch, 3, height, width), not {tuple(images.shape)}.")
        below, right = (-side % multiple for side, multiple in zip(images.shape[-2:], self.multiple, strict=True))
        padded = F.pad(images, (0, right, 0, below))
        levels = [*([self.stem(padded)] if self.stem else []), *self.encoder(padded)]
        return levels, (padded.shape[-2], padded.shape[-1])

    def features(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """All levels of a frozen encoder, to be kept: (B, N, F) for the cells of `multiple` pixels, and their grid."""
        levels, (height, width) = self.levels(images)
        grid = (height // self.multiple[0], width // self.multiple[1])
        return pack(levels, grid), grid

    @property
    def level_shapes(self) -> list[tuple[int, int, int]]:
        """For each level, its rows and columns in a cell of `multiple` pixels, and its dimension."""
        sides = [(self.multiple[0] // height, self.multiple[1] // width) for height, width in self.encoder.strides]
        return [(*side, dim) for side, dim in zip(sides, self.encoder.dims, strict=True)]

    @property
    def level_names(self) -> list[str]:
        """The levels that the neck sums up, such as `stride 4` or, of several blocks of a ViT, `block 2`."""
        stem = ["stem"] if self.stem else []
        if self.config.encoder.blocks:
            return stem + [f"block {block}" for block in self.config.encoder.blocks]
        return stem + [f"stride {height}" for height, _ in self.encoder.strides]

    @property
    def neck_summary(self) -> str:
        """The levels, the tokens that the neck makes of them and their stride, in words; empty without a neck."""
        if self.neck is None:
            return ""
        levels = ", ".join(self.level_names)
        return f"{levels} to tokens of {self.neck.dim} dimensions at stride {self.stride[0]}"

    def head(self) -> nn.Module:
        """What follows the encoder, as a module of its own: the masks of `features`."""
        return Head(self) if self.neck or isinstance(self.decoder, LevelDecoder) else self.decoder

    def tokens(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Z0 (B, N, D) and its grid, of normalized images (B, 3, H, W), zero-padded on the right and bottom."""
        if isinstance(self.decoder, LevelDecoder):
            self.decoder.unroll()  # raises: there are no tokens
        return self._inputs(images)

    def _inputs(self, images: Tensor) -> tuple[Any, tuple[int, int]]:
        """What the decoder takes, tokens or levels, and the grid of its masks."""
        levels, size = self.levels(images)
        grid = self.grid(size)
        return levels if isinstance(self.decoder, LevelDecoder) else self._tokens(levels, grid), grid

    def _tokens(self, levels: list[Tensor], grid: tuple[int, int]) -> Tensor:
        return self.neck(levels, grid) if self.neck else levels[0].flatten(1, 2)

    def masks(self, images: Tensor) -> Tensor:
        """Logits (B, C, h, w) on the grid of tokens of normalized images (B, 3, H, W), padded to `multiple`."""
        return self.decoder(*self._inputs(images))

    def forward(self, images: Tensor, full_size: bool = True) -> Tensor:
        """Logits (B, C, H, W) of normalized images (B, 3, H, W), or `masks` if not `full_size`.

        In training mode, a decoder that owns its loss returns what that loss needs, at any size.
        """
        masks = self.masks(images)
        if not full_size or (self.training and self.decoder.owns_loss):
            return masks
        size = [count * cell for count, cell in zip(masks.shape[-2:], self.stride, strict=True)]
        logits = F.interpolate(masks, size=size, mode="bilinear", align_corners=False)
        return logits[..., : images.shape[-2], : images.shape[-1]]

    def sliding_window(
        self, multiscale: bool = False, full_image: bool = False, tile: int | None = None
    ) -> SlidingWindow:
        """How the model is applied to an image of any size: windows of its own size that overlap by at least 32 pixels.

        `multiscale` averages six scales and their mirror images. `full_image` gives the network the whole image instead
        of windows. `tile` is for images that are larger than the training images, which had this many pixels along
        their short edge: windows then slide over the image at the scale of those.
        """
        sliding = SlidingWindow(
            window=self.image_size,
            stride=tuple(max(side - 32, (side + 1) // 2) for side in self.image_size),  # type: ignore[arg-type]
            short_edge=self.config.data.short_edge,
            max_aspect=self.config.data.max_aspect or 4.0,
            scales=MULTISCALE if multiscale else (1.0,),
            flip=multiscale,
            full_image=full_image,
            blend=True,
        )
        return sliding.at_tile(tile)

    def predictor(
        self,
        sliding: SlidingWindow | None = None,
        *,
        network: Network | None = None,
        compile: bool = False,
        batch: int | None = None,
    ) -> TorchPredictor:
        """Labels or probabilities of images of any size; `sliding` is `sliding_window()` by default.

        `network` replaces `masks`, `compile` runs it through torch.compile, `batch` is the number
        of windows per call.
        """
        return TorchPredictor(self, sliding or self.sliding_window(), network, compile, batch)

    @overload
    def predict(
        self, images: ImageLike, *, multiscale: bool = ..., full_image: bool = ..., tile: int | None = ...
    ) -> Prediction: ...
    @overload
    def predict(
        self,
        images: Sequence[ImageLike | str | Path],
        *,
        multiscale: bool = ...,
        full_image: bool = ...,
        tile: int | None = ...,
    ) -> list[Prediction]: ...
    @overload
    def predict(
        self, images: str | Path, *, multiscale: bool = ..., full_image: bool = ..., tile: int | None = ...
    ) -> Any: ...
    def predict(
        self, images: Any, *, multiscale: bool = False, full_image: bool = False, tile: int | None = None
    ) -> Any:
        """The `Prediction` of an image of any size: a path, a PIL image, an array or a tensor.

        A list gives a list of predictions. A folder, or any other iterable, gives an iterator that predicts one image
        after the other. `multiscale`, `full_image` and `tile` are as in `sliding_window`.
        """
        return predict(self.predictor(self.sliding_window(multiscale, full_image, tile)), images)

    @torch.no_grad()
    def unroll(self, image: ImageLike | str | Path, attention: bool = False) -> Trace:
        """Every step of the decoder for one whole image, which may be a path and is resized as in `predict`."""
        with eval_mode(self):
            pixels = self.network_input(read_image(image) if isinstance(image, (str, Path)) else image)[None]
            levels, size = self.levels(pixels)
            grid = self.grid(size)
            trace = self.decoder.unroll(self._tokens(levels, grid), grid, attention=attention)
            if self.neck:
                trace.contributions = torch.stack(self.neck.contributions(levels, grid))
            return trace

    def network_input(self, image: ImageLike, layout: Layout | None = None) -> Tensor:
        """The whole image as the network sees it, normalized float32 (3, H, W) on the model's device.

        `layout` gives its size, by default that of `predict`; very large images are then refused.
        """
        pixels = torch.tensor(to_rgb(image)).permute(2, 0, 1)
        layout = layout or self.sliding_window(full_image=True).layout(pixels.shape[1], pixels.shape[2])
        return NetworkInput(pixels, layout, self.mean, self.std, self.device).full()

    def layout(self, height: int, width: int) -> Layout:
        """The sizes of an image of height x width on its way to the network."""
        return self.sliding_window().layout(height, width)


class Head(nn.Module):
    """Neck and decoder without the encoder: packed features (B, N, F) on a grid -> masks (B, C, h, w)."""

    def __init__(self, model: SegmentationModel):
        super().__init__()
        self.neck, self.decoder = model.neck, model.decoder
        self.level_shapes = model.level_shapes
        self.cells = (model.multiple[0] // model.stride[0], model.multiple[1] // model.stride[1])

    def forward(self, features: Tensor, grid: tuple[int, int]) -> Tensor:
        """Masks on the grid of tokens, from features on the `grid` of `SegmentationModel.features`."""
        levels = unpack(features, grid, self.level_shapes)
        tokens = (grid[0] * self.cells[0], grid[1] * self.cells[1])
        return self.decoder(self.neck(levels, tokens) if self.neck else levels, tokens)


def create_model(
    decoder: str = "depict_sa",
    encoder: str = "vit_small_patch16_384",
    num_classes: int | None = None,
    image_size: int | tuple[int, int] = 512,
    pretrained: bool | str | Path = False,
    drop_path: float = 0.0,
    classes: Sequence[str] | None = None,
    palette: Sequence[Color] | None = None,
    stride: int | None = None,
    blocks: Sequence[int] | None = None,
    neck_dim: int | None = None,
    stem: bool = False,
    **options: Any,
) -> SegmentationModel:
    """Build a model from the names of its decoder and encoder.

    `pretrained` loads weights of the encoder: True from timm's hub, a path from a local file. Give
    `num_classes`, or `classes` by name. `stride` is the grid of the decoder and its masks, in
    pixels: by default the patch of a plain ViT, 8 for other encoders. `blocks`: use the outputs of
    several blocks of a plain ViT; `neck_dim` and `stem` are those of `NeckConfig`. `options` are the
    decoder's, such as layers, heads and head_dim.
    """
    known = decoder_options(decoder)
    for option in options:
        if option not in known:
            create_decoder(decoder, 1, 1, **options)  # raises with the names that exist
    if classes is None:
        if problem := whole(1, MOST_CLASSES).problem(num_classes):
            raise UserError(f"num_classes must be {problem}, not {num_classes}.")
        classes = [f"class {index}" for index in range(num_classes or 0)]
    elif num_classes is not None and num_classes != len(classes):
        raise UserError(f"{len(classes)} class names do not match num_classes={num_classes}.")
    source = pretrained if isinstance(pretrained, bool) else str(pretrained)
    config = Config(
        encoder=EncoderConfig(
            name=encoder, pretrained=source, drop_path=drop_path, blocks=None if blocks is None else tuple(blocks)
        ),
        neck=NeckConfig(neck_dim, stem),
        decoder=DecoderConfig(name=decoder, **options),
        image_size=image_size,
        stride=stride,
    )
    return SegmentationModel(config, classes, palette)
