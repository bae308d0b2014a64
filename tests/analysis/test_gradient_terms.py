"""The four terms against their formulas, and where they vanish."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict import create_decoder
from depict.analysis.base import Result
from depict.analysis.gradient_terms import (
    GradientTerms,
    MeasuredTerms,
    class_share,
    four_terms,
    patch_share,
    softmax_terms,
)
from depict.analysis.text.gradient_terms import findings
from depict.operators import mssa
from support.planted import analyze_tokens, orthonormal


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 6), st.integers(0, 1000))
def test_gram_matrices_give_the_norms_of_the_explicit_terms(N, C, M, seed):
    g = torch.Generator().manual_seed(seed)
    W, V = torch.randn(2, N, M, generator=g).double(), torch.randn(2, C, M, generator=g).double()
    explicit = [W @ W.mT @ W, W @ V.mT @ V, V @ W.mT @ W, V @ V.mT @ V]
    expected = torch.stack([term.norm(dim=(-2, -1)) for term in explicit], dim=-1)
    assert torch.allclose(four_terms(W, V), expected)


@given(st.integers(0, 1000))
def test_rotating_the_subspace_changes_no_term(seed):
    g = torch.Generator().manual_seed(seed)
    W, V = torch.randn(9, 4, generator=g).double(), torch.randn(3, 4, generator=g).double()
    O = orthonormal(4, 4, seed)  # noqa: E741
    assert torch.allclose(four_terms(W @ O, V @ O), four_terms(W, V))
    assert torch.allclose(softmax_terms(W @ O, V @ O), softmax_terms(W, V))


def test_patches_and_classes_in_orthogonal_subspaces_do_not_cross():
    O = orthonormal(6, 6)  # noqa: E741
    W, V = torch.randn(9, 2).double() @ O[:2], torch.randn(3, 2).double() @ O[2:4]
    terms = four_terms(W, V).tolist()
    assert terms[1:3] == pytest.approx([0, 0], abs=1e-6)
    assert min(terms[0], terms[3]) > 1e-3


def test_with_softmax_and_zero_classes_everything_comes_from_the_patches():
    W, V = torch.randn(9, 4), torch.zeros(3, 4)
    into_Z, QQZ, into_Q, QQQ = softmax_terms(W, V).tolist()
    update = mssa(torch.cat([W, V]), torch.eye(4), heads=1)
    assert (QQZ, QQQ) == (0, 0)
    assert into_Z == pytest.approx(update[:9].norm().item(), rel=1e-5)
    assert into_Q == pytest.approx(update[9:].norm().item(), rel=1e-5)


def test_sizes_are_per_token_of_the_operators_input():
    decoder, Z = create_decoder("depict_sa", 12, 3, layers=2, heads=2, head_dim=4).eval(), torch.randn(16, 12)
    result = analyze_tokens(GradientTerms, decoder, Z)
    trace = decoder.unroll(Z[None], (4, 4))
    layer = decoder.layers[1]
    with torch.no_grad():
        seen = layer.norm(torch.cat([trace.Z[1], trace.Q[1]], 1))[0] @ layer.bases()[0].mT
    ZZZ, _, ZZQ, _ = four_terms(seen[:16], seen[16:]).tolist()
    row = next(row for row in result.tables["terms"] if (row["layer"], row["head"]) == (2, 1))
    assert row["plain_ZZZ"] == pytest.approx(ZZZ / 4, rel=1e-4)
    assert row["plain_ZZQ"] == pytest.approx(ZZQ / 3**0.5, rel=1e-4)
    assert len(result.tables["terms"]) == 4


def test_shares_are_those_of_the_terms_with_the_classes():
    terms = torch.tensor([[9.0, 1.0, 3.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    assert patch_share(terms) == pytest.approx((0.1 + 0.5) / 2)
    assert class_share(terms) == pytest.approx((0.75 + 0.5) / 2)


@pytest.mark.parametrize(("share", "message"), [(0.05, "is small here"), (0.3, "is not small here")])
def test_the_text_says_whether_the_unexplained_term_matters(share, message):
    terms = torch.tensor([1 - share, share, 0.6, 0.4]).expand(1, 1, 1, 4)
    text = findings(Result(measured=MeasuredTerms(terms, terms)))[0]
    assert message in text
    assert "Cross-attention dominates" in text


@pytest.mark.parametrize(
    ("name", "reason"),
    [("depict_ca", "keeps patches and classes apart"), ("segmenter", "no MSSA step"), ("linear", "has no steps")],
)
def test_decoders_without_the_four_terms_are_skipped_with_a_reason(name, reason):
    result = analyze_tokens(GradientTerms, create_decoder(name, 64, 3), torch.randn(16, 64), name=name)
    assert not result.numbers
    assert reason in result.skipped
