"""The interface of decoders, the record of an unrolled pass, and masks as dot products."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from depict.decoders.blocks import LAYER_NORM, SubBlock
from depict.errors import UserError

Grid = tuple[int, int]


@dataclass
class Step:
    """One step of an unrolled decoder."""

    operator: str
    """mssa, msca, mhsa, ista or mlp."""
    Z: Tensor
    """Patch embeddings after the step, (B, N, D)."""
    Q: Tensor
    """Class embeddings after the step, (B, C, D)."""
    P: Tensor | None = None
    """Basis of every head (heads, head_dim, D): the subspaces of MSSA and MSCA, the query rows of MHSA."""
    step_size: Tensor | None = None
    """The learned step (1,) of MSSA and MSCA; the paper's alpha is its negative."""
    attention: Tensor | None = None
    """(B, heads, queries, keys), if requested."""


@dataclass
class Trace:
    """Everything that a decoder computed for one batch, in order."""

    with_attention: bool = False
    tokens: Tensor | None = None
    """Tokens from the encoder, (B, N, token_dim). Equal to Z0, except in Segmenter, which projects them first."""
    Z0: Tensor | None = None
    """Patch embeddings before the first step, (B, N, D)."""
    Q0: Tensor | None = None
    """Class embeddings before the first step, (B, C, D); None for the linear decoder."""
    steps: list[Step] = field(default_factory=list)
    Z_unit: Tensor | None = None
    """Final patch embeddings of unit length, (B, N, D): masks = mask_norm(Z_unit @ Q_unit^T)."""
    Q_unit: Tensor | None = None
    """Final class embeddings of unit length, (B, C, D)."""
    grid: Grid = (0, 0)
    """Rows and columns of patches, h * w = N."""
    masks: Tensor | None = None
    """The result of `forward`, (B, C, h, w)."""

    def record(self, layer: nn.Module, inputs: tuple[Tensor, ...], Z: Tensor, Q: Tensor) -> None:
        """Append the step of `layer`, which turned `inputs` into Z and Q."""
        assert isinstance(layer, SubBlock)
        attention = layer.attention(*inputs) if self.with_attention else None
        self.steps.append(Step(layer.name, Z, Q, layer.bases(), layer.step_size(), attention))

    @property
    def Z(self) -> list[Tensor]:  # noqa: N802
        """Patch embeddings before the first step and after each one."""
        return [Z for Z in (self.Z0, *(step.Z for step in self.steps)) if Z is not None]

    @property
    def Q(self) -> list[Tensor]:  # noqa: N802
        """Class embeddings before the first step and after each one."""
        return [Q for Q in (self.Q0, *(step.Q for step in self.steps)) if Q is not None]


class Decoder(nn.Module):
    """Tokens (B, N, token_dim) on a grid (h, w) with h * w = N -> masks (B, C, h, w)."""

    def __init__(self, dim: int, num_classes: int):
        super().__init__()
        self.dim, self.num_classes = dim, num_classes
        self.token_dim = dim  # of the encoder; differs from dim in a decoder that projects the tokens first

    def forward(self, Z: Tensor, grid: Grid, trace: Trace | None = None) -> Tensor:
        """Masks (B, C, h, w). A `trace`, if given, records every step."""
        raise NotImplementedError

    def unroll(self, Z: Tensor, grid: Grid, attention: bool = False) -> Trace:
        """Run `forward` and return every intermediate result, with the attention of every step if `attention`."""
        trace = Trace(with_attention=attention, tokens=Z, grid=grid)
        trace.masks = self(Z, grid, trace)
        return trace

    def multiply_adds(self, N: int) -> int:
        """Multiply-adds for one image of N patches, as the paper counts them (costs.py)."""
        raise NotImplementedError

    def check(self, Z: Tensor, grid: Grid) -> None:
        """Raise unless the tokens fit the decoder and the grid."""
        if Z.ndim != 3 or Z.shape[-1] != self.token_dim:
            raise UserError(f"tokens must have shape (batch, N, {self.token_dim}), not {tuple(Z.shape)}.")
        if Z.shape[1] != grid[0] * grid[1]:
            raise UserError(f"{Z.shape[1]} tokens do not fill a grid of {grid[0]} x {grid[1]}.")


class ClassEmbeddingDecoder(Decoder):
    """A decoder with one learned embedding per class, whose masks are cosines between patches and classes."""

    def __init__(self, dim: int, num_classes: int, logit_gain: float = 1.0):
        super().__init__(dim, num_classes)
        self.class_embeddings = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.trunc_normal_(self.class_embeddings, std=0.02)
        self.mask_norm = nn.LayerNorm(num_classes)
        # The norm limits logits to gain * sqrt(C - 1): with few classes, cross-entropy needs a larger gain.
        nn.init.constant_(self.mask_norm.weight, logit_gain)

    def masks(self, Z: Tensor, Q: Tensor, grid: Grid, trace: Trace | None) -> Tensor:
        """LayerNorm over the classes of the cosines of Z (B, N, D) and Q (B, C, D): (B, C, h, w)."""
        Z = Z / Z.norm(dim=-1, keepdim=True)
        Q = Q / Q.norm(dim=-1, keepdim=True)
        if trace is not None:
            trace.Z_unit, trace.Q_unit = Z, Q
        return self.mask_norm(Z @ Q.mT).mT.unflatten(-1, grid)

    def mask_multiply_adds(self, N: int) -> int:
        """The final norms of patches and classes, the dot product and the norm over classes."""
        C, D = self.num_classes, self.dim
        return LAYER_NORM * (N + C) * D + N * C * D + LAYER_NORM * N * C


class JointDecoder(ClassEmbeddingDecoder):
    """Steps on the concatenation [patches, classes]: DEPICT-SA, Segmenter and the ablation."""

    def __init__(self, dim: int, num_classes: int, layers: list[SubBlock], logit_gain: float = 1.0):
        super().__init__(dim, num_classes, logit_gain)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(dim)

    def forward(self, Z: Tensor, grid: Grid, trace: Trace | None = None) -> Tensor:
        """Masks (B, C, h, w) of the tokens Z (B, N, D)."""
        self.check(Z, grid)
        X = torch.cat([self.project(Z), self.class_embeddings.expand(Z.shape[0], -1, -1)], dim=1)
        if trace is not None:
            trace.Z0, trace.Q0 = self.split(X)
        for layer in self.layers:
            before, X = X, layer(X)
            if trace is not None:
                trace.record(layer, (before,), *self.split(X))
        return self.masks(*self.split(self.norm(X)), grid, trace)

    def project(self, Z: Tensor) -> Tensor:
        """Patch embeddings (B, N, D) of the tokens (B, N, token_dim); the tokens themselves unless overridden."""
        return Z

    def multiply_adds(self, N: int) -> int:
        """All layers on N patches and C classes, then the masks."""
        steps = sum(layer.multiply_adds(N + self.num_classes) for layer in self.layers)  # type: ignore[operator]
        return steps + self.mask_multiply_adds(N)

    def split(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """[patches, classes] (B, N + C, D) -> (B, N, D), (B, C, D)."""
        return X[:, : -self.num_classes], X[:, -self.num_classes :]
