"""The whole model: image -> encoder -> Z0 -> decoder -> masks -> labels; made, saved, loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from depict.config import Config, DecoderConfig, EncoderConfig, from_dict, read_yaml, to_dict, write_yaml
from depict.data.dataset import Colour, spread_palette
from depict.decoders import create_decoder, decoder_options
from depict.decoders.base import Trace
from depict.errors import UserError
from depict.files import atomic_path
from depict.images import to_rgb
from depict.inference import MULTISCALE, Protocol, predict
from depict.interchange.hub import local_run
from depict.stamp import stamp

if TYPE_CHECKING:
    from depict.images import Picture

FORMAT = 1
"""Version of the run folder; raised when an older depict could not read a newer folder."""
WEIGHTS = "model.safetensors"
"""The best weights by validation."""
LAST = "last.safetensors"
"""The weights after the last step."""


class SegmentationModel(nn.Module):
    """An encoder and a decoder with the names and colours of the classes.

    `config` says how it was made; `side` and `ratio` of its data section say to what size images are brought first.
    """

    def __init__(self, config: Config, classes: Sequence[str], palette: Sequence[Colour] | None = None):
        super().__init__()
        # timm is slow to import and needed here only, not for decoders and costs.
        from depict.encoder import Encoder

        self.image_size = as_pair(config.image_size)
        self.classes = tuple(classes)
        self.palette = spread_palette(len(self.classes)) if palette is None else tuple(palette)
        if not self.classes:
            raise UserError("a model needs at least one class; num_classes must be at least 1.")
        if len(set(self.classes)) != len(self.classes):
            raise UserError("two classes have the same name.")
        if len(self.palette) != len(self.classes):
            raise UserError(f"{len(self.palette)} colours do not match {len(self.classes)} classes.")
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
        """RGB mean in 0..1 for `normalise`."""
        return self.encoder.mean

    @property
    def std(self) -> tuple[float, float, float]:
        """RGB standard deviation in 0..1 for `normalise`."""
        return self.encoder.std

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 RGB (..., 3, H, W) -> float with the encoder's own mean and deviation."""
        mean = torch.tensor(self.mean, device=images.device).view(3, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(3, 1, 1)
        return (images.float() / 255 - mean) / std

    def tokens(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Z0 (B, N, D) and the grid of normalised images (B, 3, H, W), zero-padded right and below to the patch."""
        if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
            raise UserError(f"images must have shape (batch, 3, height, width), not {tuple(images.shape)}.")
        below, right = (-side % patch for side, patch in zip(images.shape[-2:], self.patch_size, strict=True))
        return self.encoder(F.pad(images, (0, right, 0, below)))

    def masks(self, images: Tensor) -> Tensor:
        """Logits (B, C, h, w) on the patch grid of normalised images (B, 3, H, W), padded to the patch."""
        return self.decoder(*self.tokens(images))

    def forward(self, images: Tensor, full_size: bool = True) -> Tensor:
        """Logits (B, C, H, W) of normalised images (B, 3, H, W), or just `masks` if not `full_size`."""
        masks = self.masks(images)
        if not full_size:
            return masks
        size = [count * patch for count, patch in zip(masks.shape[-2:], self.patch_size, strict=True)]
        logits = F.interpolate(masks, size=size, mode="bilinear", align_corners=False)
        return logits[..., : images.shape[-2], : images.shape[-1]]

    def protocol(self, multiscale: bool = False) -> Protocol:
        """How the model is applied to an image of any size: windows of its own size, overlapping by 32 pixels."""
        return Protocol(
            window=self.image_size,
            stride=tuple(max(side - 32, (side + 1) // 2) for side in self.image_size),  # type: ignore[arg-type]
            side=self.config.data.side,
            ratio=self.config.data.ratio or 4.0,
            scales=MULTISCALE if multiscale else (1.0,),
            flip=multiscale,
        )

    def segment(self, image: Picture, multiscale: bool = False) -> Tensor:
        """The class of every pixel of one picture of any size and kind, integers (H, W)."""
        pixels = torch.tensor(to_rgb(image)).permute(2, 0, 1)
        with _evaluating(self):
            return predict(
                self.masks,
                pixels,
                self.protocol(multiscale),
                mean=self.mean,
                std=self.std,
                patch_size=self.patch_size,
                device=self.device,
            )

    @torch.no_grad()
    def unroll(self, image: Picture, attention: bool = False) -> Trace:
        """Every step that the decoder takes for one picture, which is seen whole, at the size of the protocol."""
        pixels = torch.tensor(to_rgb(image), device=self.device).permute(2, 0, 1)
        size = self.protocol().layout(pixels.shape[1], pixels.shape[2], 1.0).size
        resized = F.interpolate(pixels[None].float(), size=size, mode="bilinear", align_corners=False).round()
        with _evaluating(self):
            return self.decoder.unroll(*self.tokens(self.normalise(resized)), attention=attention)

    def save(self, folder: str | Path) -> None:
        """Write the run folder: `model.safetensors` and `config.yaml`, each whole or not at all."""
        self.save_config(Path(folder))
        self.save_weights(Path(folder) / WEIGHTS)

    def save_weights(self, path: Path) -> None:
        """Write all tensors as safetensors."""
        save_tensors(self.state_dict(), path)

    def save_config(self, folder: Path) -> None:
        """Write how the model was made, and its classes."""
        classes = {name: list(colour) for name, colour in zip(self.classes, self.palette, strict=True)}
        header = {"format": FORMAT, "stamp": stamp(self.config.seed)}
        write_yaml(folder / "config.yaml", header | to_dict(self.config) | {"classes": classes})


def create_model(
    decoder: str = "depict_sa",
    encoder: str = "vit_small_patch16_384",
    num_classes: int | None = None,
    image_size: int | tuple[int, int] = 512,
    pretrained: bool | str | Path = False,
    drop_path: float = 0.0,
    classes: Sequence[str] | None = None,
    palette: Sequence[Colour] | None = None,
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


def load(run: str | Path, last: bool = False) -> SegmentationModel:
    """Give back the model of a run folder or of `hf-hub:user/name`, in evaluation mode on the CPU.

    It is the best one of the training by validation, or the `last` one.
    """
    folder = local_run(run)
    config, classes = read_run(folder)
    config.encoder.pretrained = False
    model = SegmentationModel(config, list(classes), list(classes.values()))
    path = folder / (LAST if last else WEIGHTS)
    try:
        state = load_file(path)
    except FileNotFoundError as error:
        raise UserError(
            f"'{folder}' has no {path.name}: the run was not trained yet, or is not a run folder."
        ) from error
    except (SafetensorError, OSError) as error:
        raise UserError(f"'{path}' is damaged or unreadable: {' '.join(str(error).split())}") from error
    load_weights(model, state, path)
    return model.eval()


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors, whole or not at all."""
    with atomic_path(path) as temporary:
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
        except SafetensorError as error:  # what the library makes of a full disk
            raise OSError(str(error)) from error


def load_weights(model: nn.Module, state: dict[str, Tensor], source: Path) -> None:
    """Load every tensor of `state` strictly; what does not fit is named."""
    own = model.state_dict()
    for name, tensor in own.items():
        if name not in state:
            raise UserError(f"'{source}' does not fit the model: it lacks '{name}'.")
        if state[name].shape != tensor.shape:
            hint = ""
            if name.startswith(("decoder.mask_norm", "decoder.class_embeddings", "decoder.head")):
                hint = f" It is for {state[name].shape[0]} classes, the model has {tensor.shape[0]}."
            raise UserError(
                f"'{source}' does not fit the model: '{name}' has shape {tuple(state[name].shape)}, "
                f"not {tuple(tensor.shape)}.{hint}"
            )
    for name in state:
        if name not in own:
            raise UserError(f"'{source}' does not fit the model: it has '{name}', which the model has not.")
    model.load_state_dict(state)


def read_run(folder: Path) -> tuple[Config, dict[str, Colour]]:
    """The configuration of a run folder, and the colour of each class."""
    path = folder / "config.yaml"
    if folder.suffix.lower() == ".onnx" and folder.is_file():
        raise UserError(
            f"'{folder}' is an exported model, which only `depict segment` takes: give the run that it was made of."
        )
    if not path.is_file():
        raise UserError(f"'{folder}' is not a run folder: there is no config.yaml in it.")
    values = read_yaml(path)
    version = values.pop("format", None)
    if version != FORMAT:
        raise UserError(
            f"'{path}' has format {version}, this depict reads format {FORMAT}: use the depict that wrote it."
        )
    values.pop("stamp", None)
    try:
        classes: dict[str, Colour] = {
            str(k): (int(r), int(g), int(b)) for k, (r, g, b) in values.pop("classes").items()
        }
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"'{path}' does not list its classes as `name: [red, green, blue]`.") from error
    return from_dict(Config, values, f"'{path}'"), classes


def as_pair(size: int | Sequence[int] | None) -> tuple[int, int]:
    """Height and width from a side or a pair."""
    pair = (size, size) if isinstance(size, int) else tuple(size or ())
    if len(pair) != 2 or not all(isinstance(side, int) and side >= 1 for side in pair):
        raise UserError(f"image_size must be a side or height and width, at least 1 pixel, not {size}.")
    return pair


def with_defaults(decoder: DecoderConfig) -> DecoderConfig:
    """The decoder's settings with its own defaults where nothing was said."""
    return DecoderConfig(decoder.name, **decoder_options(decoder.name) | decoder.options())


class _evaluating:  # noqa: N801 - reads as a statement
    """Evaluation mode for the length of a block, then the mode that was."""

    def __init__(self, model: nn.Module):
        self.model = model

    def __enter__(self) -> None:
        self.was_training = self.model.training
        self.model.eval()

    def __exit__(self, *_: object) -> None:
        self.model.train(self.was_training)
