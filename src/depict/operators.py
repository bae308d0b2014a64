"""MSSA and MSCA: attention as a gradient step on the coding rate.

Tokens are rows, so every formula is the transpose of the paper's: Z (..., N, D), Q (..., C, D), and P (K, D) with
K = heads * head_dim bases as rows; rows h*head_dim to (h+1)*head_dim are the basis P'_h of head h.

Each operator is a function of tensors, and an `nn.Module` that owns P and a step size. Each has two equivalent paths:
fused (`scaled_dot_product_attention`, which stores nothing of size N x N) and explicit, which also returns the
attention.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depict.errors import UserError


def mssa(Z: Tensor, P: Tensor, heads: int, dropout: float = 0.0) -> Tensor:
    """Multi-head subspace self-attention of Z: (..., N, D). Paper eq. (23)-(24), softmax scaled as released."""
    W = _project(Z, P, heads)
    return _lift(F.scaled_dot_product_attention(W, W, W, dropout_p=dropout), P)


def mssa_explicit(Z: Tensor, P: Tensor, heads: int, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """`mssa` and its attention A (..., heads, N, N), whose rows sum to 1."""
    W = _project(Z, P, heads)
    A = attention_weights(W, W, W.shape[-1] ** -0.5)
    return _lift(F.dropout(A, dropout) @ W, P), A


def msca(Q: Tensor, Z: Tensor, P: Tensor, heads: int, dropout: float = 0.0) -> Tensor:
    """Multi-head subspace cross-attention of Q to Z: (..., C, D). Paper eq. (20)-(21), softmax scaled as released."""
    V, W = _project(Q, P, heads), _project(Z, P, heads)
    return _lift(F.scaled_dot_product_attention(V, W, W, dropout_p=dropout), P)


def msca_explicit(Q: Tensor, Z: Tensor, P: Tensor, heads: int, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """`msca` and its attention A (..., heads, C, N), whose rows sum to 1."""
    V, W = _project(Q, P, heads), _project(Z, P, heads)
    A = attention_weights(V, W, W.shape[-1] ** -0.5)
    return _lift(F.dropout(A, dropout) @ W, P), A


def mssa_literal(Z: Tensor, P: Tensor, heads: int, epsilon: float) -> Tensor:
    """MSSA as printed in paper eq. (12)-(13): softmax without temperature, scaled by M / (N epsilon^2).

    With heads = K, one head per basis (M = 1), it is eq. (8)-(9).
    """
    return msca_literal(Z, Z, P, heads, epsilon)


def msca_literal(Q: Tensor, Z: Tensor, P: Tensor, heads: int, epsilon: float) -> Tensor:
    """MSCA as printed in paper eq. (20)-(21)."""
    V, W = _project(Q, P, heads), _project(Z, P, heads)
    return _literal_scale(Z, W.shape[-1], epsilon) * _lift(attention_weights(V, W, 1.0) @ W, P)


def mssa_literal_step(Z: Tensor, P: Tensor, heads: int, alpha: float, epsilon: float) -> Tensor:
    """Z after one step of size alpha, paper eq. (11); with one head per basis it is eq. (7)."""
    scale = alpha * _literal_scale(Z, P.shape[0] // heads, epsilon)
    return (1 + scale) * Z - scale * mssa_literal(Z, P, heads, epsilon)


def msca_literal_step(Q: Tensor, Z: Tensor, P: Tensor, heads: int, alpha: float, epsilon: float) -> Tensor:
    """Q after one step of size alpha, paper eq. (19)."""
    scale = alpha * _literal_scale(Z, P.shape[0] // heads, epsilon)
    return (1 + scale) * Q - scale * msca_literal(Q, Z, P, heads, epsilon)


class SubspaceAttention(nn.Module):
    """Base of MSSA and MSCA: one matrix of bases P (heads * head_dim, dim) and one step size of either sign.

    The update is added, Z + step_size * MSSA(Z), so the paper's alpha is -step_size. Initialized as released: P from
    N(0, 1/dim), the step size from N(0, 1).
    """

    def __init__(self, dim: int, heads: int, head_dim: int, dropout: float = 0.0):
        super().__init__()
        check_sizes(dim=dim, heads=heads, head_dim=head_dim)
        check_dropout(dropout)
        self.heads = heads
        self.dropout = dropout
        self.P = nn.Parameter(torch.empty(heads * head_dim, dim))
        self.step_size = nn.Parameter(torch.empty(1))
        normal_(self.P, dim**-0.5)
        normal_(self.step_size, 1.0)

    @property
    def active_dropout(self) -> float:
        """Dropout on the attention, 0 in evaluation mode."""
        return self.dropout if self.training else 0.0

    def bases(self) -> Tensor:
        """The basis of every head, (heads, head_dim, dim): a view of P."""
        return self.P.unflatten(0, (self.heads, -1))

    def extra_repr(self) -> str:
        """Sizes shown by `print`."""
        rows, dim = self.P.shape
        return f"dim={dim}, heads={self.heads}, head_dim={rows // self.heads}, dropout={self.dropout}"


class MSSA(SubspaceAttention):
    """The update of Z by self-attention: `Z = Z + mssa(norm(Z))`."""

    def forward(self, Z: Tensor) -> Tensor:
        """step_size * MSSA(Z | P), (..., N, dim), by the fused path."""
        return self.step_size * mssa(Z, self.P, self.heads, self.active_dropout)

    def explicit(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """The same update by the explicit path, and the attention (..., heads, N, N)."""
        update, A = mssa_explicit(Z, self.P, self.heads, self.active_dropout)
        return self.step_size * update, A


class MSCA(SubspaceAttention):
    """The update of Q by cross-attention to Z: `Q = Q + msca(Q, norm(Z))`. Q is not normalized."""

    def forward(self, Q: Tensor, Z: Tensor) -> Tensor:
        """step_size * MSCA(Q | Z, P) for Q (..., C, dim) and Z (..., N, dim): (..., C, dim), by the fused path."""
        return self.step_size * msca(Q, Z, self.P, self.heads, self.active_dropout)

    def explicit(self, Q: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
        """The same update by the explicit path, and the attention (..., heads, C, N)."""
        update, A = msca_explicit(Q, Z, self.P, self.heads, self.active_dropout)
        return self.step_size * update, A


def check_sizes(**sizes: int) -> None:
    """Raise unless every size is at least 1."""
    for name, value in sizes.items():
        if value < 1:
            raise UserError(f"{name} must be at least 1, not {value}.")


def check_dropout(dropout: float) -> None:
    """Raise unless `dropout` is a probability below 1."""
    if not 0 <= dropout < 1:
        raise UserError(f"dropout must be in [0, 1), not {dropout}.")


def normal_(tensor: Tensor, std: float) -> None:
    """Fill with N(0, std^2). Meta tensors are skipped: they hold no values, and torch would import its compiler."""
    if not tensor.is_meta:
        nn.init.normal_(tensor, std=std)


def _project(X: Tensor, P: Tensor, heads: int) -> Tensor:
    """Coordinates of X (..., N, D) in the basis of every head: (..., heads, N, head_dim)."""
    if heads < 1 or P.shape[0] % heads:
        raise UserError(f"{P.shape[0]} bases do not divide into {heads} heads; heads must be a divisor.")
    if X.shape[-1] != P.shape[1]:
        raise UserError(f"embeddings have dimension {X.shape[-1]} but the bases have {P.shape[1]}.")
    return F.linear(X, P).unflatten(-1, (heads, -1)).transpose(-2, -3)


def _lift(W: Tensor, P: Tensor) -> Tensor:
    """Embeddings (..., N, D) from coordinates (..., heads, N, head_dim), summed over heads."""
    return W.transpose(-2, -3).flatten(-2) @ P


def attention_weights(V: Tensor, W: Tensor, scale: float) -> Tensor:
    """softmax(scale * V W^T) over the keys, for queries V and keys W: (..., heads, queries, keys)."""
    return (V @ W.transpose(-1, -2) * scale).softmax(-1)


def _literal_scale(Z: Tensor, head_dim: int, epsilon: float) -> float:
    """M / (N epsilon^2)."""
    return head_dim / (Z.shape[-2] * epsilon**2)
