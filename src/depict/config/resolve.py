"""From the settings that were given to a complete configuration, with the images to train and validate on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from depict.config.ranges import check_ranges
from depict.config.schema import Config, DataConfig, DecoderConfig, NeckConfig, TrainConfig
from depict.data import create_dataset
from depict.data.dataset import Dataset, Recipe, every_nth, hold_out, random_subset
from depict.decoders import decoder_class, decoder_options, level_decoder
from depict.errors import UserError

FEW_CLASSES, FEW_CLASSES_GAIN = 16, 4.0
"""A norm over C classes keeps logits below sqrt(C - 1), which is little for cross-entropy if C is
small. On a frozen encoder a gain of 4 then helps DEPICT-CA and Segmenter and hardly changes
DEPICT-SA; with a trained encoder it hurt DEPICT-SA (docs/results.md). Measured with 8 and 11
classes; 16 is a guess."""
ADAMW_RATE = 2e-4
FROZEN_RATE, FROZEN_RATES = 1e-3, {"linear": 1e-2, "depict_us": 1e-2, "depict_ca": 3e-3, "depict_mask": 1e-2}
"""AdamW's rate on a frozen encoder, and that of decoders which learn clearly better with another (docs/results.md,
docs/masks.md)."""
VALIDATIONS = 8
"""Validations of a training, about, unless --validate-every says otherwise."""


@dataclass(kw_only=True)
class ResolvedData(DataConfig):
    """The images and masks, with nothing left open."""

    name: str = field()
    short_edge: int = field()
    max_aspect: float = field()


@dataclass(kw_only=True)
class ResolvedTrain(TrainConfig):
    """How the model is trained, with nothing left open."""

    epochs: int = field()
    batch: int = field()
    lr: float = field()
    validate_every: int = field()


@dataclass(kw_only=True)
class ResolvedConfig(Config):
    """A complete experiment: what a training runs on and writes to config.yaml."""

    data: ResolvedData = field()
    train: ResolvedTrain = field()
    image_size: tuple[int, int] = field()


class Experiment(NamedTuple):
    """A complete configuration and its images."""

    config: ResolvedConfig
    training: Dataset
    validation: Dataset


T = TypeVar("T")


def resolve(config: Config) -> Experiment:
    """Check the settings, open the data set, and fill in what the data set and the decoder decide."""
    check_ranges(config)
    check_combinations(config)
    training, validation = _datasets(config.data, config.seed)
    recipe = training.recipe
    image_size = as_pair(recipe.crop if config.image_size is None else config.image_size)
    short_edge, max_aspect = recipe.short_edge, recipe.max_aspect
    if config.train.cache_features:  # features are of images that fill the window: validate at that size, too
        short_edge, max_aspect = min(image_size), max(image_size) / min(image_size)
    epochs = config.train.epochs or recipe.epochs
    stride, neck = _grid(config, image_size)
    resolved = {
        "decoder": _decoder(config, len(training.classes)),
        "data": _complete(ResolvedData, config.data, short_edge=short_edge, max_aspect=max_aspect),
        "train": _complete(
            ResolvedTrain,
            config.train,
            epochs=epochs,
            batch=recipe.batch,
            lr=_rate(config, recipe),
            validate_every=math.ceil(epochs / VALIDATIONS),
        ),
        "neck": neck,
        "stride": stride,
        "image_size": image_size,
    }
    return Experiment(ResolvedConfig(**vars(config) | resolved), training, validation)


def with_defaults(decoder: DecoderConfig) -> DecoderConfig:
    """The decoder's settings, with its own defaults where nothing was given."""
    return DecoderConfig(decoder.name, **decoder_options(decoder.name) | decoder.options())


def starts_from_data(decoder: DecoderConfig) -> bool:
    """Whether the classes of a decoder can be set in closed form: those of a linear function of the patches."""
    from depict.decoders.base import PatchDecoder

    return issubclass(decoder_class(decoder.name), PatchDecoder) and decoder.head != "cosine"


def as_pair(size: int | Sequence[int] | None) -> tuple[int, int]:
    """Height and width from a side or a pair."""
    pair = (size, size) if isinstance(size, int) else tuple(size or ())
    if len(pair) != 2 or not all(isinstance(side, int) and side >= 1 for side in pair):
        raise UserError(f"image_size must be a side or height and width, at least 1 pixel, not {size}.")
    return pair


