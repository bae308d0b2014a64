"""MSSA and MSCA against loops over the equations, and their two paths against each other."""

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict import UserError
from depict.operators import (
    CBSA,
    MSCA,
    MSSA,
    msca,
    msca_explicit,
    msca_literal,
    msca_literal_step,
    mssa,
    mssa_explicit,
    mssa_literal,
    mssa_literal_step,
)


def ssa_by_loops(Q, Z, P, heads, scale):
    """sum over heads of P'_h (P'_h^T Z) softmax(scale (P'_h^T Z)^T (P'_h^T Q)), one query at a time, in float64."""
    Q, Z, P = Q.double(), Z.double(), P.double()
    head_dim = len(P) // heads
    out = torch.zeros_like(Q)
    for h in range(heads):
        basis = P[h * head_dim : (h + 1) * head_dim]  # rows p_1 .. p_M
        for i, q in enumerate(Q):
            scores = [scale * sum((p @ z) * (p @ q) for p in basis) for z in Z]
            top = max(scores)
            weights = [torch.exp(score - top) for score in scores]
            for weight, z in zip(weights, Z, strict=True):
                for p in basis:
                    out[i] += weight / sum(weights) * (p @ z) * p
    return out


def case(N=5, C=3, D=6, heads=2, head_dim=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(C, D, generator=g), torch.randn(N, D, generator=g), torch.randn(heads * head_dim, D, generator=g)


def test_mssa_is_the_sum_over_heads_of_projected_attention():
    _, Z, P = case()
    assert torch.allclose(mssa(Z, P, 2).double(), ssa_by_loops(Z, Z, P, 2, 2**-0.5), atol=1e-5)


def test_msca_is_the_sum_over_heads_of_projected_cross_attention():
    Q, Z, P = case()
    assert torch.allclose(msca(Q, Z, P, 2).double(), ssa_by_loops(Q, Z, P, 2, 2**-0.5), atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_literal_operators_are_equations_8_9_12_13_and_20_21(heads):
    Q, Z, P = (tensor.double() for tensor in case())
    scale = (len(P) // heads) / (len(Z) * 0.5**2)
    assert torch.allclose(mssa_literal(Z, P, heads, 0.5), scale * ssa_by_loops(Z, Z, P, heads, 1.0))
    assert torch.allclose(msca_literal(Q, Z, P, heads, 0.5), scale * ssa_by_loops(Q, Z, P, heads, 1.0))


@pytest.mark.parametrize("heads", [1, 4])
def test_the_literal_steps_are_equations_7_11_and_19(heads):
    Q, Z, P = (tensor.double() for tensor in case())
    scale = 0.3 * (len(P) // heads) / (len(Z) * 0.5**2)
    expected = (1 + scale) * Z - scale * mssa_literal(Z, P, heads, 0.5)
    assert torch.allclose(mssa_literal_step(Z, P, heads, 0.3, 0.5), expected)
    expected = (1 + scale) * Q - scale * msca_literal(Q, Z, P, heads, 0.5)
    assert torch.allclose(msca_literal_step(Q, Z, P, heads, 0.3, 0.5), expected)


def both_paths(N, heads, head_dim, D=32, batch=2, dtype=torch.float32, run=lambda f, *a: f(*a)):
    g = torch.Generator().manual_seed(N)
    results = []
    for explicit in (False, True):
        g.manual_seed(N)
        Z = torch.randn(batch, N, D, generator=g).to(dtype).requires_grad_()
        Q = torch.randn(batch, 5, D, generator=g).to(dtype).requires_grad_()
        P = (D**-0.5 * torch.randn(heads * head_dim, D, generator=g)).to(dtype).requires_grad_()
        if explicit:
            out = run(mssa_explicit, Z, P, heads)[0], run(msca_explicit, Q, Z, P, heads)[0]
        else:
            out = run(mssa, Z, P, heads), run(msca, Q, Z, P, heads)
        sum(o.float().square().mean() for o in out).backward()
        results.append([*out, Z.grad, Q.grad, P.grad])
    return results


@pytest.mark.parametrize("N", [1, 2, 63, 64, 65, 1000, pytest.param(4096, marks=pytest.mark.slow)])
def test_the_fused_path_agrees_with_the_explicit_path_in_value_and_gradient(N):
    fused, explicit = both_paths(N, heads=3, head_dim=10, batch=1 if N > 1000 else 2)
    for a, b in zip(fused, explicit, strict=True):
        assert (a - b).abs().max() < 2e-5


@given(N=st.integers(1, 40), heads=st.integers(1, 5), head_dim=st.integers(1, 40), batch=st.integers(1, 3))
def test_the_paths_agree_for_any_heads_head_dimension_and_batch(N, heads, head_dim, batch):
    fused, explicit = both_paths(N, heads, head_dim, batch=batch)
    for a, b in zip(fused, explicit, strict=True):
        assert (a - b).abs().max() < 2e-5


def test_the_paths_agree_under_bfloat16_autocast():
    def autocast(function, *arguments):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function(*arguments)

    exact, _ = both_paths(64, heads=2, head_dim=16)
    fused, explicit = both_paths(64, heads=2, head_dim=16, run=autocast)
    assert fused[0].dtype == explicit[0].dtype == torch.bfloat16
    for a, b, c in zip(fused, explicit, exact, strict=True):
        bound = 2e-2 * max(1.0, c.abs().max().item())
        assert (a.float() - b.float()).abs().max() < bound
        assert (b.float() - c).abs().max() < bound


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(("operator", "shapes"), [(MSSA, [(2, 40, 32)]), (MSCA, [(2, 5, 32), (2, 40, 32)])])
def test_the_compiled_operators_agree_with_the_explicit_path(tmp_path, monkeypatch, operator, shapes):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    module = operator(32, heads=2, head_dim=16)
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    results = [
        [out, *torch.autograd.grad(out.square().mean(), [*inputs, *module.parameters()])]
        for out in (torch.compile(module)(*inputs), module.explicit(*inputs)[0])
    ]
    for compiled, explicit in zip(*results, strict=True):
        assert (compiled - explicit).abs().max() < 1e-5
        assert compiled.abs().max() > 1e-3


def test_attention_rows_sum_to_one_and_have_one_column_per_key():
    Q, Z, P = case(N=7, C=3)
    _, A = msca_explicit(Q, Z, P, 2)
    assert A.shape == (2, 3, 7)
    assert torch.allclose(A.sum(-1), torch.ones(2, 3))


def test_a_mask_restricts_each_query_to_its_own_tokens_on_both_paths():
    Q, Z, P = torch.randn(2, 3, 6), torch.randn(2, 7, 6), torch.randn(4, 6)
    mask = torch.rand(2, 3, 7) < 0.5
    mask[..., 0] = True
    explicit, A = msca_explicit(Q, Z, P, 2, mask=mask)
    assert (A.masked_select(~mask[:, None]) == 0).all()
    assert torch.allclose(msca(Q, Z, P, 2, mask=mask), explicit, atol=1e-5)
    for b in range(2):
        for c in range(3):
            alone = msca(Q[b, c : c + 1], Z[b, mask[b, c]], P, 2)
            assert torch.allclose(explicit[b, c], alone[0], atol=1e-5)


def test_the_order_of_tokens_does_not_matter():
    _, Z, P = case(N=9)
    order = torch.randperm(9)
    assert torch.allclose(mssa(Z, P, 2)[order], mssa(Z[order], P, 2), atol=1e-6)


def test_modules_scale_the_operator_by_their_step_size():
    Q, Z, _ = case()
    for module, inputs, function in ((MSSA(6, 2, 2), (Z,), mssa), (MSCA(6, 2, 2), (Q, Z), msca)):
        with torch.no_grad():
            module.step_size.fill_(-0.7)
        assert torch.allclose(module(*inputs), -0.7 * function(*inputs, module.P, 2))
        assert torch.allclose(module(*inputs), module.explicit(*inputs)[0], atol=1e-6)
        assert sum(p.numel() for p in module.parameters()) == 4 * 6 + 1


def test_dropout_acts_only_in_training():
    torch.manual_seed(0)
    module = MSSA(6, 2, 2, dropout=0.5)
    Z = torch.randn(4, 6)
    assert not torch.allclose(module(Z), module(Z))
    module.eval()
    assert torch.equal(module(Z), module(Z))


def test_bases_start_at_unit_norm_on_average_and_step_sizes_with_either_sign():
    torch.manual_seed(0)
    assert MSSA(256, 4, 100).P.norm(dim=1).mean().item() == pytest.approx(1.0, abs=0.01)
    steps = torch.cat([MSSA(2, 1, 1).step_size.detach() for _ in range(400)])
    assert abs(steps.mean()) < 0.15
    assert steps.std().item() == pytest.approx(1.0, abs=0.1)


def test_the_weights_of_cbsa_give_its_update():
    module, X, grid = CBSA(6, 2, 4, side=3), torch.randn(2, 20 + 3, 6), (4, 5)
    W = (X @ module.P.T).unflatten(-1, (2, 4)).transpose(1, 2)
    weights = module.weights(X, grid)
    update = module.step_x * (weights @ W)
    assert torch.allclose(module.to_out(update.transpose(1, 2).flatten(2)), module(X, grid), atol=1e-5)
    assert torch.allclose(module.weights(X, grid, [4, 21]), weights[:, :, [4, 21]], atol=1e-6)


@given(height=st.integers(1, 25), width=st.integers(1, 25), side=st.integers(1, 12))
def test_cells_of_exported_models_are_those_of_adaptive_pooling(height, width, side):
    module, W = CBSA(6, 2, 4, side), torch.randn(1, 2, height * width + 3, 4)
    by_matrix = module._cells((height, width), W) @ W[:, :, : height * width]
    assert torch.allclose(module.representatives(W, (height, width)), by_matrix, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mssa(torch.zeros(3, 6), torch.zeros(5, 6), 2), "5 bases do not divide into 2 heads"),
        (lambda: mssa(torch.zeros(3, 7), torch.zeros(4, 6), 2), "embeddings have dimension 7 but the bases have 6"),
        (lambda: mssa(torch.zeros(3, 6), torch.zeros(4, 6), 0), "4 bases do not divide into 0 heads"),
        (lambda: MSSA(6, 0, 2), "heads must be at least 1, not 0"),
        (lambda: MSCA(6, 1, -1), "head_dim must be at least 1, not -1"),
        (lambda: MSSA(6, 1, 1, dropout=1.5), "dropout must be in"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()
