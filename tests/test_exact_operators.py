"""The exact forms of MSSA and MSCA against autograd, the coding rate and materialized inverses."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from depict import UserError
from depict.coding_rate import projected_coding_rate, projected_coding_rate_gradient
from depict.gram import inverse_by_products
from depict.operators import MSCA, MSSA, exact_kernel, exact_work, msca_exact, mssa_exact

SHAPES = {"coordinates, D > K": (9, 2, 3), "coordinates of few tokens": (5, 2, 3), "embedding space": (2, 2, 3)}
every_path = pytest.mark.parametrize(("D", "heads", "M"), SHAPES.values(), ids=SHAPES)


def case(D, heads, M, N=7, C=3, batch=(2,), dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    Q, Z = (torch.randn(*batch, count, D, generator=g, dtype=dtype) for count in (C, N))
    P = D**-0.5 * torch.randn(heads * M, D, generator=g, dtype=dtype)
    a = 0.1 + torch.rand(heads, generator=g, dtype=dtype)
    return Q, Z, P, a


def materialized(Q, Z, P, a):
    """One head and one image at a time, with explicit inverses."""
    heads = P.unflatten(0, (len(a), -1))
    out = torch.zeros_like(Q)
    for image, (q, z) in enumerate(zip(Q, Z, strict=True)):
        for basis, scale in zip(heads, a, strict=True):
            W = z @ basis.T
            out[image] += q @ basis.T @ torch.linalg.inv(torch.eye(len(basis)).to(W) + scale * W.T @ W) @ basis
    return out


def total_rate(Y, P, a):
    """sum_h R_h / a_h of Y (N, D), each rate at the distortion that gives a_h = M / (N epsilon^2)."""
    heads = P.unflatten(0, (len(a), -1))
    N, M = len(Y), heads.shape[1]
    return sum(projected_coding_rate(Y, p, math.sqrt(M / (N * s))) / s for p, s in zip(heads, a.tolist(), strict=True))


def test_the_shapes_take_both_paths():
    for name, (D, heads, M) in SHAPES.items():
        for queries in (0, 3):  # as in `case`
            embedded, projected = exact_work(7, queries, heads * M, D, heads)
            assert (embedded <= projected) == (name == "embedding space"), name


@every_path
def test_the_exact_forms_are_sums_over_heads_with_inverses(D, heads, M):
    Q, Z, P, a = case(D, heads, M)
    assert torch.allclose(mssa_exact(Z, P, a), materialized(Z, Z, P, a))
    assert torch.allclose(msca_exact(Q, Z, P, a), materialized(Q, Z, P, a))


@given(
    D=st.integers(1, 40),
    heads=st.integers(1, 4),
    M=st.integers(1, 12),
    N=st.integers(1, 40),
    batch=st.lists(st.integers(1, 3), max_size=2),
)
def test_any_sizes_and_batches_fit(D, heads, M, N, batch):
    Q, Z, P, a = case(D, heads, M, N=N, batch=batch)
    flat_Q, flat_Z = Q.reshape(-1, 3, D), Z.reshape(-1, N, D)
    assert torch.allclose(mssa_exact(Z, P, a), materialized(flat_Z, flat_Z, P, a).view_as(Z))
    assert torch.allclose(msca_exact(Q, Z, P, a), materialized(flat_Q, flat_Z, P, a).view_as(Q))


@every_path
def test_mssa_is_the_gradient_of_the_sum_of_rates_over_a(D, heads, M):
    _, Z, P, a = case(D, heads, M, batch=())
    Z.requires_grad_()
    logdets = [
        torch.logdet(torch.eye(M).to(Z) + s * (Z @ p.T).T @ (Z @ p.T)) / (2 * s)
        for p, s in zip(P.unflatten(0, (heads, -1)), a, strict=True)
    ]
    assert torch.allclose(torch.autograd.grad(sum(logdets), Z)[0], mssa_exact(Z, P, a))


def test_with_one_a_for_all_heads_mssa_is_the_gradient_in_coding_rate():
    _, Z, P, _ = case(9, 2, 3, batch=())
    epsilon, a = 0.3, 3 / (7 * 0.3**2)
    gradient = sum(projected_coding_rate_gradient(Z, p, epsilon) for p in P.unflatten(0, (2, -1)))
    assert torch.allclose(mssa_exact(Z, P, torch.full((2,), a).double()), gradient / a)


@every_path
def test_msca_is_the_gradient_of_what_the_queries_add_to_the_rate(D, heads, M):
    Q, Z, P, a = case(D, heads, M, batch=())
    Q.requires_grad_()
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    rates = []
    for p, s in zip(P.unflatten(0, (heads, -1)), a, strict=True):
        V, W = Q @ p.T, Z @ p.T
        rates.append(torch.logdet(torch.eye(M).to(Z) + s * (W.T @ W + weight * V.T @ V)) / (2 * s))
    added = torch.autograd.grad(sum(rates), weight, create_graph=True)[0]
    assert torch.allclose(torch.autograd.grad(added, Q)[0], msca_exact(Q, Z, P, a))


@every_path
def test_gradients_are_right(D, heads, M):
    Q, Z, P, a = (tensor.requires_grad_() for tensor in case(D, heads, M, N=4, batch=(2,)))
    assert gradcheck(mssa_exact, (Z, P, a))
    assert gradcheck(msca_exact, (Q, Z, P, a))
    assert gradgradcheck(mssa_exact, (Z, P, a))


@given(
    seed=st.integers(0, 10**6),
    N=st.integers(1, 30),
    heads=st.integers(1, 3),
    M=st.integers(1, 4),
    step=st.floats(1e-3, 1.9),
    scale=st.floats(0.01, 100),
    sign=st.sampled_from([-1, 1]),
)
def test_the_sum_of_rates_over_a_moves_with_the_sign_of_the_step(seed, N, heads, M, step, scale, sign):
    """For orthonormal P the objective's gradient has Lipschitz constant 1, so every step below 2 is small enough."""
    D = 12
    g = torch.Generator().manual_seed(seed)
    P = torch.linalg.qr(torch.randn(D, D, generator=g, dtype=torch.float64)).Q[: heads * M]
    Y = torch.nn.functional.layer_norm(torch.randn(N, D, generator=g, dtype=torch.float64), (D,))
    a = scale * (0.1 + torch.rand(heads, generator=g, dtype=torch.float64)) * M / N
    before, after = total_rate(Y, P, a), total_rate(Y + sign * step * mssa_exact(Y, P, a), P, a)
    assert sign * (after - before) > 0


