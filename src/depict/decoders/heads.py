"""How refined patches become masks: the cosine with each class, a dot product, or each class as a subspace."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from depict.decoders.blocks import LAYER_NORM
from depict.errors import UserError, unknown
from depict.operators import check_sizes, normal_

HEADS = ("cosine", "linear", "subspaces")
DIRECTIONS = 4
"""Directions of each class in the head `subspaces`, unless given."""


class Head(nn.Module):
    """Logits (B, N, C) of patches Z (B, N, D) and class embeddings Q (B, C, D) or (C, D)."""

    def forward(self, Z: Tensor, Q: Tensor) -> Tensor:
        """Logits (B, N, C)."""
        raise NotImplementedError

    def multiply_adds(self, N: int, D: int) -> int:
        """Multiply-adds for N patches of dimension D, as the paper counts them (costs.py)."""
        raise NotImplementedError


class CosineHead(nn.LayerNorm, Head):
    """The published head: cosines of patches and classes, normalized over the classes."""

    def __init__(self, num_classes: int, gain: float = 1.0):
        super().__init__(num_classes)
        # The norm limits logits to gain * sqrt(C - 1): with few classes, cross-entropy needs a larger gain.
        nn.init.constant_(self.weight, gain)

    def forward(self, Z: Tensor, Q: Tensor) -> Tensor:  # type: ignore[override]
        """Logits (B, N, C)."""
        return super().forward(unit(Z) @ unit(Q).mT)

    def multiply_adds(self, N: int, D: int) -> int:
        """The dot product and the norm over classes."""
        C = self.normalized_shape[0]
        return N * C * D + LAYER_NORM * N * C


class LinearHead(Head):
    """A dot product with a bias: q_c . z + b_c."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, Z: Tensor, Q: Tensor) -> Tensor:
        """Logits (B, N, C)."""
        return Z @ Q.mT + self.bias

    def multiply_adds(self, N: int, D: int) -> int:
        """One product."""
        return N * len(self.bias) * D


class SubspacesHead(Head):
    """Each class is a subspace: q_c . z + sum_k w_ck (u_ck . z)^2 + b_c, with z scaled to the length sqrt(D).

    The squares are the energies of z along K directions of the class. It starts close to the head `linear`: u_ck . z
    has variance 1, and the weights are small.
    """

    def __init__(self, dim: int, num_classes: int, directions: int):
        super().__init__()
        check_sizes(directions=directions)
        self.directions = nn.Parameter(torch.empty(num_classes, directions, dim))
        self.weights = nn.Parameter(torch.empty(num_classes, directions))
        self.bias = nn.Parameter(torch.zeros(num_classes))
        normal_(self.directions, dim**-0.5)
        normal_(self.weights, 0.02)

    def forward(self, Z: Tensor, Q: Tensor) -> Tensor:
        """Logits (B, N, C)."""
        Z = self.scaled(Z)
        return Z @ Q.mT + self._energies(Z).sum(-1) + self.bias

    def scaled(self, Z: Tensor) -> Tensor:
        """Z (..., D) with the length sqrt(D)."""
        return Z.shape[-1] ** 0.5 * unit(Z)

    def energies(self, Z: Tensor) -> Tensor:
        """w_ck (u_ck . z)^2, what each direction adds to the logit of its class: (B, N, D) -> (B, N, C, K)."""
        return self._energies(self.scaled(Z))

    def _energies(self, z: Tensor) -> Tensor:
        along = (z @ self.directions.flatten(0, 1).mT).unflatten(-1, self.weights.shape)
        return along.square() * self.weights

    def multiply_adds(self, N: int, D: int) -> int:
        """Products with the classes and with their directions."""
        return N * (len(self.bias) + self.weights.numel()) * D


def create_head(name: str, dim: int, num_classes: int, directions: int | None, logit_gain: float) -> Head:
    """The head `name`; options that it does not have are refused."""
    if name not in HEADS:
        raise unknown("head", name, HEADS)
    if name != "cosine" and logit_gain != 1:
        raise UserError(f"logit_gain {logit_gain} does not fit the head '{name}': only 'cosine' has it.")
    if name != "subspaces" and directions is not None:
        raise UserError(f"directions {directions} does not fit the head '{name}': only 'subspaces' has them.")
    if name == "cosine":
        return CosineHead(num_classes, logit_gain)
    if name == "linear":
        return LinearHead(num_classes)
    return SubspacesHead(dim, num_classes, DIRECTIONS if directions is None else directions)


def unit(X: Tensor) -> Tensor:
    """X (..., D) scaled to unit length."""
    return X / X.norm(dim=-1, keepdim=True)
