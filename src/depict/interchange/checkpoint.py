"""Official checkpoints (DEPICT, CBT and Segmenter: `checkpoint.pth` with `variant.yml` next to it) become our models.

The file is untrusted: it is read as data, and no code in it is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from depict.config.schema import Config, DataConfig
from depict.data import DATASETS, dataset_class
from depict.data.palette import Color
from depict.errors import UserError, unknown
from depict.interchange.architecture import check_variant, decoder_config, encoder_config, num_classes
from depict.interchange.official_names import our_decoder_state
from depict.interchange.variant import Variant, read_variant
from depict.io.weights import read_weights
from depict.model import SegmentationModel
from depict.runs import load_weights

_PRETRAINING_HEAD = re.compile(r"encoder\.(head|head_dist)\.(weight|bias)")


@dataclass
class ImportedModel:
    """A model made from a checkpoint, and the names of the tensors that it does not use."""

    model: SegmentationModel
    pretraining_head: list[str]
    """The classifier that the encoder was pretrained with."""
    unknown: list[str]


def import_checkpoint(
    checkpoint: Path,
    variant: Path | None = None,
    *,
    heads: int | None = None,
    cross_heads: int | None = None,
    data: str | None = None,
) -> ImportedModel:
    """Build our model from an official checkpoint. Arguments take precedence over the YAML file.

    `variant`: the YAML file, by default `variant.yml` next to the checkpoint, if there is one. `data`: the data set
    whose class names, colors and sizes the model gets.
    """
    state = read_weights(checkpoint)
    settings = read_variant(variant, checkpoint)
    check_variant(state, settings, checkpoint)
    encoder, image_size = encoder_config(state, settings)
    decoder = decoder_config(state, settings, heads, cross_heads)
    classes, palette, data_config = _data(num_classes(state), settings, data, image_size)
    config = Config(encoder=encoder, decoder=decoder, data=data_config, image_size=image_size)
    model = SegmentationModel(config, classes, palette)
    tensors, unused = _renamed(state, model, checkpoint)
    load_weights(model, tensors, checkpoint)
    pretraining_head = [name for name in unused if _PRETRAINING_HEAD.fullmatch(name)]
    return ImportedModel(model.eval(), pretraining_head, [name for name in unused if name not in pretraining_head])


def _data(
    count: int, variant: Variant, requested: str | None, image_size: tuple[int, int]
) -> tuple[list[str], list[Color] | None, DataConfig]:
    """Class names and colors of the data set that is requested or named by the YAML; numbers where it is unknown."""
    name = requested or variant.text("dataset_kwargs", "dataset") or ""
    sides = variant.pair("dataset_kwargs", "image_size")
    short_edge = min(sides) if sides else None
    if requested and requested not in DATASETS:
        raise unknown("data set", requested, DATASETS)
    classes = getattr(dataset_class(name), "classes", ()) if name in DATASETS else ()
    if len(classes) != count:
        if requested:
            raise UserError(f"the checkpoint has {count} classes, '{requested}' has {len(classes) or 'its own'}.")
        return [f"class {index}" for index in range(count)], None, DataConfig(short_edge=short_edge)
    dataset = dataset_class(name)
    short_edge = short_edge or max(dataset.recipe.short_edge, min(image_size))
    config = DataConfig(name=name, short_edge=short_edge, max_aspect=dataset.recipe.max_aspect)
    return list(classes), list(dataset.palette), config


def _renamed(
    state: Mapping[str, Tensor], model: SegmentationModel, checkpoint: Path
) -> tuple[dict[str, Tensor], list[str]]:
    """The model's tensors by our names, each used once, and the official names of those that it does not have."""
    expected = model.state_dict()
    tensors: dict[str, Tensor] = {}
    unused = []
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        ours = f"encoder.vit.{rest}"
        if part == "decoder":
            [(rest, tensor)] = our_decoder_state({rest: tensor}).items()
            ours = f"decoder.{rest}"
        if part not in ("encoder", "decoder") or ours not in expected:
            unused.append(name)
        elif ours in tensors:
            raise UserError(f"'{checkpoint}' has '{name}' a second time under another name: one is not the model's.")
        else:
            tensors[ours] = tensor
    return tensors, unused
