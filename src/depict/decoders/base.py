"""The interface of decoders, the record of an unrolled pass, and the two kinds of decoders: with and without
refined class embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from depict.decoders.blocks import LAYER_NORM, SubBlock, init_linear_layers
from depict.decoders.heads import CosineHead, Head, LinearHead, SubspacesHead, unit
from depict.errors import UserError

Grid = tuple[int, int]


@dataclass
class Step:
    """One step of an unrolled decoder."""

    operator: str
    """mssa, msca, mssa_exact, msca_exact, cbsa, mhsa, ista or mlp."""
    Z: Tensor
    """Patch embeddings after the step, (B, N, D)."""
    Q: Tensor | None
    """Class embeddings after the step, (B, C, D); None in a decoder that does not refine them."""
    P: Tensor | None = None
    """Basis of every head (heads, head_dim, D): the subspaces of MSSA, MSCA and CBSA, the query rows of MHSA."""
    step_size: Tensor | None = None
    """The learned step (1,) of MSSA and MSCA, whose negative is the paper's alpha, or (heads,) of CBSA."""
    a: Tensor | None = None
    """The scale of the coding rate of every head, (heads,), in the exact forms."""
    attention: Tensor | None = None
    """(B, heads, queries, keys), if requested; signed in the exact forms and CBSA."""


@dataclass
class Trace:
    """Everything that a decoder computed for one batch, in order."""

    with_attention: bool = False
    tokens: Tensor | None = None
    """Tokens from the encoder, (B, N, token_dim). Equal to Z0, except in Segmenter, which projects them first."""
    contributions: Tensor | None = None
    """What each level adds to the tokens, (levels, B, N, token_dim), if the model has a neck."""
    Z0: Tensor | None = None
    """Patch embeddings before the first step, (B, N, D)."""
    Q0: Tensor | None = None
    """Class embeddings before the first step, (B, C, D); None in a decoder that does not refine them."""
    steps: list[Step] = field(default_factory=list)
    Z_unit: Tensor | None = None
    """Final patch embeddings of unit length, (B, N, D). With the cosine head, masks = mask_norm(Z_unit @ Q_unit^T)."""
    Q_unit: Tensor | None = None
    """Final class embeddings of unit length, (B, C, D); None in a decoder that does not refine them."""
    query_masks: Tensor | None = None
    """Logits (B, K, h, w) of the masks of K queries, in a decoder that classifies masks; its Q are the queries."""
    query_classes: Tensor | None = None
    """Logits (B, K, C + 1) of their classes; the last one is "no object"."""
    energies: Tensor | None = None
    """What each direction of each class adds to the logits, (B, N, C, K), with the head subspaces."""
    grid: Grid = (0, 0)
    """Rows and columns of patches, h * w = N."""
    masks: Tensor | None = None
    """The result of `forward`, (B, C, h, w)."""

    def record(self, layer: nn.Module, inputs: tuple[Any, ...], Z: Tensor, Q: Tensor | None) -> None:
        """Append the step of `layer`, which turned `inputs` into Z and Q."""
        assert isinstance(layer, SubBlock)
        attention = layer.attention(*inputs) if self.with_attention else None
        self.steps.append(Step(layer.name, Z, Q, layer.bases(), layer.step_size(), layer.a(*inputs), attention))

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

    owns_loss = False
    """If True, `forward` returns in training mode what `loss` compares with the labels, and no pixel loss applies."""

    def __init__(self, dim: int, num_classes: int):
        super().__init__()
        self.dim, self.num_classes = dim, num_classes
        self.token_dim = dim  # of the encoder; differs from dim in a decoder that projects the tokens first

    def forward(self, Z: Tensor, grid: Grid, trace: Trace | None = None) -> Any:
        """Masks (B, C, h, w). A `trace`, if given, records every step."""
        raise NotImplementedError

    def loss(self, outputs: Any, labels: Tensor, multiple: tuple[int, int]) -> Tensor:
        """The loss of a decoder that owns it, the mean over images; `outputs` are those of `forward` in training mode.

        Labels (B, H, W), padded to `multiple` (model.multiple), are covered by the grid; 255 is ignored.
        """
        raise NotImplementedError

    def unroll(self, Z: Tensor, grid: Grid, attention: bool = False) -> Trace:
        """Run `forward` and return every intermediate result, with the attention of every step if `attention`."""
        trace = Trace(with_attention=attention, tokens=Z, grid=grid)
        trace.masks = self(Z, grid, trace)
        return trace

    def stop_after(self, trace: Trace, depth: int) -> Trace:
        """The result if only the first `depth` steps of `trace` were taken: `masks`, and `Z_unit`, `Q_unit` if any."""
        raise NotImplementedError

    def multiply_adds(self, N: int) -> int:
        """Multiply-adds for one image of N patches, as the paper counts them (costs.py)."""
        raise NotImplementedError

    def check(self, Z: Tensor, grid: Grid) -> None:
        """Raise unless the tokens fit the decoder and the grid."""
        if Z.ndim != 3 or Z.shape[-1] != self.token_dim:
            raise UserError(f"tokens must have shape (batch, N, {self.token_dim}), not {tuple(Z.shape)}.")
        if Z.shape[1] != grid[0] * grid[1]:
            raise UserError(f"{Z.shape[1]} tokens do not fill a grid of {grid[0]} x {grid[1]}.")


