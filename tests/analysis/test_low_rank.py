"""Known rates of centroids, and the inequality counted where it holds and where it fails."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict import create_decoder
from depict.analysis.low_rank import LowRank, repeated_rate, three_rates
from depict.analysis.text.low_rank import findings
from depict.coding_rate import coding_rate, repeat_by_share
from support.planted import analyze_tokens, orthonormal


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any), st.integers(1, 8), st.integers(0, 1000))
def test_weighted_rows_have_the_rate_of_repeated_rows(counts, D, seed):
    Q = torch.randn(len(counts), D, generator=torch.Generator().manual_seed(seed)).double()
    repeated = coding_rate(repeat_by_share(Q, torch.tensor(counts)), 0.3)
    assert torch.allclose(repeated_rate(Q, torch.tensor(counts).double(), 0.3), repeated)


def test_orthonormal_centroids_give_the_known_rate():
    counts = torch.tensor([6.0, 3.0, 1.0])
    known = 0.5 * sum(math.log(1 + 5 / 0.1**2 * share) for share in (0.6, 0.3, 0.1))
    assert repeated_rate(orthonormal(3, 5), counts, 0.1).item() == pytest.approx(known)


@given(st.integers(1, 4), st.integers(0, 1000))
def test_means_of_their_patches_never_take_more_nats_than_the_patches(classes, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(12) % classes
    Z = torch.randn(12, 5, generator=g) + 2 * torch.randn(classes, 5, generator=g)[labels]
    Q = torch.stack([Z[labels == c].mean(0) for c in range(classes)])
    rate, _, repeated = three_rates(Z, Q, torch.bincount(labels).double())
    assert rate >= repeated - 1e-9


@given(st.integers(0, 1000))
def test_rotating_the_space_changes_no_rate(seed):
    g = torch.Generator().manual_seed(seed)
    Z, Q, O = torch.randn(9, 5, generator=g).double(), torch.randn(3, 5, generator=g).double(), orthonormal(5, 5, seed)  # noqa: E741
    counts = torch.tensor([4.0, 0.0, 5.0])
    assert torch.allclose(three_rates(Z @ O, Q @ O, counts), three_rates(Z, Q, counts))


def still(classes_scale):
    """A decoder whose steps do nothing, with class embeddings of this scale."""
    decoder = create_decoder("depict_sa", 12, 3, layers=2, heads=2, head_dim=4, step_size=0.0)
    decoder.class_embeddings.data = classes_scale * orthonormal(3, 12).float()
    return decoder


def test_small_class_embeddings_take_fewer_nats_than_the_patches():
    result = analyze_tokens(LowRank, still(0.1), *torch.randn(3, 16, 12))
    assert result.numbers["R(Z) ≥ R(Q̄) (% of images), after the last step"] == 100
    assert "holds on every image" in findings(result)[0]


def test_large_class_embeddings_violate_the_inequality():
    result = analyze_tokens(LowRank, still(100.0), *(0.01 * torch.randn(3, 16, 12)))
    assert result.numbers["R(Z) ≥ R(Q̄) (% of images), after the last step"] == 0
    assert "holds on no image" in findings(result)[0]
    assert all(not row["raw_holds"] for row in result.tables["images"])


def test_the_repetitions_follow_the_argmax_mask():
    decoder, Z = still(1.0), torch.randn(16, 12)
    result = analyze_tokens(LowRank, decoder, Z)
    trace = decoder.unroll(Z[None], (4, 4))
    counts = torch.bincount(trace.masks[0].argmax(0).flatten(), minlength=3)
    row = result.tables["images"][0]
    assert row["raw_R_Q_bar"] == pytest.approx(coding_rate(repeat_by_share(trace.Q[-1][0], counts)).item(), rel=1e-4)
    assert row["masks_R_Q_bar"] == pytest.approx(coding_rate(repeat_by_share(trace.Q_unit[0], counts)).item(), rel=1e-4)
    assert row["masks_R_Z"] == pytest.approx(coding_rate(trace.Z_unit[0]).item(), rel=1e-4)


@pytest.mark.parametrize("name", ["depict_sa", "depict_ca", "segmenter"])
def test_every_depth_is_measured_raw_and_at_unit_length(name):
    result = analyze_tokens(LowRank, create_decoder(name, 64, 3), torch.randn(16, 64), name=name)
    steps = {"depict_sa": 3, "depict_ca": 6, "segmenter": 4}[name]
    for form in ("raw_mean", "unit_mean"):
        assert torch.tensor(result.data[form]).shape == (steps + 1, 3)


def test_a_linear_decoder_has_no_class_embeddings():
    result = analyze_tokens(LowRank, create_decoder("linear", 12, 3), torch.randn(16, 12), name="linear")
    assert not result.numbers
    assert "no class embeddings" in result.skipped