def _complete(kind: type[T], given: Any, **defaults: Any) -> T:
    """`given` as the dataclass `kind`, with `defaults` for what was left at None.

    A field of `kind` that has neither is missing in the call below, and fails there.
    """
    return kind(**defaults | {name: value for name, value in vars(given).items() if value is not None})


def _datasets(data: DataConfig, seed: int) -> tuple[Dataset, Dataset]:
    """The images to train on and those to validate on."""
    if data.name is None:
        raise UserError("no data set: give --data NAME and --root DIR (or --data scenes, which needs no root).")
    training, validation = (create_dataset(data.name, data.root, split) for split in (data.train_split, "val"))
    if data.every > 1:
        training = every_nth(training, data.every)
    if data.holdout is not None:
        training, validation = hold_out(training, data.holdout)
        if not (len(training) and len(validation)):
            raise UserError(
                f"--data.holdout {data.holdout} leaves {len(training)} images to train on and {len(validation)} to "
                "validate on: choose a share that leaves both, such as 0.25."
            )
    if data.limit is not None:
        if data.limit > len(training):
            raise UserError(f"--data.limit must be at most {len(training)}, the training images, not {data.limit}.")
        training = random_subset(training, data.limit, seed)
    return training, validation


def check_combinations(config: Config) -> None:
    """Refuse settings that contradict each other."""
    train, (smallest, largest) = config.train, config.data.scale_range
    if smallest > largest:
        raise UserError(f"--data.scale-range must be the smallest and the largest factor, not {smallest} {largest}.")
    if decoder_class(config.decoder.name).owns_loss and (train.loss, train.class_weights, train.loss_every) != (
        "ce",
        "none",
        1,
    ):
        raise UserError(
            f"the decoder '{config.decoder.name}' has a loss of its own: omit --loss, --loss-every and --class-weights."
        )
    if train.start == "data" and not config.encoder.freeze:
        raise UserError("--start data needs --freeze-encoder: it fits the classes to tokens that must not change.")
    if train.start == "data" and not starts_from_data(config.decoder):
        raise UserError("--start data needs the decoder linear or depict_us, with the head linear or subspaces.")
    if train.cache_features and not config.encoder.freeze:
        raise UserError("--cache-features needs --freeze-encoder: features of a trained encoder change at every step.")
    if train.cache_crop is not None and not train.cache_features:
        raise UserError("--cache-crop needs --cache-features: otherwise --data.scale-range sets the crops.")


def _grid(config: Config, image_size: tuple[int, int]) -> tuple[int | None, NeckConfig]:
    """The stride of the decoder's grid and the neck, which depend on the encoder."""
    import torch

    from depict.encoders import create_encoder
    from depict.neck import grid_settings

    levels = level_decoder(config.decoder.name)
    options = vars(config.encoder) | {"pretrained": False, "stride": levels.finest if levels else config.stride}
    with torch.device("meta"):
        encoder = create_encoder(image_size=image_size, **{k: v for k, v in options.items() if k != "freeze"})
    stride, dim = grid_settings(encoder, config.stride, config.neck.dim, config.neck.stem, levels)
    if config.neck.stem and config.train.cache_features:
        raise UserError("--neck.stem needs the images, which --cache-features does not read again: omit one of them.")
    return stride, NeckConfig(dim, config.neck.stem)


def _rate(config: Config, recipe: Recipe) -> float:
    """The learning rate for an optimizer, an encoder and a decoder, if none is given."""
    if config.train.optimizer == "sgd":
        return recipe.lr
    return FROZEN_RATES.get(config.decoder.name, FROZEN_RATE) if config.encoder.freeze else ADAMW_RATE


def _decoder(config: Config, classes: int) -> DecoderConfig:
    """The decoder's complete settings, with the defaults that suit a training best."""
    decoder = with_defaults(config.decoder)
    few = config.encoder.freeze and config.train.optimizer == "adamw" and classes <= FEW_CLASSES
    if few and decoder.head == "cosine" and config.decoder.logit_gain is None:
        return replace(decoder, logit_gain=FEW_CLASSES_GAIN)
    if decoder.name == "depict_mask" and config.decoder.queries is None:  # a class may have several
        return replace(decoder, queries=max(decoder.queries or 0, 2 * classes))
    return decoder
