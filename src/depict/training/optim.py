"""The optimizer, the learning rate of every step and every layer, and a check for inf and NaN."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from depict.config.schema import TrainConfig
from depict.encoders.base import Encoder

MIN_LR = 1e-5
POWER = 0.9
MOMENTUM = 0.9
NEVER_DECAYED = ("class_embeddings", "queries", "pos_embed", "cls_token", "dist_token", "reg_token", "step_size")


def learning_rate(iteration: int, total: int, start: float, warmup: int = 0) -> float:
    """(start - 1e-5) (1 - iteration / total)^0.9 + 1e-5, then 1e-5; rising linearly in the first `warmup` steps."""
    if iteration >= total:
        return min(start, MIN_LR)
    rate = (start - MIN_LR) * (1 - iteration / total) ** POWER + MIN_LR if start > MIN_LR else start
    return rate * min(1.0, (iteration + 1) / warmup) if warmup else rate


def create_optimizer(network: nn.Module, train: TrainConfig, lr: float) -> torch.optim.Optimizer:
    """SGD as published (Nesterov momentum 0.9), or AdamW."""
    groups = parameter_groups(network, train.weight_decay, train.layer_decay)
    if train.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=MOMENTUM, nesterov=True)
    return torch.optim.AdamW(groups, lr=lr, weight_decay=0.0)


def parameter_groups(network: nn.Module, weight_decay: float, layer_decay: float) -> list[dict[str, Any]]:
    """Trained parameters grouped by weight decay and by `lr_scale`, layer_decay ** (layers up to the decoder).

    Layers are the blocks of a plain ViT and the stages of other encoders. Not timm's
    `param_groups_layer_decay`: it gives the last block the full rate, ours leaves that to the decoder.
    """
    depths = _layer_depths(network) if layer_decay != 1 else {}
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        exempt = parameter.ndim < 2 or any(word in name for word in NEVER_DECAYED)
        decay = 0.0 if exempt else weight_decay
        scale = layer_decay ** depths.get(name, 0)
        group = groups.setdefault((decay, scale), {"params": [], "weight_decay": decay, "lr_scale": scale})
        group["params"].append(parameter)
    return list(groups.values())


def _layer_depths(network: nn.Module) -> dict[str, int]:
    """For each parameter of an encoder in the network, the layers from its own to the decoder."""
    encoders = [(name, part) for name, part in network.named_modules() if isinstance(part, Encoder)]
    return {f"{name}.{each}": depth for name, part in encoders for each, depth in part.layer_depths().items()}


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set every group's learning rate to `rate` times its own scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


@torch.no_grad()
def all_finite(optimizer: torch.optim.Optimizer, more: Iterable[Tensor] = ()) -> bool:
    """Whether the trained weights, the optimizer's state and `more` tensors are free of inf and NaN.

    Of weights that are sharded among processes, only this process's share is looked at.
    """
    kept = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept += [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    kept += [value for value in more if value.is_floating_point()]
    kept = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in kept]
    # The norm is the fastest test, but its squares overflow before the weights do.
    return bool(nn.utils.get_total_norm(kept).isfinite()) or all(bool(tensor.isfinite().all()) for tensor in kept)
