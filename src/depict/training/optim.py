"""The optimizer, the rate of each step and of each layer, the moving average of the weights, and their soundness."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from depict.config.schema import TrainConfig

MIN_LR = 1e-5
POWER = 0.9
MOMENTUM = 0.9
NEVER_DECAYED = ("class_embeddings", "pos_embed", "cls_token", "dist_token", "reg_token", "step_size")


def learning_rate(iteration: int, total: int, start: float, warmup: int = 0) -> float:
    """(start - 1e-5) (1 - iteration / total)^0.9 + 1e-5, then 1e-5; rising linearly in the first `warmup` steps."""
    if iteration >= total:
        return min(start, MIN_LR)
    rate = (start - MIN_LR) * (1 - iteration / total) ** POWER + MIN_LR if start > MIN_LR else start
    return rate * min(1.0, (iteration + 1) / warmup) if warmup else rate


def parameter_groups(network: nn.Module, weight_decay: float, layer_decay: float) -> list[dict[str, Any]]:
    """Trained parameters grouped by decay and by `lr_scale`: layer_decay to the power of the blocks above each."""
    depth = 1 + max((_block(name) for name, _ in network.named_parameters()), default=0)
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        plain = parameter.ndim < 2 or any(word in name for word in NEVER_DECAYED)
        decay = 0.0 if plain else weight_decay
        in_encoder = "encoder.vit." in name and "encoder.vit.norm." not in name
        scale = layer_decay ** (depth - _block(name)) if in_encoder else 1.0
        group = groups.setdefault((decay, scale), {"params": [], "weight_decay": decay, "lr_scale": scale})
        group["params"].append(parameter)
    return list(groups.values())


def _block(name: str) -> int:
    """1 + index of the encoder block that a parameter belongs to; 0 for what comes before the blocks."""
    match = re.search(r"encoder\.vit\.blocks\.(\d+)\.", name)
    return 1 + int(match[1]) if match else 0


def create_optimizer(network: nn.Module, train: TrainConfig, lr: float) -> torch.optim.Optimizer:
    """SGD as published (Nesterov momentum 0.9), or AdamW."""
    groups = parameter_groups(network, train.weight_decay, train.layer_decay)
    if train.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=MOMENTUM, nesterov=True)
    return torch.optim.AdamW(groups, lr=lr, weight_decay=0.0)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group the rate times its own scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


class MovingAverage:
    """Exponential moving average of a module's parameters and buffers, held beside it."""

    def __init__(self, module: nn.Module, decay: float):
        self.module, self.decay = module, decay
        self.values = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move every value a little towards the module's."""
        for name, tensor in self.module.state_dict().items():
            if tensor.is_floating_point():
                self.values[name].lerp_(tensor, 1 - self.decay)
            else:
                self.values[name].copy_(tensor)

    def __enter__(self) -> None:
        """Put the average into the module."""
        self.own = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        self.module.load_state_dict(self.values)

    def __exit__(self, *_: object) -> None:
        """Give the module its own values back."""
        self.module.load_state_dict(self.own)


@torch.no_grad()
def all_finite(optimizer: torch.optim.Optimizer, average: MovingAverage | None = None) -> bool:
    """Whether the trained weights, what the optimizer remembers of them and their average hold neither inf nor NaN.

    Of weights that are sharded among processes, this process's share.
    """
    kept = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept += [value for memory in optimizer.state.values() for value in memory.values() if torch.is_tensor(value)]
    kept += [value for value in average.values.values() if value.is_floating_point()] if average else []
    kept = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in kept]
    # The norm is the fastest test, but its squares overflow before the weights do: only then look at each.
    return bool(nn.utils.get_total_norm(kept).isfinite()) or all(bool(tensor.isfinite().all()) for tensor in kept)
