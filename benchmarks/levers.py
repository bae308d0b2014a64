"""What helps a white-box decoder: variants that differ from one of ours in one thing, trained side by side.

    python benchmarks/levers.py --out DIR --data ade20k --root ADE20K --freeze-encoder --cache-features \\
        --data.every 4 --data.holdout 0.1 --decoders depict_us us_orthonormal us_compress us_scaled
    depict check --data ade20k --root ADE20K --split train --json shares.json
    python benchmarks/levers.py --shares shares.json --out DIR … --decoders us_prior

A study of `depict study decoders` with more decoders. Each is `depict_us` with one change that the theory suggests:

    us_orthonormal  the basis of each head is kept orthonormal, as the derivation assumes
    us_compress     step sizes keep their negative sign, so that every step lowers the coding rate
    us_prior        biases start as log-shares of the classes in the pixels, from a report of `depict check`
    us_principal    bases start as principal directions of the first batch's tokens, one cluster of them for each head
    us_scaled       the cosine of patch and class, times a learned scale of the class, plus a bias; no norm over classes

They are not options of the package because none of them paid (docs/ade20k.md). One variant of the linear decoder asks
what a nonlinearity brings:

    sparse          the linear layer on sparse codes of the patches (ISTA, the white-box relative of a ReLU layer)

Five are on the way from the linear decoder on our neck at stride 4 to SegFormer's head. Both sum linear maps of the
levels of a hierarchical encoder:

    linear_fine     the level of stride 2, too, averaged to stride 4
    linear_relu     BatchNorm and ReLU after the neck
    linear_raw      no LayerNorms in the neck
    linear_all      all three; SegFormer's head also has a second linear map for each level
    linear_deep     this second map alone: the same functions as with one map, trained differently
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from depict.analysis.kmeans import kmeans
from depict.commands import study
from depict.decoders import register_decoder
from depict.decoders.base import Grid, LevelDecoder, PatchDecoder, Trace
from depict.decoders.blocks import ISTABlock, MSSABlock, init_linear_layers
from depict.decoders.depict import DepictUS
from depict.decoders.heads import Head, LinearHead, SubspacesHead, unit
from depict.errors import UserError
from depict.io.files import read_json
from depict.neck import DEFAULT_DIM, Neck
from depict.operators import SubspaceAttention
from depict.training.stopping import InterruptedTraining


class OrthonormalRows(nn.Module):
    """The rows of every head, orthonormalized: (K, D) -> (K, D). If there are more rows than columns, the columns."""

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def forward(self, P: Tensor) -> Tensor:
        """P with orthonormal rows in every head."""
        bases = P.unflatten(0, (self.heads, -1))
        wide = bases.shape[1] <= bases.shape[2]
        return (torch.linalg.qr(bases.mT).Q.mT if wide else torch.linalg.qr(bases).Q).flatten(0, 1)


class Negative(nn.Module):
    """A number that stays below 0."""

    def forward(self, value: Tensor) -> Tensor:
        """-log(1 + e^value)."""
        return -F.softplus(value)

    def right_inverse(self, step: Tensor) -> Tensor:
        """The value of a given step."""
        return torch.expm1(-step).log()


class ScaledCosineHead(Head):
    """s_c cos(z, q_c) + b_c: a scale for each class instead of a norm over the classes."""

    def __init__(self, num_classes: int, scale: float = 10.0):
        super().__init__()
        self.scale = nn.Parameter(torch.full((num_classes,), scale))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, Z: Tensor, Q: Tensor) -> Tensor:
        """Logits (B, N, C)."""
        return self.scale * (unit(Z) @ unit(Q).mT) + self.bias

    def multiply_adds(self, N: int, D: int) -> int:
        """One product."""
        return N * len(self.bias) * D


def operators(decoder: nn.Module) -> list[SubspaceAttention]:
    """The operators of all layers."""
    return [part for part in decoder.modules() if isinstance(part, SubspaceAttention)]


class Orthonormal(DepictUS):
    """Orthonormal bases."""

    def __init__(self, dim: int, num_classes: int, layers: int = 2, heads: int = 3, head_dim: int = 100):
        super().__init__(dim, num_classes, layers, heads, head_dim)
        for operator in operators(self):
            register_parametrization(operator, "P", OrthonormalRows(heads))


class Compress(DepictUS):
    """Steps that only compress."""

    def __init__(self, dim: int, num_classes: int, layers: int = 2, heads: int = 3, head_dim: int = 100):
        super().__init__(dim, num_classes, layers, heads, head_dim)
        for operator in operators(self):
            register_parametrization(operator, "step_size", Negative())


class Prior(DepictUS):
    """Biases that start as log-shares of the classes."""

    shares: ClassVar[Sequence[float]] = ()

    def __init__(self, dim: int, num_classes: int, layers: int = 2, heads: int = 3, head_dim: int = 100):
        super().__init__(dim, num_classes, layers, heads, head_dim)
        if len(self.shares) < num_classes:
            raise UserError(f"us_prior needs --shares with {num_classes} classes, not {len(self.shares)}.")
        logs = torch.tensor(self.shares[:num_classes]).clamp(min=1e-6).log()  # settings are checked with two classes
        with torch.no_grad():
            cast(SubspacesHead, self.head).bias.copy_(logs - logs.mean())


class Principal(DepictUS):
    """Bases that start as the principal directions of tokens."""

    started: Tensor

    def __init__(self, dim: int, num_classes: int, layers: int = 2, heads: int = 3, head_dim: int = 100):
        super().__init__(dim, num_classes, layers, heads, head_dim)
        self.register_buffer("started", torch.tensor(False))

    def forward(self, Z: Tensor, grid: Grid, trace: Trace | None = None) -> Tensor:
        """Masks (B, C, h, w) of the tokens Z (B, N, D)."""
        if self.training and not self.started:
            self.start(Z)
        return super().forward(Z, grid, trace)

    @torch.no_grad()
    def start(self, Z: Tensor) -> None:
        """Set P of every layer to the leading principal directions of its normalized input, cluster by cluster."""
        for layer, operator in zip(self.layers, operators(self), strict=True):
            tokens = cast(MSSABlock, layer).norm(Z).flatten(0, 1)
            clusters = torch.from_numpy(kmeans(tokens.numpy(), operator.heads))
            for cluster, basis in enumerate(operator.bases()):
                own = tokens[clusters == cluster]
                basis.copy_(torch.linalg.eigh(own.mT @ own).eigenvectors.mT.flip(0)[: len(basis)])
            Z = layer(Z)
        self.started.fill_(True)


class Scaled(DepictUS):
    """The cosine, scaled class by class."""

    def __init__(self, dim: int, num_classes: int, layers: int = 2, heads: int = 3, head_dim: int = 100):
        super().__init__(dim, num_classes, layers, heads, head_dim)
        self.head = ScaledCosineHead(num_classes)


class Sparse(PatchDecoder):
    """One sparse-coding step on the patches, then a linear layer."""

    def __init__(self, dim: int, num_classes: int):
        super().__init__(dim, num_classes, [ISTABlock(dim)], LinearHead(num_classes))


class LinearOnLevels(LevelDecoder):
    """The linear decoder on our neck at stride 4, as one decoder that takes the levels."""

    def __init__(self, dims: Sequence[int], num_classes: int):
        super().__init__(dims, num_classes)
        self.neck = Neck(dims, DEFAULT_DIM)
        self.between: nn.Module = nn.Identity()
        self.head = nn.Linear(DEFAULT_DIM, num_classes)
        init_linear_layers(self.head)

    def forward(self, levels: Sequence[Tensor], grid: Grid) -> Tensor:  # type: ignore[override]
        """Masks (B, C, h, w)."""
        tokens = self.between(self.neck(levels, grid).mT).mT
        return self.head(tokens).mT.unflatten(-1, grid)


class Fine(LinearOnLevels):
    """With the level of stride 2."""

    finest = 2

    def forward(self, levels: Sequence[Tensor], grid: Grid) -> Tensor:  # type: ignore[override]
        """Masks (B, C, h, w)."""
        finest = F.avg_pool2d(levels[0].permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
        return super().forward([finest, *levels[1:]], grid)


class Rectified(LinearOnLevels):
    """With BatchNorm and ReLU after the neck."""

    def __init__(self, dims: Sequence[int], num_classes: int):
        super().__init__(dims, num_classes)
        self.between = nn.Sequential(nn.BatchNorm1d(DEFAULT_DIM), nn.ReLU())


class Raw(LinearOnLevels):
    """Without LayerNorms."""

    def __init__(self, dims: Sequence[int], num_classes: int):
        super().__init__(dims, num_classes)
        self.neck.norms = nn.ModuleList(nn.Identity() for _ in dims)


class Together(Raw, Rectified, Fine):
    """All three."""


class Deep(LinearOnLevels):
    """Two linear maps in a row for each level."""

    def __init__(self, dims: Sequence[int], num_classes: int):
        super().__init__(dims, num_classes)
        for index, first in enumerate(self.neck.maps):
            second = nn.Linear(DEFAULT_DIM, DEFAULT_DIM, bias=False)
            nn.init.normal_(second.weight, std=DEFAULT_DIM**-0.5)
            self.neck.maps[index] = nn.Sequential(first, second)


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--shares", type=Path)
    own, settings = parser.parse_known_args()
    if own.shares:
        report = read_json(own.shares, "write it with `depict check --json`")
        Prior.shares = [one["share"] for one in report["splits"][0]["classes"]]
    for name, decoder in (
        ("linear_all", Together),
        ("linear_deep", Deep),
        ("linear_fine", Fine),
        ("linear_raw", Raw),
        ("linear_relu", Rectified),
        ("sparse", Sparse),
        ("us_orthonormal", Orthonormal),
        ("us_compress", Compress),
        ("us_prior", Prior),
        ("us_principal", Principal),
        ("us_scaled", Scaled),
    ):
        register_decoder(name, decoder)
    return study.run(["decoders", *settings])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (UserError, InterruptedTraining) as error:
        sys.exit(f"levers: {error}")