@every_path
def test_the_kernel_subtracts_from_each_token_its_prediction_from_all(D, heads, M):
    _, Z, P, a = case(D, heads, M)
    K = exact_kernel(Z, Z, P, a)
    W = (Z @ P.T).unflatten(-1, (heads, M)).transpose(1, 2)
    assert torch.allclose((W - K @ W).transpose(1, 2).flatten(2) @ P, mssa_exact(Z, P, a))
    assert torch.allclose(exact_kernel(Z[:, 2:4], Z, P, a), K[:, :, 2:4])


@every_path
def test_float32_is_close_to_float64_for_tokens_with_a_large_common_part(D, heads, M):
    _, Z, P, a = case(D, heads, M, N=200)
    Z, scale = Z + 3, 10 * a  # condition numbers of about 10^4
    wide, narrow = mssa_exact(Z, P, scale), mssa_exact(Z.float(), P.float(), scale.float())
    assert (narrow - wide).abs().max() < 1e-4 * wide.abs().max()


@every_path
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_changes_the_result_by_rounding_only(D, heads, M, dtype):
    Q, Z, P, a = (tensor.requires_grad_() for tensor in case(D, heads, M, N=50, dtype=torch.float32))
    mask = torch.arange(50) < torch.tensor([[50], [20], [3]])

    def steps():
        return [mssa_exact(Z, P, a), msca_exact(Q, Z, P, a), msca_exact(Q, Z, P, a, mask=mask.expand(2, -1, -1))]

    exact = steps()
    with torch.autocast("cpu", dtype=dtype):
        cast = steps()
    assert [step.dtype for step in cast] == [dtype] * 3
    for expected, actual in zip(exact, cast, strict=True):
        assert (actual.float() - expected).abs().max() < 2e-2 * expected.abs().max()
        gradients = [torch.autograd.grad(out.float().square().sum(), [Z, P, a]) for out in (expected, actual)]
        for wide, narrow in zip(*gradients, strict=True):
            assert (narrow - wide).abs().max() < 5e-2 * wide.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_kernel_of_a_model_in_half_precision_differs_by_rounding_only(dtype):
    msca = MSCA(32, 2, 8, operator="exact")
    Q, Z = torch.linspace(-1, 1, 3 * 32).view(1, 3, 32).sin(), torch.linspace(0, 60, 50 * 32).view(1, 50, 32).cos()
    mask = (torch.arange(50) < torch.tensor([[50], [20], [3]])).expand(1, -1, -1)
    expected = [msca.explicit(Q, Z)[1], msca.explicit(Q, Z, mask)[1]]
    msca.to(dtype)
    for number, arguments in enumerate([(Q.to(dtype), Z.to(dtype)), (Q.to(dtype), Z.to(dtype), mask)]):
        update, kernel = msca.explicit(*arguments)
        assert update.dtype == kernel.dtype == dtype
        assert (kernel.float() - expected[number]).abs().max() < 5e-2 * expected[number].abs().max()


