"""Properties that coding rates have for all embeddings and bases. docs/theory.md measures what holds only mostly."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict import UserError
from depict.coding_rate import (
    basis_coding_rates,
    coding_rate,
    coding_rate_changes,
    coding_rate_gradient,
    gram_matrix,
    low_rank_gap,
    lower_bound,
    projected_coding_rate,
    projected_coding_rate_gradient,
    repeat_by_share,
    subspace_rates_from_gram,
    upper_bound,
)
from depict.operators import mssa
from support.planted import orthonormal


@st.composite
def embeddings(draw, min_dim=1, max_dim=12, max_tokens=20):
    """Z (N, D) in float64 with a random scale per direction, and an orthonormal P (M, D)."""
    N, D = draw(st.integers(1, max_tokens)), draw(st.integers(min_dim, max_dim))
    M = draw(st.integers(1, D))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    spread = 10 ** draw(st.floats(-2, 1))
    Z = torch.randn(N, D, generator=g, dtype=torch.float64) * torch.rand(D, generator=g, dtype=torch.float64) * spread
    P = torch.linalg.qr(torch.randn(D, D, generator=g, dtype=torch.float64)).Q[:M]
    return Z, P


epsilons = st.sampled_from([0.05, 0.1, 0.5, 1.0])


def test_a_rate_computed_by_hand():
    Z = torch.diag(torch.tensor([3.0, 4.0]))  # D / (N epsilon^2) = 4 at epsilon 1/2
    assert coding_rate(Z, 0.5) == pytest.approx(0.5 * math.log((1 + 4 * 9) * (1 + 4 * 16)))


@given(embeddings(), epsilons)
def test_both_gram_sides_give_the_same_rate(case, epsilon):
    Z, _ = case
    N, D = Z.shape
    c = D / (N * epsilon**2)
    for gram in (Z.mT @ Z, Z @ Z.mT):
        direct = 0.5 * torch.logdet(torch.eye(len(gram), dtype=torch.float64) + c * gram)
        assert torch.allclose(coding_rate(Z, epsilon), direct)


@given(embeddings(), epsilons, st.integers(0, 1000))
def test_rotating_the_space_changes_no_rate(case, epsilon, seed):
    Z, P = case
    g = torch.Generator().manual_seed(seed)
    O = torch.linalg.qr(torch.randn(Z.shape[1], Z.shape[1], generator=g, dtype=torch.float64)).Q  # noqa: E741
    assert torch.allclose(coding_rate(Z @ O, epsilon), coding_rate(Z, epsilon))
    assert torch.allclose(projected_coding_rate(Z @ O, P @ O, epsilon), projected_coding_rate(Z, P, epsilon))


@given(embeddings(), epsilons)
def test_rotating_the_basis_within_its_span_keeps_the_projected_rate(case, epsilon):
    Z, P = case
    g = torch.Generator().manual_seed(len(P))
    O = torch.linalg.qr(torch.randn(len(P), len(P), generator=g, dtype=torch.float64)).Q  # noqa: E741
    assert torch.allclose(projected_coding_rate(Z, O @ P, epsilon), projected_coding_rate(Z, P, epsilon))


@given(embeddings(), epsilons, st.floats(1.01, 10))
def test_the_rate_grows_with_scale_and_is_never_negative(case, epsilon, factor):
    Z, _ = case
    assert coding_rate(0 * Z, epsilon) == 0
    assert coding_rate(factor * Z, epsilon) > coding_rate(Z, epsilon) > 0


@given(embeddings(), epsilons)
def test_both_bounds_of_the_appendix_hold(case, epsilon):
    Z, P = case
    rate = projected_coding_rate(Z, P, epsilon)
    assert lower_bound(Z, P, epsilon) <= rate + 1e-9
    assert rate <= upper_bound(Z, P, epsilon) + 1e-9


@given(embeddings(), epsilons)
def test_the_rate_of_a_basis_vector_is_the_projected_rate_of_one_dimension(case, epsilon):
    Z, P = case
    singly = torch.stack([projected_coding_rate(Z, p[None], epsilon) for p in P])
    assert torch.allclose(basis_coding_rates(Z, P, epsilon), singly)


@given(embeddings(), epsilons)
def test_the_exact_gradient_is_that_of_autograd(case, epsilon):
    Z, P = case
    Z = Z.clone().requires_grad_()
    for rate, exact in (
        (coding_rate(Z, epsilon), coding_rate_gradient(Z, epsilon)),
        (projected_coding_rate(Z, P, epsilon), projected_coding_rate_gradient(Z, P, epsilon)),
    ):
        (automatic,) = torch.autograd.grad(rate, Z)
        assert torch.allclose(automatic, exact, rtol=1e-6, atol=1e-9)


@given(embeddings(), epsilons)
def test_a_small_exact_gradient_step_raises_the_rate(case, epsilon):
    Z, P = case
    gradient = projected_coding_rate_gradient(Z, P, epsilon)
    step = 1e-4 * Z.norm() / gradient.norm()
    assert projected_coding_rate(Z + step * gradient, P, epsilon) > projected_coding_rate(Z, P, epsilon)


@given(embeddings(min_dim=2, max_dim=10), epsilons, st.sampled_from([1e-3, 0.05, 0.5]))
def test_the_released_update_moves_the_rate_in_the_direction_of_its_step_size(case, epsilon, step):
    Z, P = case
    before = projected_coding_rate(Z, P, epsilon)
    update = mssa(Z, P, heads=1)
    assert projected_coding_rate(Z + step * update, P, epsilon) > before
    if step <= 0.2:  # larger steps down can overshoot: docs/theory.md, section 4
        assert projected_coding_rate(Z - step * update, P, epsilon) < before


def test_float32_input_keeps_its_digits_where_the_gram_matrix_is_ill_conditioned():
    g = torch.Generator().manual_seed(0)
    Z = (
        torch.randn(2000, 64, generator=g, dtype=torch.float64) * torch.logspace(0, -4, 64, dtype=torch.float64)
    ).float()
    exact = 0.5 * torch.log1p(64 / (2000 * 1e-6) * torch.linalg.svdvals(Z.double()).square()).sum()
    assert coding_rate(Z, 1e-3).dtype == torch.float32
    assert coding_rate(Z, 1e-3).item() == pytest.approx(exact.item(), rel=1e-6)


def test_batches_and_heads_broadcast():
    Z, P = torch.randn(4, 10, 6), torch.randn(3, 2, 6)
    rates = projected_coding_rate(Z[:, None], P)
    assert rates.shape == (4, 3)
    assert torch.allclose(rates[1, 2], projected_coding_rate(Z[1], P[2]))
    assert basis_coding_rates(Z[:, None], P).shape == (4, 3, 2)


def test_planted_orthogonal_subspaces_give_the_sum_of_their_rates():
    g = torch.Generator().manual_seed(0)
    O = torch.linalg.qr(torch.randn(6, 6, generator=g, dtype=torch.float64)).Q  # noqa: E741
    first, second = torch.randn(8, 2, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    Z = torch.cat([first @ O[:2], second @ O[2:5]])
    c = 6 / (16 * 0.01)
    alone = [0.5 * torch.logdet(torch.eye(x.shape[1]) + c * x.mT @ x) for x in (first, second)]
    assert torch.allclose(coding_rate(Z, 0.1), sum(alone))


def test_the_gap_to_the_embeddings_themselves_is_zero_and_to_centroids_is_not():
    Z = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    centroids = repeat_by_share(torch.tensor([[-1.5], [1.5]]), torch.tensor([2, 2]))
    assert centroids.tolist() == [[-1.5], [-1.5], [1.5], [1.5]]
    assert low_rank_gap(Z, Z) == 0
    assert low_rank_gap(Z, centroids) > 0.05  # Z^T Z is 10, that of the centroids 9: a counterexample to the appendix


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_rates_from_gram_matrices_are_the_rates_of_the_tokens(N, D, M, seed):
    g = torch.Generator().manual_seed(seed)
    Z, P = torch.randn(N, D, generator=g).double(), torch.randn(2, M, D, generator=g).double()
    alone, lifted = subspace_rates_from_gram(gram_matrix(Z), N, P, 0.5)
    assert torch.allclose(alone, projected_coding_rate(Z, P, 0.5))
    assert torch.allclose(lifted, coding_rate(Z @ P.mT @ P, 0.5))


def test_changes_along_an_update_are_those_of_the_rates():
    Y, P, step = torch.randn(10, 6).double(), torch.randn(2, 3, 6).double(), torch.randn(10, 6).double()
    for fraction, change in zip((1.0, 0.25), coding_rate_changes(Y, P, step, (1.0, 0.25), 0.3), strict=True):
        moved = projected_coding_rate(Y + fraction * step, P, 0.3) - projected_coding_rate(Y, P, 0.3)
        assert torch.allclose(change, moved)


def test_tokens_in_a_planted_subspace_have_the_known_rate_there_and_none_elsewhere():
    O = orthonormal(8, 8)  # noqa: E741
    inside, outside = O[:3], O[3:]
    energies = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)
    Z = orthonormal(3, 20, 1).mT * energies.sqrt() @ inside  # Z^T Z has these eigenvalues
    known = 0.5 * sum(math.log(1 + 3 / (20 * 0.1**2) * energy) for energy in energies.tolist())
    assert subspace_rates_from_gram(gram_matrix(Z), 20, inside[None], 0.1)[0].item() == pytest.approx(known)
    assert subspace_rates_from_gram(gram_matrix(Z), 20, outside[None], 0.1)[0].item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coding_rate(torch.zeros(3)), "must have shape"),
        (lambda: coding_rate(torch.zeros(0, 3)), "must have shape"),
        (lambda: coding_rate(torch.zeros(2, 3), 0.0), "epsilon must be above 0"),
        (lambda: lower_bound(torch.zeros(2, 3), torch.eye(3), -1.0), "epsilon must be above 0"),
        (lambda: coding_rate(torch.zeros(2, 3, dtype=torch.int64)), "must be floating-point numbers"),
        (lambda: low_rank_gap(torch.zeros(2, 3), torch.zeros(3, 3)), "Q_bar must have the shape of Z"),
    ],
)
def test_wrong_input_is_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()
