"""What a training is asked for, filled in by what its data set knows, and refused where it cannot be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from depict.config.schema import Config, DecoderConfig
from depict.data import create_dataset
from depict.data.dataset import Dataset, draw, hold_out
from depict.decoders import decoder_options
from depict.errors import UserError

FEW_CLASSES, FEW_CLASSES_GAIN = 16, 4.0
"""A norm over C classes keeps logits below sqrt(C - 1): with few, cross-entropy has little to work with. On a frozen
encoder a gain of 4 helps DEPICT-CA and Segmenter then, and does DEPICT-SA little good or harm; where the encoder is
trained, too, it did harm to DEPICT-SA (docs/results.md). Tried with 8 and 11 classes; 16 is a guess."""
FROZEN_RATE, FROZEN_RATES = 1e-3, {"linear": 1e-2, "depict_ca": 3e-3}
"""AdamW's rate on a frozen encoder, and of the decoders that learn clearly better with another (docs/results.md)."""


def resolve(config: Config) -> tuple[Config, Dataset, Dataset]:
    """Fill in what the data set knows, and refuse what cannot be; with the training and validation images."""
    data, train = config.data, config.train
    if data.name is None:
        raise UserError("which data set? Give --data NAME and --root DIR (or --data scenes, which needs no root).")
    training, validation = (create_dataset(data.name, data.root, split) for split in ("train", "val"))
    recipe = training.recipe
    if data.holdout is not None:
        training, validation = hold_out(training, data.holdout)
        if not 0 < data.holdout < 1 or not (len(training) and len(validation)):
            raise UserError(f"--data.holdout {data.holdout} must leave images on both sides: a part such as 0.25.")
    if data.limit is not None:
        if not 1 <= data.limit <= len(training):
            raise UserError(
                f"--data.limit must be 1 to {len(training)}, the number of training images, not {data.limit}."
            )
        training = draw(training, data.limit, config.seed)
    _check_ranges(config)
    if train.cache_features and not config.encoder.freeze:
        raise UserError("--cache-features needs --freeze-encoder: features of a trained encoder change at every step.")
    if train.cache_crop is not None and not train.cache_features:
        raise UserError("--cache-crop needs --cache-features: without, images are cut as --data.scale-range says.")
    if not 0 < data.scale_range[0] <= data.scale_range[1]:
        raise UserError(f"--data.scale-range must be two rising numbers above 0, not {data.scale_range}.")
    adamw = FROZEN_RATES.get(config.decoder.name, FROZEN_RATE) if config.encoder.freeze else 2e-4
    epochs = train.epochs or recipe.epochs
    image_size = as_pair(recipe.crop if config.image_size is None else config.image_size)
    side, ratio = recipe.short_edge, recipe.max_aspect
    if train.cache_features:  # features are of whole images fitted into the window: bring images to that size always
        side, ratio = min(image_size), max(image_size) / min(image_size)
    resolved = dataclasses.replace(
        config,
        decoder=_decoder(config, len(training.classes)),
        image_size=image_size,
        data=dataclasses.replace(data, short_edge=data.short_edge or side, max_aspect=data.max_aspect or ratio),
        train=dataclasses.replace(
            train,
            epochs=epochs,
            batch=train.batch or recipe.batch,
            lr=train.lr or (recipe.lr if train.optimizer == "sgd" else adamw),
            validate_every=train.validate_every or max(1, math.ceil(epochs / 8)),
        ),
    )
    return resolved, training, validation


def with_defaults(decoder: DecoderConfig) -> DecoderConfig:
    """The decoder's settings with its own defaults where nothing was said."""
    return DecoderConfig(decoder.name, **decoder_options(decoder.name) | decoder.options())


def as_pair(size: int | Sequence[int] | None) -> tuple[int, int]:
    """Height and width from a side or a pair."""
    pair = (size, size) if isinstance(size, int) else tuple(size or ())
    if len(pair) != 2 or not all(isinstance(side, int) and side >= 1 for side in pair):
        raise UserError(f"image_size must be a side or height and width, at least 1 pixel, not {size}.")
    return pair


def _decoder(config: Config, classes: int) -> DecoderConfig:
    """The decoder's settings; its gain as released but for few classes on a frozen encoder."""
    decoder = with_defaults(config.decoder)
    few = config.encoder.freeze and config.train.optimizer == "adamw" and classes <= FEW_CLASSES
    if few and decoder.logit_gain is not None and config.decoder.logit_gain is None:
        decoder = dataclasses.replace(decoder, logit_gain=FEW_CLASSES_GAIN)
    return decoder


def _check_ranges(config: Config) -> None:
    """Refuse numbers that training could only make nonsense of."""
    train, data = config.train, config.data
    lowest = {
        "--epochs": (train.epochs, 1),
        "--batch": (train.batch, 1),
        "--grad-accum": (train.grad_accum, 1),
        "--warmup": (train.warmup, 0),
        "--weight-decay": (train.weight_decay, 0),
        "--validate-every": (train.validate_every, 1),
        "--save-every": (train.save_every, 1),
        "--patience": (train.patience, 1),
        "--data.short-edge": (data.short_edge, 1),
        "--data.max-aspect": (data.max_aspect, 1),
        "--data.workers": (data.workers, 0),
        "--seed": (config.seed, 0),
    }
    for name, (value, least) in lowest.items():
        if value is not None and value < least:
            raise UserError(f"{name} must be at least {least}, not {value}.")
    for name, number in (("--lr", train.lr), ("--clip-grad", train.clip_grad)):
        if number is not None and not number > 0:
            raise UserError(f"{name} must be above 0, not {number}.")
    shares = {"--ema": train.ema, "--layer-decay": train.layer_decay, "--cache-crop": train.cache_crop}
    for name, number in shares.items():
        if number is not None and not 0 < number <= 1:
            raise UserError(f"{name} must be above 0 and at most 1, not {number}.")