@given(
    seed=st.integers(0, 10**6),
    M=st.integers(1, 100),
    exponents=st.lists(st.floats(0, 4), min_size=1, max_size=100),
)
def test_the_inverse_of_exported_models_is_right_for_condition_numbers_up_to_10000(seed, M, exponents):
    g = torch.Generator().manual_seed(seed)
    eigenvalues = 10 ** torch.tensor((exponents * M)[:M], dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(M, M, generator=g, dtype=torch.float64)).Q
    S = (basis * eigenvalues @ basis.T).float()
    expected = torch.linalg.inv(S.double())
    assert (inverse_by_products(S) - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.slow
@every_path
def test_exported_operators_have_no_cholesky_factor_and_give_the_same_numbers(D, heads, M):
    module, Z = MSSA(D, heads, M, operator="exact"), torch.randn(2, 7, D)
    program = torch.export.export(module, (Z,), dynamic_shapes=({1: torch.export.Dim.DYNAMIC},))
    assert "cholesky" not in str(program.graph)
    for N in (7, 20):
        Z = torch.randn(2, N, D)
        assert torch.allclose(program.module()(Z), module(Z), atol=1e-5)


@pytest.mark.slow
def test_an_exported_step_with_a_mask_gives_the_same_numbers():
    module, inputs = MSCA(9, 2, 3, operator="exact"), (torch.randn(2, 4, 9), torch.randn(2, 7, 9))
    mask = torch.rand(2, 4, 7) < 0.5
    mask[..., 0] = True
    program = torch.export.export(module, (*inputs, mask))
    assert "cholesky" not in str(program.graph)
    assert torch.allclose(program.module()(*inputs, mask), module(*inputs, mask), atol=1e-5)


def test_tokens_that_are_not_finite_give_nan_and_no_error():
    Q, Z, P, a = case(9, 2, 3)
    Z[0, 0, 0] = torch.inf
    everywhere = torch.ones(2, 3, 7, dtype=torch.bool)
    for step in (mssa_exact(Z, P, a), msca_exact(Q, Z, P, a, mask=everywhere)):
        assert step[0].isnan().any()
        assert step[1].isfinite().all()


def test_the_order_of_tokens_does_not_matter():
    _, Z, P, a = case(9, 2, 3, N=8)
    order = torch.randperm(8)
    assert torch.allclose(mssa_exact(Z, P, a)[:, order], mssa_exact(Z[:, order], P, a))


def test_repeated_tokens_leave_the_step_of_a_module_unchanged():
    """a is divided by the number of tokens, so grids and windows of other sizes transfer."""
    module, Z = MSSA(6, 2, 3, operator="exact"), torch.randn(5, 6)
    assert torch.allclose(module(Z.repeat(4, 1))[:5], module(Z), atol=1e-6)


def test_modules_scale_the_exact_form_by_their_step_size_and_learn_c():
    Q, Z, _, _ = case(9, 2, 3, dtype=torch.float32)
    for module, inputs, function in (
        (MSSA(9, 2, 3, operator="exact"), (Z,), mssa_exact),
        (MSCA(9, 2, 3, operator="exact"), (Q, Z), msca_exact),
    ):
        assert module.step_size.item() == pytest.approx(-0.1)
        assert torch.equal(module.a(7), torch.full((2,), 3 / 7))
        with torch.no_grad():
            module.step_size.fill_(0.7)
            module.log_c.copy_(torch.tensor([2.0, 0.5]).log())
        a = torch.tensor([2.0, 0.5]) * 3 / 7
        assert torch.allclose(module(*inputs), 0.7 * function(*inputs, module.P, a), atol=1e-6)
        update, kernel = module.explicit(*inputs)
        assert torch.allclose(update, module(*inputs), atol=1e-6)
        assert torch.allclose(kernel, exact_kernel(inputs[0], Z, module.P, a), atol=1e-6)
        module(*inputs).square().sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in module.parameters())


