"""Everything a run is made of, on one page of dataclasses, and the YAML that says it.

Free of torch: the command line reads this file for its help. Values left at None are filled in by the part that
knows them (a decoder its own sizes, a data set its own recipe), so that a saved configuration is always whole.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

import yaml
from tyro.conf import arg

from depict.errors import UserError, unknown
from depict.files import atomic_path

T = TypeVar("T")
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


@dataclass
class EncoderConfig:
    """The ViT that turns an image into embeddings Z0."""

    name: Annotated[str, arg(aliases=["--encoder"])] = "vit_small_patch16_384"
    """Any plain ViT of timm, by its timm name."""
    pretrained: bool | str = True
    """True: weights from timm's hub; a path: a local .safetensors or .pth file; False: random weights."""
    drop_path: float = 0.0
    """Stochastic depth, rising linearly from 0 at the first block to this value at the last."""
    freeze: Annotated[bool, arg(aliases=["--freeze-encoder"])] = False
    """Keep the encoder's weights as they are and train the decoder only."""
    patch_size: int | None = None
    """Another patch size than the name says; for training from random weights."""
    dim: int | None = None
    """Another embedding dimension, with heads of 64; for training from random weights."""
    depth: int | None = None
    """Another number of blocks; for training from random weights."""


@dataclass
class DecoderConfig:
    """The head that turns embeddings into masks. Options left at None are the decoder's own defaults."""

    name: Annotated[str, arg(aliases=["--decoder"])] = "depict_sa"
    """depict_sa, depict_ca, segmenter, linear or ablation."""
    layers: int | None = None
    """Number of layers (of MSSA layers for depict_ca)."""
    heads: int | None = None
    """Attention heads per layer."""
    head_dim: int | None = None
    """Dimension of each head's subspace."""
    cross_layers: int | None = None
    """depict_ca: number of MSCA layers."""
    cross_heads: int | None = None
    """depict_ca: heads per MSCA layer."""
    cross_head_dim: int | None = None
    """depict_ca: dimension of each MSCA head's subspace."""
    attention: str | None = None
    """ablation: mssa, mhsa or none."""
    feedforward: str | None = None
    """ablation: ista, mlp or none."""
    dropout: float | None = None
    """Dropout inside the decoder."""
    logit_gain: float | None = None
    """Gain of the norm over the classes at the start; 1 as released, but 4 for up to 16 classes on a frozen encoder."""
    step_size: float | None = None
    """MSSA and MSCA: all step sizes at the start; by default drawn from N(0, 1), as released."""

    def options(self) -> dict[str, Any]:
        """What was set, as keyword arguments for the decoder."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "name"}
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class DataConfig:
    """The images and masks."""

    name: Annotated[str | None, arg(aliases=["--data"])] = None
    """scenes, folder, ade20k, cityscapes, pascal_context, pascal_context_59 or camvid."""
    root: Annotated[Path | None, arg(aliases=["--root"])] = None
    """Where the data set lies (`scenes` is generated and needs none)."""
    side: int | None = None
    """Short edge of the box that images are resized into, before the random factor."""
    ratio: float | None = None
    """Long edge of that box over its short edge."""
    factors: tuple[float, float] = (0.5, 2.0)
    """Smallest and largest random factor on the size of training images."""
    colours: bool = True
    """Distort brightness, contrast, saturation and hue of training images."""
    mirror: bool = True
    """Mirror every second training image; not where left and right are different classes."""
    limit: int | None = None
    """Train on so many images only, drawn by the seed."""
    holdout: float | None = None
    """Validate on this last part of the training images, and train on the others: to choose settings by."""
    workers: int = 2
    """Processes that read and augment images."""


@dataclass
class TrainConfig:
    """How the model is trained. Epochs, batch and rate left at None are the data set's published recipe."""

    epochs: int | None = None
    """Passes over the training images."""
    batch: int | None = None
    """Images per step, over all processes together."""
    lr: float | None = None
    """Learning rate at the start (after warm-up); by default the recipe's for sgd; for adamw 2e-4, with a frozen
    encoder 1e-3 (depict_ca 3e-3, linear 1e-2)."""
    optimizer: Literal["sgd", "adamw"] = "adamw"
    """sgd: Nesterov momentum 0.9, as published. adamw: the modern choice."""
    weight_decay: float = 0.0
    """Decay of matrices; norms, biases, embeddings, tokens and step sizes are never decayed."""
    warmup: int = 0
    """Steps in which the rate rises linearly to its start."""
    layer_decay: float = 1.0
    """Rate of each encoder block over that of the block after it."""
    clip: float | None = None
    """Largest norm of the gradient."""
    accumulate: int = 1
    """Pieces that a step is computed in, one after the other, to save memory; cross-entropy stays the same."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Mixed precision; auto is bf16 on GPUs that have it, fp32 elsewhere."""
    checkpointing: bool = False
    """Recompute the encoder's activations in the backward pass instead of keeping them."""
    compile: bool = False
    """Compile the model with torch.compile."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is then what is evaluated and kept."""
    loss: Literal["ce", "ce+dice", "ce+lovasz"] = "ce"
    """Cross-entropy, alone or with soft Dice or Lovász-softmax added."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: weigh each class by the median class frequency over its own."""
    cache_features: bool = False
    """Run a frozen encoder once per image and mirror image, and train the decoder from memory."""
    cache_crop: float | None = None
    """With cached features: train on a random part of each image, this share of its height and width."""
    validate_every: int | None = None
    """Epochs between validations; by default an eighth of the training. The last epoch is always validated."""
    save_every: int | None = None
    """Steps between saves of the state to resume from; by default an epoch."""
    patience: int | None = None
    """Stop after so many validations without a better mIoU."""
    tracker: Literal["none", "tensorboard", "wandb"] = "none"
    """Log to TensorBoard or Weights & Biases too, if installed."""
    device: str | None = None
    """cpu, cuda or mps; by default the best there is."""


