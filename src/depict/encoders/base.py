"""What every encoder has in common: levels of embeddings, names and weights of timm, freezing."""

from __future__ import annotations

import difflib
import logging
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from depict.errors import UserError, one_line
from depict.io.weights import read_weights

Size = tuple[int, int]
"""Height and width."""


class Encoder(nn.Module):
    """Images (B, 3, H, W), normalized, with sides that are multiples of `multiple` -> levels (B, h, w, D) each.

    Levels are listed from the finest grid to the coarsest.
    """

    needs_neck = True
    """False if its only level can go to a decoder as it is."""

    def __init__(self, name: str, dims: tuple[int, ...], strides: tuple[Size, ...], settings: dict[str, Any]):
        super().__init__()
        self.name, self.frozen = name, False
        self.dims, self.strides = dims, strides
        self.mean: tuple[float, float, float] = tuple(settings["mean"])
        self.std: tuple[float, float, float] = tuple(settings["std"])

    @property
    def dim(self) -> int:
        """D of the last level."""
        return self.dims[-1]

    @property
    def multiple(self) -> Size:
        """Sides of images must be multiples of these: the cell of the coarsest level in pixels."""
        heights, widths = zip(*self.strides, strict=True)
        return max(heights), max(widths)

    def forward(self, images: Tensor) -> list[Tensor]:
        """The levels, (B, h, w, D) each."""
        raise NotImplementedError

    def layer_depths(self) -> dict[str, int]:
        """For each parameter, the layers from its own to the decoder, 1 for the last layer: layer decay counts them."""
        raise NotImplementedError

    def set_grad_checkpointing(self) -> None:
        """Recompute activations in the backward pass instead of keeping them."""
        raise NotImplementedError

    def freeze(self) -> None:
        """Exclude the weights from training and stay in evaluation mode."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Encoder:
        """Like `nn.Module.train`, but a frozen encoder stays in evaluation mode, and so do its BatchNorms."""
        return super().train(mode and not self.frozen)


def create(name: str, **options: Any) -> Any:
    """`timm.create_model` with random weights; what it cannot build is one line."""
    try:
        return timm.create_model(name, **options)
    except (TypeError, RuntimeError, ValueError, AssertionError, KeyError) as error:
        raise UserError(f"the encoder '{name}' cannot be built: {one_line(error)}.") from error


def check_name(name: str) -> None:
    """Refuse a name that timm does not have, and suggest the nearest ones."""
    base = name.split(".")[0]
    if not timm.is_model(base):
        near = difflib.get_close_matches(base, timm.list_models(), n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "For example vit_small_patch16_384."
        raise UserError(f"unknown encoder '{name}'. {hint} `timm.list_models()` lists them all.")


def pretrained_weights(name: str, pretrained: bool | str | Path) -> tuple[str, dict[str, Tensor]]:
    """Where the weights come from, for messages, and the tensors in timm's names: from the hub or a file."""
    if pretrained is True:
        return f"the hub's weights of '{name}'", _hub_weights(name)
    return f"'{pretrained}'", read_weights(Path(str(pretrained)))


def load_strictly(module: nn.Module, state: dict[str, Tensor], name: str, source: str) -> None:
    """Load all tensors of `state`, no more and no fewer; an error names the first that does not fit."""
    own = module.state_dict()
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or extra:
        what = f"it lacks '{missing[0]}'" if missing else f"it has '{extra[0]}', which the encoder does not have"
        raise UserError(f"{source} does not fit the encoder '{name}': {what}. Is it for another encoder?")
    for key, tensor in own.items():
        if state[key].shape != tensor.shape:
            raise UserError(
                f"{source} does not fit the encoder '{name}': '{key}' has shape {tuple(state[key].shape)}, "
                f"not {tuple(tensor.shape)}. Is it for another encoder?"
            )
    module.load_state_dict(state)


def _hub_weights(name: str) -> dict[str, Tensor]:
    """The pretrained weights of a timm model from the hub or its local cache."""
    from depict.io.hub import checked_answers, connection_error

    client = logging.getLogger("huggingface_hub")
    was_disabled, client.disabled = client.disabled, True  # it logs every retry; the one error at the end is enough
    try:
        repository = timm.get_pretrained_cfg_value(name, "hf_hub_id")
        unreachable = connection_error(repository) if repository else None
        if unreachable and not _is_cached(repository):
            raise unreachable
        with checked_answers():
            return timm.create_model(name, pretrained=True, num_classes=0).state_dict()
    except Exception as error:  # the hub's client, its HTTP library and the disk raise errors of many types
        raise UserError(
            f"cannot get the weights of '{name}' from the hub: {one_line(error)}. "
            "Set `pretrained` to a local file (.safetensors or .pth), or to False for random weights; "
            "on the command line, --encoder.pretrained."
        ) from error
    finally:
        client.disabled = was_disabled


def _is_cached(repository: str) -> bool:
    """Whether any file of a repository is in the hub's local cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        snapshot_download(repository, local_files_only=True, allow_patterns=[])
    except LocalEntryNotFoundError:
        return False
    return True
