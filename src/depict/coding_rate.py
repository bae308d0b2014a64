"""The coding rate of embeddings in nats at a given distortion: projected rates, bounds, gradients, Gram forms.

Tokens are rows: Z (..., N, D). Bases are rows too: P (M, D), or any batch of them (..., M, D). `epsilon` is the
distortion; the paper does not state its value, so every function has it as a parameter.

Determinants and solves run in float64, because I + c Z^T Z is ill-conditioned exactly where the rate is interesting;
results have the dtype of Z.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from depict.errors import UserError

EPSILON = 0.1
"""CRATE's distortion (epsilon^2 = 0.01)."""


def coding_rate(Z: Tensor, epsilon: float = EPSILON) -> Tensor:
    """R(Z) = 1/2 logdet(I_D + D / (N epsilon^2) Z^T Z), paper eq. (3): (..., N, D) -> (...).

    The determinant is that of the smaller Gram matrix: Z^T Z (D x D) and Z Z^T (N x N) give the same number.
    """
    wide, c = Z.double(), _scale(Z, epsilon)
    gram = wide.mT @ wide if Z.shape[-1] <= Z.shape[-2] else wide @ wide.mT
    return _half_logdet(c * gram).to(Z.dtype)


def projected_coding_rate(Z: Tensor, P: Tensor, epsilon: float = EPSILON) -> Tensor:
    """R(P^T Z), the rate of the coordinates of Z in the bases P (..., M, D): (...). Batch dimensions broadcast."""
    return coding_rate(Z.double() @ P.double().mT, epsilon).to(Z.dtype)


def basis_coding_rates(Z: Tensor, P: Tensor, epsilon: float = EPSILON) -> Tensor:
    """R(p_m^T Z) for every basis vector p_m of P (..., M, D), the terms of paper eq. (6): (..., M)."""
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
    """|R(Z) - R(Q_bar)|, the objective of paper eq. (14): (...). Every row of Q_bar (..., N, D) is a centroid.

    `repeat_by_share` builds Q_bar from centroids and counts.
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
    """dR(P^T Z)/dZ for bases P (..., M, D): (..., N, D), exact even if P is not orthonormal."""
    wide = P.double()
    return (coding_rate_gradient(Z.double() @ wide.mT, epsilon) @ wide).to(Z.dtype)


def gram_matrix(Z: Tensor) -> Tensor:
    """Z^T Z in float64, which determines the coding rate: (..., N, D) -> (..., D, D)."""
    wide = Z.double()
    return wide.mT @ wide


def coding_rate_from_gram(gram: Tensor, tokens: int, epsilon: float = EPSILON) -> Tensor:
    """R(Z), paper eq. (3), from Z^T Z (..., D, D) of N = `tokens` tokens: (...)."""
    return _half_logdet(gram.shape[-1] / (tokens * epsilon**2) * gram)


def subspace_rates_from_gram(gram: Tensor, tokens: int, P: Tensor, epsilon: float = EPSILON) -> tuple[Tensor, Tensor]:
    """R(P_h^T Z) and R(P_h P_h^T Z) of every head, from Z^T Z (..., D, D) and P (heads, M, D): (..., heads) each.

    det(I_D + c P^T P G P^T P) = det(I_M + c (P G P^T)(P P^T)) for P with bases in rows, so no determinant is
    larger than M x M.
    """
    inside = _projected_gram(gram, P)
    lifted = gram.shape[-1] / (tokens * epsilon**2) * (inside @ (P @ P.mT))
    return coding_rate_from_gram(inside, tokens, epsilon), _half_logdet(lifted)


def coding_rate_changes(
    Z: Tensor, P: Tensor, update: Tensor, fractions: Sequence[float], epsilon: float = EPSILON
) -> Tensor:
    """R(P_h^T (Z + f * update)) - R(P_h^T Z) for every fraction f and head h: (fractions, heads).

    Z and update are (N, D), P is (heads, M, D), all in float64. The Gram matrix of Z + f * update is a polynomial in
    f, so the tokens are multiplied once for all fractions.
    """
    cross = Z.mT @ update
    terms = _projected_gram(torch.stack([gram_matrix(Z), cross + cross.mT, gram_matrix(update)]), P)
    powers = torch.tensor([[1.0, f, f**2] for f in (0.0, *fractions)], dtype=torch.float64, device=Z.device)
    rates = coding_rate_from_gram(torch.einsum("fk,khij->fhij", powers, terms), len(Z), epsilon)
    return rates[1:] - rates[0]


def _projected_gram(gram: Tensor, P: Tensor) -> Tensor:
    """P_h G P_h^T for symmetric G (..., D, D) and bases P (heads, M, D): (..., heads, M, M)."""
    half = (gram @ P.flatten(0, 1).mT).mT.unflatten(-2, P.shape[:2])
    return half @ P.mT


def _half_logdet(matrix: Tensor) -> Tensor:
    """1/2 logdet(I + matrix): (..., n, n) -> (...)."""
    return 0.5 * _identity_plus(matrix).slogdet().logabsdet


def _scale(Z: Tensor, epsilon: float) -> float:
    """D / (N epsilon^2), after checking both arguments."""
    if Z.ndim < 2 or 0 in Z.shape[-2:]:
        raise UserError(f"embeddings must have shape (..., N, D) with N and D above 0, not {tuple(Z.shape)}.")
    if not Z.is_floating_point():
        raise UserError(f"embeddings must be floating-point numbers, not {Z.dtype}.")
    if not epsilon > 0:
        raise UserError(f"epsilon must be above 0, not {epsilon}.")
    return Z.shape[-1] / (Z.shape[-2] * epsilon**2)


def _identity_plus(matrix: Tensor) -> Tensor:
    """I + matrix."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device) + matrix


def _variances(Z: Tensor, P: Tensor) -> Tensor:
    """Var(p_m^T Z), assuming as the paper does that Z has zero mean: (..., M), in float64."""
    return (Z.double() @ P.double().mT).square().mean(-2)