@dataclass
class Config:
    """A whole experiment."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: Annotated[TrainConfig, arg(name="")] = field(default_factory=TrainConfig)
    image_size: int | tuple[int, int] | None = None
    """Crop that the model is trained on and window that it is applied in: side, or height and width; by default the
    data set's published crop."""
    seed: int = 0
    """Seed of the weights, the order of images and the augmentation."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}") from error
    except RecursionError as error:
        raise UserError(f"'{path}' is nested too deeply to be a file of settings.") from error
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:  # a tag may not fit its value
        raise UserError(f"'{path}' is not valid YAML: {' '.join(str(error).split())}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"'{path}' must hold a mapping of settings, not a {type(value).__name__}.")
    return value


def write_yaml(path: Path, value: dict[str, Any]) -> None:
    """Write a mapping as YAML in its own order, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(
            yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None), encoding="utf-8"
        )


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain YAML values: paths as text, tuples as lists; what is None is left out."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items() if item is not None}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, Path) else value

    return plain(dataclasses.asdict(config))


def from_dict(kind: type[T], values: dict[str, Any], where: str) -> T:
    """Build the dataclass `kind` from plain values; `where` names the source in errors.

    An unknown key is refused with the nearest name, a value of the wrong type with the right type.
    """
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    built = {}
    for key, value in values.items():
        if key not in fields:
            raise unknown(f"setting in {where}:", key, fields)
        built[key] = _convert(hints[key], value, f"{where}, {key}")
    return kind(**built)


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_dict(typing.cast(type, hint), value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        for option in arguments:
            try:
                return _convert(option, value, where)
            except UserError:
                continue
    elif origin is tuple and isinstance(value, (list, tuple)):
        inner = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(inner) == len(value):
            return tuple(_convert(option, item, where) for option, item in zip(inner, value, strict=True))
    elif origin is Literal and value in arguments:
        return value
    elif hint is type(None) and value is None:
        return None
    elif hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif hint is float and isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)  # YAML 1.1 reads 1e-3, without a point, as text
    elif hint is int and isinstance(value, bool):
        pass
    elif isinstance(hint, type) and isinstance(value, hint):
        return value
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    raise UserError(f"{where}: {value!r} is not of type {name}.")
