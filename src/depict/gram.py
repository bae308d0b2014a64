"""The exact step's linear algebra: Gram matrices of tokens, and the inverse of I + a G for a Gram matrix G.

Everything is computed in float32 at least: in bfloat16, I + a W^T W would not be positive definite.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

NEWTON_STEPS = 16
"""Of the inverse in exported models."""


def gram_matrices(W: Tensor, heads: int) -> Tensor:
    """W_h^T W_h of coordinates W (..., N, heads * M), in float32 at least: (..., heads, M, M)."""
    # One product per head reads W in place; a batched one over images and heads would copy it.
    return torch.stack([_Gram.apply(W_h) for W_h in at_least_float32(W).unflatten(-1, (heads, -1)).unbind(-2)], dim=-3)


class _Gram(torch.autograd.Function):
    """W^T W of W (..., N, M), with a gradient of one product over the tokens: autograd would compute two equal ones."""

    generate_vmap_rule = True

    @staticmethod
    def forward(W: Tensor) -> Tensor:
        return W.mT @ W

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (W,) = ctx.saved_tensors
        with torch.autocast(W.device.type, enabled=False):
            return W @ (slope + slope.mT)


def regularized_inverse(gram: Tensor, a: Tensor) -> Tensor:
    """(I + a_h gram_h)^-1 for gram (..., heads, M, M) and a (heads,)."""
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    S = identity + a.to(gram.dtype)[:, None, None] * gram
    if torch.compiler.is_exporting():
        return inverse_by_products(S)
    return _Inverse.apply(S)


class _Inverse(torch.autograd.Function):
    """S^-1 of symmetric positive definite S (..., M, M), whose gradient takes two matrix products.

    Autograd would go back through the Cholesky factor: two triangular systems and a second inverse.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(S: Tensor) -> Tensor:
        factor, failed = torch.linalg.cholesky_ex(S)
        # Fails if tokens are inf or nan or far beyond the precision: nan then reaches the loss, which stops a training.
        return torch.cholesky_inverse(factor.masked_fill((failed != 0)[..., None, None], torch.nan))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        with torch.autocast(inverse.device.type, enabled=False):
            return -(inverse @ slope @ inverse)


def inverse_by_products(S: Tensor) -> Tensor:
    """S^-1 of symmetric S (..., M, M) with eigenvalues of at least 1, by matrix products only: ONNX has no Cholesky.

    Newton-Schulz, X <- X (2 I - S X), scaled: if the eigenvalues of S X are in [1 - r, 1 + r], those of the next S X
    are in [1 - r^2, 1], and the factor 2 / (2 - r^2) centers them again. So r becomes r^2 / (2 - r^2), and condition
    numbers up to 10^6 end at rounding. In float64: float32 would lose 1e-4 at condition numbers of 10^4.
    """
    exact = S.double()
    largest = exact.abs().sum(-1, keepdim=True).amax(-2, keepdim=True)  # bounds the eigenvalues
    identity = torch.eye(S.shape[-1], dtype=exact.dtype, device=S.device)
    X, r = 2 / (largest + 1) * identity, (largest - 1) / (largest + 1)
    for _ in range(NEWTON_STEPS):
        X = 2 / (2 - r**2) * (X @ (2 * identity - exact @ X))
        r = r**2 / (2 - r**2)
    return X.to(S.dtype)


def token_weights(mask: Tensor, W: Tensor) -> Tensor:
    """The weight of every token in the Gram matrix of each query, (..., C, N). The weights of a query sum to N."""
    weights = mask.to(at_least_float32(W).dtype)
    return weights * (mask.shape[-1] / weights.sum(-1, keepdim=True))


def masked_solve(V: Tensor, W: Tensor, a: Tensor, weights: Tensor) -> Tensor:
    """v (I + a_h W_h^T diag(weights of v) W_h)^-1 for every row v of V (..., heads, C, M): (..., heads, C, M).

    W (..., heads, N, M), a (heads,), weights (..., C, N). There is one M x M matrix for each query and head. It can be
    differentiated once, with respect to V, W and a.
    """
    with torch.autocast(W.device.type, enabled=False):
        W = at_least_float32(W)
        rows, a, weights = (X.to(W.dtype) for X in (V, a, weights))
        if torch.compiler.is_exporting():
            solved = (rows.unsqueeze(-2) @ inverse_by_products(_masked_systems(W, a, weights))).squeeze(-2)
        else:
            solved = _MaskedSolve.apply(rows, W, a, weights)
    return solved.to(V.dtype)


def _masked_systems(W: Tensor, a: Tensor, weights: Tensor) -> Tensor:
    """I + a_h W_h^T diag(weights of a query) W_h for every query: (..., heads, C, M, M)."""
    identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    # The products of all pairs of coordinates make it one matrix product over the tokens, head by head.
    grams = [weights @ (W_h.unsqueeze(-1) * W_h.unsqueeze(-2)).flatten(-2) for W_h in W.unbind(-3)]
    return identity + a[:, None, None, None] * torch.stack(grams, dim=-3).unflatten(-1, identity.shape)


class _MaskedSolve(torch.autograd.Function):
    """`masked_solve` by one Cholesky factor per query and head.

    Autograd would multiply M x M matrices for each query. For a row x = v S^-1 with gradient g, let y = g S^-1, from
    the same factor. The gradient is y for v, and -a_h (y^T x + x^T y) / 2 for the query's Gram matrix. The latter is
    never formed, only its products with the tokens.
    """

    @staticmethod
    def forward(ctx: Any, V: Tensor, W: Tensor, a: Tensor, weights: Tensor) -> Tensor:
        factor, failed = torch.linalg.cholesky_ex(_masked_systems(W, a, weights))
        factor.masked_fill_((failed != 0)[..., None, None], torch.nan)  # as in `regularized_inverse`
        X = torch.cholesky_solve(V.unsqueeze(-1), factor).squeeze(-1)
        ctx.save_for_backward(X, W, a, weights, factor)
        return X

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        X, W, a, weights, factor = ctx.saved_tensors
        with torch.autocast(W.device.type, enabled=False):
            Y = torch.cholesky_solve(G.unsqueeze(-1), factor).squeeze(-1)
            along_X, along_Y = weights.unsqueeze(-3) * (X @ W.mT), Y @ W.mT  # (..., heads, C, N)
            slope_a = -(along_X * along_Y).sum((-1, -2)).sum_to_size(a.shape)
            along_Y *= weights.unsqueeze(-3)
            slope_W = -a[:, None, None] * (along_X.mT @ Y + along_Y.mT @ X)
        return Y, slope_W, slope_a, None


def at_least_float32(X: Tensor) -> Tensor:
    """X in float32, or in float64 if it is."""
    return X if X.dtype == torch.float64 else X.float()
