"""The sub-blocks that decoders stack: MSSA, MSCA and MHSA for attention, ISTA and MLP for feed-forward."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depict.errors import UserError
from depict.operators import MSCA, MSSA, attention_weights, check_dropout, exact_work

LAYER_NORM = 5
"""Operations per element of a LayerNorm, by the paper's convention (costs.py)."""


class SubBlock(nn.Module):
    """One step of a decoder, with what a `Trace` records about it."""

    name: str
    has_attention = False

    def bases(self) -> Tensor | None:
        """The basis of every head, (heads, head_dim, D); None without attention."""
        return None

    def step_size(self) -> Tensor | None:
        """The learned step size, (1,); None if there is none."""
        return None

    def a(self, *inputs: Any) -> Tensor | None:
        """The scale of the coding rate of every head for the arguments of `forward`, (heads,); None unless exact."""
        return None

    def attention(self, *inputs: Any, queries: list[int] | None = None) -> Tensor | None:
        """Attention (B, heads, queries, keys) for the arguments of `forward`; None if there is none.

        `queries` are the rows to compute, all by default: one row needs nothing of size N x N.
        """
        return None

    def multiply_adds(self, tokens: int) -> int:
        """Multiply-adds for this number of tokens of one image, as the paper counts them (costs.py)."""
        raise NotImplementedError


class SubspaceBlock(SubBlock):
    """A step on the coding rate: a pre-norm, and an operator that owns P and the step size."""

    has_attention = True
    operator: MSSA | MSCA

    @property
    def exact(self) -> bool:
        """Whether the operator is the gradient itself, not its approximation by a softmax."""
        return self.operator.exact

    def bases(self) -> Tensor:
        """The bases P'_h of all heads, (heads, head_dim, D)."""
        return self.operator.bases()

    def step_size(self) -> Tensor:
        """The learned step size, (1,); the paper's alpha is its negative."""
        return self.operator.step_size

    def a(self, *inputs: Tensor) -> Tensor | None:
        """The scale of the coding rate of every head, (heads,); None unless exact."""
        return self.operator.a(inputs[-1].shape[-2]) if self.exact else None

    def exact_multiply_adds(self, tokens: int, queries: int) -> int:
        """The norm and the exact operator with its inverses; `queries` is 0 in MSSA."""
        K, D = self.operator.P.shape
        return LAYER_NORM * tokens * D + min(exact_work(tokens, queries, K, D, self.operator.heads))


class MSSABlock(SubspaceBlock):
    """X + step_size * MSSA(LayerNorm(X)), paper eq. (22) as released."""

    operator: MSSA

    def __init__(self, dim: int, heads: int, head_dim: int, dropout: float = 0.0, operator: str = "softmax"):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.operator = MSSA(dim, heads, head_dim, dropout, operator)
        self.name = "mssa_exact" if self.exact else "mssa"

    def forward(self, X: Tensor) -> Tensor:
        """X after one step, (B, N, D)."""
        return X + self.operator(self.norm(X))

    def attention(self, X: Tensor, queries: list[int] | None = None) -> Tensor:  # type: ignore[override]
        """Attention or signed kernel (B, heads, N, N) of the step at X."""
        Y = self.norm(X)
        return self.operator.weights(Y if queries is None else Y[:, queries], Y)

    def multiply_adds(self, tokens: int) -> int:
        """The norm, two products with P and two with the attention."""
        if self.exact:
            return self.exact_multiply_adds(tokens, 0)
        K, D = self.operator.P.shape
        return LAYER_NORM * tokens * D + 2 * tokens * K * D + 2 * tokens * tokens * K


