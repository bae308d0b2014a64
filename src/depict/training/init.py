"""Starting a training from the weights of another run, whose classes may be others."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from depict.config.schema import DecoderConfig
from depict.decoders import create_decoder
from depict.decoders.base import LevelDecoder
from depict.encoders.vit import resize_positions
from depict.errors import UserError
from depict.model import SegmentationModel
from depict.runs import load

DECODER = "decoder."
POSITIONS = "encoder.vit.pos_embed"
TRAINING = ("dropout", "logit_gain", "step_size", "deep_supervision", "segments", "matching")
"""Options of decoders that matter in training only: initial values, dropout and the loss."""


def init_from(model: SegmentationModel, run: str) -> str:
    """Copy the weights of `run` into `model`, and return a line that says what was copied.

    What belongs to a class is copied for the classes that both know by the same name; the others
    keep their random start. A decoder of another kind or size keeps its random start as a whole.
    Position embeddings are resized to the grid of `model`.
    """
    source = load(run)
    if source.neck and model.neck and source.level_names != model.level_names:
        theirs, ours = (", ".join(each.level_names) for each in (source, model))
        raise UserError(
            f"--init '{run}' has a neck for other levels ({theirs}) than the model ({ours}): "
            "leave its encoder, neck and --stride."
        )
    names = source.classes
    known = {index: names.index(name) for index, name in enumerate(model.classes) if name in names}
    same_decoder = _function(source.config.decoder) == _function(model.config.decoder)
    by_class = _class_tensors(model) if same_decoder else set()
    given, own = source.state_dict(), model.state_dict()
    if POSITIONS in given and POSITIONS in own:
        given[POSITIONS] = _resized(given[POSITIONS], source.encoder, model.encoder)
    for name, tensor in own.items():
        if name.startswith(DECODER) and not same_decoder:
            continue
        if name not in given or (name not in by_class and given[name].shape != tensor.shape):
            raise UserError(f"--init '{run}' does not fit the model at '{name}': leave its encoder and neck.")
        if name in by_class:
            for index, other in known.items():
                tensor[index] = given[name][other]
            if (more := len(tensor) - len(model.classes)) > 0:  # rows after those of the classes, such as "no object"
                tensor[-more:] = given[name][-more:]
        else:
            tensor.copy_(given[name])
    model.load_state_dict(own)
    if not same_decoder:
        return f"starting from '{run}': its encoder{' and neck' if model.neck else ''}, with a new decoder."
    return f"starting from '{run}': it knows {len(known)} of the {len(model.classes)} classes by name."


def _function(decoder: DecoderConfig) -> tuple[str, dict[str, Any]]:
    """A decoder's name and the options that its weights are trained for."""
    return decoder.name, {name: value for name, value in decoder.options().items() if name not in TRAINING}


def _resized(positions: Tensor, source: Any, encoder: Any) -> Tensor:
    """The positions of a ViT `source`, resized to the grid of the ViT `encoder`."""
    old_grid, grid = (each.vit.patch_embed.grid_size for each in (source, encoder))
    return resize_positions(positions, positions.shape[1] - math.prod(old_grid), grid, old_grid)


def _class_tensors(model: SegmentationModel) -> set[str]:
    """The names of the decoder's tensors that have a row for each class: their shapes change with the classes."""
    decoder = model.config.decoder
    dims = model.decoder.dims if isinstance(model.decoder, LevelDecoder) else model.decoder.token_dim
    with torch.device("meta"):
        larger = create_decoder(decoder.name, dims, model.num_classes + 1, **decoder.options())
    shapes = {name: tensor.shape for name, tensor in larger.state_dict().items()}
    return {DECODER + name for name, tensor in model.decoder.state_dict().items() if tensor.shape != shapes[name]}
