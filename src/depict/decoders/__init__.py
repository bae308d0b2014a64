"""Decoders by name. One interface: tokens Z0 (B, N, D) and a grid (h, w) in, masks (B, C, h, w) out.

A `LevelDecoder` takes the levels of the encoder instead of tokens. `register_decoder` adds a decoder of your own.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from depict.devices import check_parameters
from depict.errors import UserError, unknown

if TYPE_CHECKING:
    from depict.decoders.base import Decoder, LevelDecoder

DECODERS: dict[str, str | type[Decoder]] = {
    "depict_sa": "depict.decoders.depict:DepictSA",
    "depict_ca": "depict.decoders.depict:DepictCA",
    "depict_us": "depict.decoders.depict:DepictUS",
    "depict_mask": "depict.decoders.depict_mask:DepictMask",
    "cbt": "depict.decoders.cbt:CBT",
    "maskformer": "depict.decoders.maskformer:MaskFormer",
    "segmenter": "depict.decoders.segmenter:MaskTransformer",
    "linear": "depict.decoders.segmenter:Linear",
    "ablation": "depict.decoders.ablation:Ablation",
}


def register_decoder(name: str, decoder: type[Decoder]) -> None:
    """Make a class of your own available as the decoder `name`, in this process: in models, trainings and studies.

    It is built as `decoder(dim, num_classes, **options)`; options are keywords with a default, named as settings of
    `DecoderConfig`. Register it again before you load a run that was trained with it.
    """
    from depict.decoders.base import Decoder

    if not (isinstance(decoder, type) and issubclass(decoder, Decoder)):
        raise UserError(f"the decoder '{name}' must be a subclass of depict.decoders.base.Decoder, not {decoder!r}.")
    if isinstance(DECODERS.get(name), str):
        raise UserError(f"'{name}' is a decoder of depict: choose another name.")
    DECODERS[name] = decoder


def level_decoder(name: str) -> type[LevelDecoder] | None:
    """The class of the decoder `name` if it takes the levels of an encoder, None if it takes tokens."""
    from depict.decoders.base import LevelDecoder

    found = decoder_class(name)
    return found if issubclass(found, LevelDecoder) else None


def need_steps(name: str, run: object) -> None:
    """Raise unless the decoder `name` of a run takes tokens, so that it can be unrolled and perturbed."""
    if level_decoder(name):
        raise UserError(f"'{run}': the decoder '{name}' takes the levels of its encoder and has no steps to look into.")


def create_decoder(name: str, dim: int | Sequence[int], num_classes: int, **options: Any) -> Decoder:
    """Build the decoder `name` for tokens of dimension `dim`. Options that are not given keep its defaults.

    For a decoder that takes levels, `dim` lists their dimensions.
    """
    import torch

    allowed = decoder_options(name)
    for option in options:
        if option not in allowed:
            raise unknown(f"option for the decoder '{name}':", option, allowed)
    dims: Sequence[Any] = [dim]
    if level_decoder(name):
        if not isinstance(dim, Sequence):
            raise UserError(f"the decoder '{name}' takes levels: give their dimensions as a list, not {dim!r}.")
        dims = dim
    for label, value in (*(("the embedding dimension", each) for each in dims), ("the number of classes", num_classes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{label} must be an integer of at least 1, not {value!r}.")
    with torch.device("meta"):
        twin = decoder_class(name)(dim, num_classes, **options)
    check_parameters(sum(tensor.numel() for tensor in twin.parameters()), f"the decoder '{name}'")
    return decoder_class(name)(dim, num_classes, **options)


def decoder_options(name: str) -> dict[str, Any]:
    """The options of the decoder `name` with their defaults."""
    parameters = inspect.signature(decoder_class(name)).parameters
    return {option: p.default for option, p in parameters.items() if option not in ("dim", "dims", "num_classes")}


def decoder_class(name: str) -> Any:
    """The class of the decoder `name`."""
    if name not in DECODERS:
        raise unknown("decoder", name, DECODERS)
    found = DECODERS[name]
    if not isinstance(found, str):
        return found
    module, attribute = found.split(":")
    return getattr(importlib.import_module(module), attribute)