class MSCABlock(SubspaceBlock):
    """Q + step_size * MSCA(Q | LayerNorm(Z)), paper eq. (19) as released: Q itself is not normalized."""

    operator: MSCA

    def __init__(self, dim: int, heads: int, head_dim: int, dropout: float = 0.0, operator: str = "softmax"):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.operator = MSCA(dim, heads, head_dim, dropout, operator)
        self.name = "msca_exact" if self.exact else "msca"

    def forward(self, Q: Tensor, Z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Q after one step, (B, C, D); Z (B, N, D) is fixed. A bool `mask` (B, C, N): which patches Q attends to."""
        return Q + self.operator(Q, self.norm(Z), mask)

    def attention(  # type: ignore[override]
        self, Q: Tensor, Z: Tensor, mask: Tensor | None = None, queries: list[int] | None = None
    ) -> Tensor:
        """Attention or signed kernel (B, heads, C, N) of the step."""
        if queries is not None:
            Q, mask = Q[:, queries], None if mask is None else mask[:, queries]
        return self.operator.weights(Q, self.norm(Z), mask)

    def a(self, Q: Tensor, Z: Tensor, mask: Tensor | None = None) -> Tensor | None:  # type: ignore[override]
        """The scale of the coding rate of every head, (heads,); None unless exact."""
        return super().a(Z)

    def multiply_adds(self, tokens: int, queries: int, masked: bool = False) -> int:  # type: ignore[override]
        """The norm of Z, three products with P and two with the attention, or with a matrix for each masked query."""
        K, D = self.operator.P.shape
        if self.exact and masked:
            M = K // self.operator.heads
            own = queries * (tokens * K * M + K * M**2 // 6 + K * M)  # Gram matrix, its Cholesky factor, solving
            return LAYER_NORM * tokens * D + (tokens + 2 * queries) * K * D + own
        if self.exact:
            return self.exact_multiply_adds(tokens, queries)
        return LAYER_NORM * tokens * D + (tokens + 2 * queries) * K * D + 2 * queries * tokens * K


class MHSABlock(SubBlock):
    """X + multi-head self-attention of LayerNorm(X), with separate query, key, value and output matrices."""

    name = "mhsa"
    has_attention = True

    def __init__(self, dim: int, heads: int, dropout: float = 0.0):
        super().__init__()
        if heads < 1 or dim % heads:
            raise UserError(f"{heads} heads do not divide the embedding dimension {dim}.")
        check_dropout(dropout)
        self.heads, self.dropout = heads, dropout
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def queries_keys_values(self, X: Tensor) -> list[Tensor]:
        """Queries, keys and values of LayerNorm(X), (B, heads, N, head_dim) each."""
        return list(self.qkv(self.norm(X)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0))

    def forward(self, X: Tensor) -> Tensor:
        """X after the sub-block, (B, N, D)."""
        queries, keys, values = self.queries_keys_values(X)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout)
        return X + F.dropout(self.proj(mixed.transpose(1, 2).flatten(2)), dropout)

    def bases(self) -> Tensor:
        """The rows of the query matrix, which the paper shows in place of P: (heads, head_dim, D)."""
        return self.qkv.weight[: self.qkv.in_features].unflatten(0, (self.heads, -1))

    def attention(self, X: Tensor, queries: list[int] | None = None) -> Tensor:  # type: ignore[override]
        """Attention (B, heads, N, N) of the sub-block at X."""
        rows, keys, _ = self.queries_keys_values(X)
        rows = rows if queries is None else rows[:, :, queries]
        return attention_weights(rows, keys, keys.shape[-1] ** -0.5)

    def multiply_adds(self, tokens: int) -> int:
        """The norm, four projections and two products with the attention."""
        D = self.proj.in_features
        return LAYER_NORM * tokens * D + 4 * tokens * D * D + 2 * tokens * tokens * D


class MLPBlock(SubBlock):
    """X + fc2(GELU(fc1(LayerNorm(X)))), with a hidden dimension of 4 D."""

    name = "mlp"

    def __init__(self, dim: int, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)
        check_dropout(dropout)
        self.dropout = dropout

    def forward(self, X: Tensor) -> Tensor:
        """X after the sub-block, (B, N, D)."""
        hidden = F.dropout(F.gelu(self.fc1(self.norm(X))), self.dropout, self.training)
        return X + F.dropout(self.fc2(hidden), self.dropout, self.training)

    def multiply_adds(self, tokens: int) -> int:
        """The norm and two linear layers."""
        D, hidden = self.fc1.in_features, self.fc1.out_features
        return LAYER_NORM * tokens * D + 2 * tokens * D * hidden


class ISTABlock(SubBlock):
    """CRATE's sparse coding of Y = LayerNorm(X) in one dictionary A (D, D): relu(Y + eta (Y A - Y A^T A) - eta lambda).

    There is no residual around it: the proximal step starts from Y itself.
    """

    name = "ista"
    eta = 0.1
    lambda_ = 0.1

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.A = nn.Parameter(torch.empty(dim, dim))
        nn.init.kaiming_uniform_(self.A)

    def forward(self, X: Tensor) -> Tensor:
        """The sparse codes of X after one proximal gradient step, (B, N, D)."""
        Y = self.norm(X)
        return F.relu(Y + self.eta * (Y @ self.A - Y @ self.A.T @ self.A) - self.eta * self.lambda_)

    def multiply_adds(self, tokens: int) -> int:
        """The norm and three products with the dictionary."""
        D = self.A.shape[0]
        return LAYER_NORM * tokens * D + 3 * tokens * D * D


def init_linear_layers(module: nn.Module) -> None:
    """Initialize linear layers as Segmenter does: weights from N(0, 0.02^2), biases 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