def test_a_mask_restricts_each_query_to_the_exact_step_on_its_own_tokens():
    Q, Z, P, a = case(9, 2, 3, N=8)
    mask = torch.rand(2, Q.shape[1], 8) < 0.5
    mask[..., 0] = True
    step, kernel = msca_exact(Q, Z, P, a, 0.7, mask), exact_kernel(Q, Z, P, a, mask)
    for b in range(2):
        for c in range(Q.shape[1]):
            own = Z[b, mask[b, c]]
            scaled = a * 8 / len(own)  # a counts tokens: the mean of w w^T stays what it is weighed with
            assert torch.allclose(step[b, c], msca_exact(Q[b, c : c + 1], own, P, scaled, 0.7)[0], atol=1e-6)
            expected = torch.zeros(2, 8, dtype=Z.dtype)
            expected[:, mask[b, c]] = exact_kernel(Q[b, c : c + 1], own, P, scaled)[:, 0]
            assert torch.allclose(kernel[b, :, c], expected, atol=1e-6)


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one image", "a batch"])
def test_the_gradient_with_a_mask_is_that_of_the_formula(batch):
    inputs = case(9, 2, 3, N=8, batch=batch)
    mask = torch.rand(*inputs[0].shape[:-1], 8) < 0.5
    mask[..., 0] = True
    assert gradcheck(lambda *inputs: msca_exact(*inputs, 0.7, mask), [each.requires_grad_() for each in inputs])


def test_a_mask_of_all_tokens_changes_nothing():
    Q, Z, P, a = case(9, 2, 3)
    everywhere = torch.ones(*Q.shape[:2], Z.shape[1], dtype=torch.bool)
    assert torch.allclose(msca_exact(Q, Z, P, a, 0.7, everywhere), msca_exact(Q, Z, P, a, 0.7), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MSSA(6, 1, 1, operator="exat"), "unknown operator 'exat'. Did you mean 'exact'"),
        (lambda: MSCA(6, 1, 1, 0.1, "exact"), "dropout must be 0 with the exact operator, not 0.1"),
        (lambda: mssa_exact(torch.zeros(3, 6), torch.zeros(5, 6), torch.ones(2)), "5 bases do not divide into 2"),
        (lambda: mssa_exact(torch.zeros(3, 7), torch.zeros(4, 6), torch.ones(2)), "embeddings have dimension 7"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()