class LevelDecoder(Decoder):
    """A decoder with a neck of its own: levels (B, h, w, D_l) of an encoder -> masks (B, C, H / stride, W / stride).

    The base class for decoders of other libraries. They train, evaluate and predict like all others, but have no
    steps to unroll.
    """

    finest = 4
    """Stride of the finest level that it takes."""
    stride = 4
    """Of its masks."""

    def __init__(self, dims: Sequence[int], num_classes: int):
        super().__init__(dims[-1], num_classes)
        self.dims = tuple(dims)

    def forward(self, levels: Sequence[Tensor], grid: Grid) -> Any:  # type: ignore[override]
        """Masks (B, C, h, w) on the grid (h, w); levels are listed from the finest to the coarsest."""
        raise NotImplementedError

    def unroll(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refused: it has no steps with a meaning."""
        raise UserError(f"{type(self).__name__} takes levels of the encoder: it has no tokens and no steps to unroll.")


class PatchDecoder(Decoder):
    """Steps on the patches alone, then a head whose class embeddings are parameters, the same for every image."""

    def __init__(self, dim: int, num_classes: int, layers: list[SubBlock], head: Head):
        super().__init__(dim, num_classes)
        self.layers = nn.ModuleList(layers)
        self.head: Head | nn.Linear
        if isinstance(head, LinearHead):  # with its class embeddings, a linear layer as Segmenter's checkpoints name it
            self.head = nn.Linear(dim, num_classes)
            init_linear_layers(self.head)
        else:
            self.head = head
            self.class_embeddings = nn.Parameter(torch.empty(num_classes, dim))
            nn.init.trunc_normal_(self.class_embeddings, std=0.02)

    def forward(self, Z: Tensor, grid: Grid, trace: Trace | None = None) -> Tensor:
        """Masks (B, C, h, w) of the tokens Z (B, N, D)."""
        self.check(Z, grid)
        if trace is not None:
            trace.Z0 = Z
        for layer in self.layers:
            before, Z = Z, layer(Z)
            if trace is not None:
                trace.record(layer, (before,), Z, None)
        return self.masks(Z, grid, trace)

    def masks(self, Z: Tensor, grid: Grid, trace: Trace | None) -> Tensor:
        """Masks (B, C, h, w) of the final patches Z (B, N, D)."""
        if trace is not None:
            trace.Z_unit = unit(Z)
            trace.energies = self.head.energies(Z) if isinstance(self.head, SubspacesHead) else None
        logits = self.head(Z) if isinstance(self.head, nn.Linear) else self.head(Z, self.class_embeddings)
        return logits.mT.unflatten(-1, grid)

    def scaled(self, Z: Tensor) -> Tensor:
        """The patches Z (B, N, D) as the head multiplies them with the class embeddings."""
        return self.head.scaled(Z) if isinstance(self.head, SubspacesHead) else Z

    @torch.no_grad()
    def start_classes(self, q: Tensor, b: Tensor, seen: Tensor) -> None:
        """Set class embeddings q (C, D) and biases b (C,) of the classes in `seen`, bool (C,).

        The others keep their embeddings, with the lowest bias. The mean bias, which changes no label, is removed.
        """
        embeddings = self.head.weight if isinstance(self.head, nn.Linear) else self.class_embeddings
        biases = cast(nn.Linear | SubspacesHead, self.head).bias
        b = torch.where(seen, b, b[seen].min())
        embeddings.copy_(torch.where(seen[:, None].to(embeddings.device), q.to(embeddings), embeddings))
        biases.copy_((b - b.mean()).to(biases))

    def stop_after(self, trace: Trace, depth: int) -> Trace:
        """The result with only the first `depth` steps."""
        stopped = Trace(grid=trace.grid)
        stopped.masks = self.masks(trace.Z[depth], trace.grid, stopped)
        return stopped

    def multiply_adds(self, N: int) -> int:
        """All layers on N patches, then the head."""
        steps = sum(layer.multiply_adds(N) for layer in self.layers)  # type: ignore[operator]
        if isinstance(self.head, nn.Linear):
            return steps + N * self.dim * self.num_classes
        return steps + self.head.multiply_adds(N, self.dim)


class ClassEmbeddingDecoder(Decoder):
    """A decoder that refines one learned embedding per class, and compares patches with the result."""

    def __init__(self, dim: int, num_classes: int, head: Head):
        super().__init__(dim, num_classes)
        self.class_embeddings = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.trunc_normal_(self.class_embeddings, std=0.02)
        # Released checkpoints name the cosine head by its norm over the classes.
        self.head_name = "mask_norm" if isinstance(head, CosineHead) else "head"
        self.add_module(self.head_name, head)

    def masks(self, Z: Tensor, Q: Tensor, grid: Grid, trace: Trace | None) -> Tensor:
        """Masks (B, C, h, w) of the final patches Z (B, N, D) and classes Q (B, C, D)."""
        head = self.get_submodule(self.head_name)
        if trace is not None:
            trace.Z_unit, trace.Q_unit = unit(Z), unit(Q)
            trace.energies = head.energies(Z) if isinstance(head, SubspacesHead) else None
        if not isinstance(head, CosineHead):
            Q = self.dim**-0.5 * Q  # both are of length sqrt(D) about, and logits should start near 1
        return head(Z, Q).mT.unflatten(-1, grid)

    def mask_multiply_adds(self, N: int) -> int:
        """The final norms of patches and classes, and the head."""
        head: Head = self.get_submodule(self.head_name)  # type: ignore[assignment]
        return LAYER_NORM * (N + self.num_classes) * self.dim + head.multiply_adds(N, self.dim)


class JointDecoder(ClassEmbeddingDecoder):
    """Steps on the concatenation [patches, classes]: DEPICT-SA, Segmenter and the ablation."""

    def __init__(self, dim: int, num_classes: int, layers: list[SubBlock], head: Head):
        super().__init__(dim, num_classes, head)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(dim)

    def forward(self, Z: Tensor, grid: Grid, trace: Trace | None = None) -> Tensor:
        """Masks (B, C, h, w) of the tokens Z (B, N, D)."""
        self.check(Z, grid)
        X = torch.cat([self.project(Z), self.class_embeddings.expand(Z.shape[0], -1, -1)], dim=1)
        if trace is not None:
            trace.Z0, trace.Q0 = self.split(X)
        for layer in self.layers:
            inputs = self.inputs(X, grid)
            X = layer(*inputs)
            if trace is not None:
                trace.record(layer, inputs, *self.split(X))
        return self.masks(*self.split(self.norm(X)), grid, trace)

    def inputs(self, X: Tensor, grid: Grid) -> tuple[Any, ...]:
        """The arguments of a layer for the tokens X (B, N + C, D); the grid does not matter unless overridden."""
        return (X,)

    def stop_after(self, trace: Trace, depth: int) -> Trace:
        """The result with only the first `depth` steps: the final norm and the masks follow as usual."""
        stopped = Trace(grid=trace.grid)
        X = torch.cat([trace.Z[depth], trace.Q[depth]], dim=1)
        stopped.masks = self.masks(*self.split(self.norm(X)), trace.grid, stopped)
        return stopped

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
