"""Coding rates: how many nats a set of embeddings takes at a given distortion, and what the paper builds on them.

Tokens are rows: Z (..., N, D). Bases are rows too: P (M, D), or any batch of them (..., M, D). `epsilon` is the
distortion; the paper does not state its own, so every function takes it by name. Results are in nats.

Determinants and solves are done in float64 whatever comes in, because I + c Z^T Z is ill-conditioned exactly where
the rate is interesting; results return in the dtype of Z.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depict.errors import UserError

EPSILON = 0.1
"""CRATE's distortion (epsilon^2 = 0.01)."""


def coding_rate(Z: Tensor, epsilon: float = EPSILON) -> Tensor:
    """R(Z) = 1/2 logdet(I_D + D / (N epsilon^2) Z^T Z), paper eq. (3): (..., N, D) -> (...).

    The determinant is taken on the smaller Gram side: Z^T Z (D x D) or Z Z^T (N x N) give the same number.
    """
    wide, c = Z.double(), _scale(Z, epsilon)
    gram = wide.mT @ wide if Z.shape[-1] <= Z.shape[-2] else wide @ wide.mT
    return (0.5 * _identity_plus(c * gram).slogdet().logabsdet).to(Z.dtype)


def projected_coding_rate(Z: Tensor, P: Tensor, epsilon: float = EPSILON) -> Tensor:
    """R(P^T Z), the rate of Z's coordinates in the bases P (..., M, D); batch dimensions broadcast."""
    return coding_rate(Z.double() @ P.double().mT, epsilon).to(Z.dtype)


def basis_coding_rates(Z: Tensor, P: Tensor, epsilon: float = EPSILON) -> Tensor:
    """R(p_m^T Z) for every single basis p_m of P (..., M, D), the terms of paper eq. (6): (..., M)."""
    _scale(Z, epsilon)
    return (0.5 * torch.log1p(_variances(Z, P) / epsilon**2)).to(Z.dtype)


def lower_bound(Z: Tensor, P: Tensor, epsilon: float = EPSILON) -> Tensor:
    """1/M sum_m R(p_m^T Z; M epsilon) <= R(P^T Z; epsilon), appendix "Lower and Upper Bounds"."""
    return basis_coding_rates(Z, P, P.shape[-2] * epsilon).mean(-1)


def upper_bound(Z: Tensor, P: Tensor, epsilon: float = EPSILON) -> Tensor:
    """sum_m R(p_m^T Z; epsilon) + gamma >= R(P^T Z; epsilon), paper eq. (10) and the same appendix.

    gamma = M (M - 1) / 2 * max_m Var(p_m^T Z) / (min_m Var(p_m^T Z) + epsilon^2).
    """
    variances = _variances(Z, P)
    M = P.shape[-2]
    gamma = 0.5 * M * (M - 1) * variances.amax(-1) / (variances.amin(-1) + epsilon**2)
    return (basis_coding_rates(Z.double(), P, epsilon).sum(-1) + gamma).to(Z.dtype)


def low_rank_gap(Z: Tensor, Q_bar: Tensor, epsilon: float = EPSILON) -> Tensor:
    """|R(Z) - R(Q_bar)|, the objective of paper eq. (14); Q_bar (..., N, D) has a centroid in every row.

    `repeat_by_share` makes Q_bar from centroids and counts.
    """
    if Z.shape[-2:] != Q_bar.shape[-2:]:
        raise UserError(f"Q_bar must have the shape of Z, {tuple(Z.shape[-2:])}, not {tuple(Q_bar.shape[-2:])}.")
    return (coding_rate(Z, epsilon) - coding_rate(Q_bar, epsilon)).abs()


def repeat_by_share(Q: Tensor, counts: Tensor) -> Tensor:
    """Q_bar: centroid q_c repeated counts[c] times, Q (C, D) and counts (C,) -> (sum of counts, D)."""
    return Q.repeat_interleave(counts, dim=0)


def coding_rate_gradient(Z: Tensor, epsilon: float = EPSILON) -> Tensor:
    """dR(Z)/dZ = c Z (I + c Z^T Z)^-1 with c = D / (N epsilon^2): (..., N, D), exact."""
    wide, c = Z.double(), _scale(Z, epsilon)
    if Z.shape[-1] <= Z.shape[-2]:
        gradient = torch.linalg.solve(_identity_plus(c * wide.mT @ wide), c * wide, left=False)
    else:
        gradient = torch.linalg.solve(_identity_plus(c * wide @ wide.mT), c * wide)
    return gradient.to(Z.dtype)


def projected_coding_rate_gradient(Z: Tensor, P: Tensor, epsilon: float = EPSILON) -> Tensor:
    """dR(P^T Z)/dZ for bases P (..., M, D): (..., N, D), exact for any P, orthonormal or not."""
    wide = P.double()
    return (coding_rate_gradient(Z.double() @ wide.mT, epsilon) @ wide).to(Z.dtype)


def _scale(Z: Tensor, epsilon: float) -> float:
    if Z.ndim < 2 or 0 in Z.shape[-2:]:
        raise UserError(f"embeddings must have shape (..., N, D) with N and D above 0, not {tuple(Z.shape)}.")
    if not Z.is_floating_point():
        raise UserError(f"embeddings must be floating-point numbers, not {Z.dtype}.")
    if not epsilon > 0:
        raise UserError(f"epsilon must be above 0, not {epsilon}.")
    return Z.shape[-1] / (Z.shape[-2] * epsilon**2)


def _identity_plus(matrix: Tensor) -> Tensor:
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device) + matrix


def _variances(Z: Tensor, P: Tensor) -> Tensor:
    """Var(p_m^T Z), with the paper's assumption that Z has zero mean: (..., M), in float64."""
    return (Z.double() @ P.double().mT).square().mean(-2)
