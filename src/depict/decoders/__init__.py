"""Decoders by name. One interface: tokens Z0 (B, N, D) and a grid (h, w) in, masks (B, C, h, w) out."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from depict.devices import check_parameters
from depict.errors import UserError, unknown

if TYPE_CHECKING:
    from depict.decoders.base import Decoder

DECODERS = {
    "depict_sa": "depict.decoders.depict:DepictSA",
    "depict_ca": "depict.decoders.depict:DepictCA",
    "depict_us": "depict.decoders.depict:DepictUS",
    "cbt": "depict.decoders.cbt:CBT",
    "segmenter": "depict.decoders.segmenter:MaskTransformer",
    "linear": "depict.decoders.segmenter:Linear",
    "ablation": "depict.decoders.ablation:Ablation",
}


def create_decoder(name: str, dim: int, num_classes: int, **options: Any) -> Decoder:
    """Build the decoder `name` for tokens of dimension `dim`. Options that are not given keep its defaults."""
    import torch

    allowed = decoder_options(name)
    for option in options:
        if option not in allowed:
            raise unknown(f"option for the decoder '{name}':", option, allowed)
    for label, value in (("the embedding dimension", dim), ("the number of classes", num_classes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{label} must be an integer of at least 1, not {value!r}.")
    with torch.device("meta"):
        twin = _decoder_class(name)(dim, num_classes, **options)
    check_parameters(sum(tensor.numel() for tensor in twin.parameters()), f"the decoder '{name}'")
    return _decoder_class(name)(dim, num_classes, **options)


def decoder_options(name: str) -> dict[str, Any]:
    """The options of the decoder `name` with their defaults."""
    parameters = inspect.signature(_decoder_class(name)).parameters
    return {option: p.default for option, p in parameters.items() if option not in ("dim", "num_classes")}


def _decoder_class(name: str) -> Any:
    if name not in DECODERS:
        raise unknown("decoder", name, DECODERS)
    module, attribute = DECODERS[name].split(":")
    return getattr(importlib.import_module(module), attribute)
