"""Rows, ranks and angles with known values, and decoders built from them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict import create_decoder
from depict.analysis.figures.orthogonality import figures
from depict.analysis.orthogonality import (
    Orthogonality,
    effective_rank,
    head_angles,
    principal_angles,
    random_angle,
    random_cosine,
    row_measures,
    span,
)
from depict.analysis.text.orthogonality import CAPTIONS, findings
from support.planted import analyze_tokens, orthonormal

seeds = st.integers(0, 1000)


def test_orthonormal_rows_have_distance_0():
    measures = row_measures(orthonormal(5, 9))
    assert measures["mean_abs_cosine"] == pytest.approx(0, abs=1e-12)
    assert measures["distance"] == pytest.approx(0, abs=1e-12)
    assert measures["norm_spread"] == pytest.approx(0, abs=1e-12)
    assert measures["mean_norm"] == pytest.approx(1)
    assert measures["effective_rank"] == pytest.approx(5)


def test_rows_worked_out_by_hand():
    rows = torch.tensor([[1.0, 0.0], [1.5, 1.5 * math.sqrt(3)]])  # 60 degrees apart, norms 1 and 3
    measures = row_measures(rows)
    assert measures["mean_abs_cosine"] == pytest.approx(0.5)
    assert (measures["mean_norm"], measures["norm_spread"]) == pytest.approx((2, 0.5))
    assert measures["distance"] == pytest.approx(math.sqrt((0 + 8**2 + 2 * 1.5**2) / 2))  # Gram [[1, 1.5], [1.5, 9]]
    assert measures["unit_distance"] == pytest.approx(0.5)


def test_a_single_row_has_nothing_to_be_orthogonal_to():
    assert row_measures(torch.tensor([[3.0, 4.0]]))["mean_abs_cosine"] == 0


@given(st.integers(1, 8), st.integers(8, 30), seeds)
def test_a_planted_subspace_of_equal_energies_has_its_dimension_as_effective_rank(rank, tokens, seed):
    left, right = orthonormal(rank, tokens, seed), orthonormal(rank, 9, seed + 1)
    assert effective_rank(3 * left.mT @ right).item() == pytest.approx(rank, abs=1e-5)


def test_effective_rank_works_on_batches():
    Z = torch.randn(3, 20, 6)
    assert torch.allclose(effective_rank(Z), torch.stack([effective_rank(rows) for rows in Z]))


def test_planted_planes_have_the_known_angles():
    e = torch.eye(5, dtype=torch.float64)
    theta = math.radians(30)
    U, V = e[:2], torch.stack([math.cos(theta) * e[0] + math.sin(theta) * e[2], e[3]])
    assert principal_angles(U, V).tolist() == pytest.approx([30, 90])
    assert principal_angles(U, e[:4]).tolist() == pytest.approx([0, 0], abs=1e-5)


def test_the_span_of_dependent_rows_has_the_dimension_of_their_rank():
    rows = torch.tensor([[1.0, 0, 0], [2.0, 0, 0], [0, 0, 5.0]])
    basis = span(rows)
    assert basis.shape == (2, 3)
    assert torch.allclose(basis @ basis.mT, torch.eye(2, dtype=torch.float64))
    assert principal_angles(basis, torch.eye(3, dtype=torch.float64)[[0, 2]]).tolist() == pytest.approx(
        [0, 0], abs=1e-5
    )


@given(seeds)
def test_rotating_the_space_changes_no_measure(seed):
    rows, O = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed)).double(), orthonormal(7, 7, seed)  # noqa: E741
    assert row_measures(rows @ O) == pytest.approx(row_measures(rows))
    other = torch.randn(3, 7, generator=torch.Generator().manual_seed(seed + 1)).double()
    turned = principal_angles(span(rows @ O), span(other @ O))
    assert torch.allclose(turned, principal_angles(span(rows), span(other)), atol=1e-4)


@given(seeds)
def test_mixing_bases_within_their_span_keeps_angles_and_rank(seed):
    g = torch.Generator().manual_seed(seed)
    rows, other = torch.randn(4, 9, generator=g).double(), torch.randn(3, 9, generator=g).double()
    mixed = orthonormal(4, 4, seed) @ rows
    assert effective_rank(mixed).item() == pytest.approx(effective_rank(rows).item())
    expected = principal_angles(span(rows), span(other))
    assert torch.allclose(principal_angles(span(mixed), span(other)), expected, atol=1e-4)


@pytest.mark.parametrize("dim", [2, 3, 50])
def test_the_expected_cosine_of_random_directions_agrees_with_sampling(dim):
    drawn = torch.nn.functional.normalize(torch.randn(2, 40000, dim), dim=-1)
    assert random_cosine(dim) == pytest.approx((drawn[0] * drawn[1]).sum(-1).abs().mean().item(), rel=0.02)


def test_random_subspaces_of_the_whole_space_have_no_angle():
    assert random_angle(6, 3, 6) == pytest.approx(0, abs=1e-5)
    assert 60 < random_angle(2, 2, 60) < 90


def test_overlap_is_one_for_equal_heads_and_zero_for_orthogonal_ones():
    e = torch.eye(6, dtype=torch.float64)
    layers = {"mssa 1": torch.stack([e[:2], e[2:4]]), "mssa 2": torch.stack([3 * e[:2], e[4:]])}
    angles = {(row["layer"], row["head"], row["other_layer"], row["other_head"]): row for row in head_angles(layers)}
    assert len(angles) == 6
    assert angles["mssa 1", 1, "mssa 2", 1]["overlap"] == pytest.approx(1)
    assert angles["mssa 1", 1, "mssa 1", 2]["overlap"] == pytest.approx(0)
    assert angles["mssa 1", 2, "mssa 2", 2]["mean"] == pytest.approx(90)
    assert angles["mssa 1", 2, "mssa 2", 2]["random_overlap"] == pytest.approx(2 / 6)


def test_a_decoder_with_orthonormal_bases_is_reported_as_such():
    decoder = create_decoder("depict_sa", 12, 3, layers=2, heads=2, head_dim=4)
    for seed, layer in enumerate(decoder.layers):
        layer.operator.P.data = orthonormal(8, 12, seed).float()
    result = analyze_tokens(Orthogonality, decoder, torch.randn(6, 12))
    assert result.numbers["mean |cosine| of two bases of a head"] == pytest.approx(0, abs=1e-6)
    assert result.numbers["distance of a head to orthonormal (0 = orthonormal)"] == pytest.approx(0, abs=1e-6)
    assert result.numbers["mean principal angle between heads of a layer (degrees)"] == pytest.approx(90)
    assert result.numbers["effective rank of a head / largest possible"] == pytest.approx(1)
    assert "more orthogonal than random" in findings(result)[0]
    assert ": close to orthonormal" in findings(result)[0]


def test_untrained_bases_are_as_orthogonal_as_random_directions():
    decoder = create_decoder("depict_sa", 64, 3, layers=2, heads=2, head_dim=30)
    result = analyze_tokens(Orthogonality, decoder, torch.randn(6, 64))
    assert "as orthogonal as random directions" in findings(result)[0]
    assert "not orthonormal" in findings(result)[0]


def test_the_classes_gram_is_the_mean_over_the_images():
    decoder, images = create_decoder("depict_sa", 12, 3, heads=2, head_dim=4).eval(), torch.randn(2, 6, 12)
    result = analyze_tokens(Orthogonality, decoder, *images)
    Q = decoder.unroll(images, (1, 6)).Q_unit
    assert torch.allclose(torch.tensor(result.data["classes"]["mean_gram"]), (Q @ Q.mT).mean(0), atol=1e-5)
    assert len(result.data["classes"]["per_image"]) == 2


def test_cross_attention_has_bases_of_its_own():
    decoder = create_decoder("depict_ca", 12, 3, layers=1, heads=2, head_dim=4, cross_layers=1, cross_heads=2)
    result = analyze_tokens(Orthogonality, decoder, torch.randn(6, 12))
    assert [row["layer"] for row in result.tables["layers"]] == ["mssa 1", "msca 2"]


def test_segmenter_is_measured_by_its_query_rows():
    result = analyze_tokens(Orthogonality, create_decoder("segmenter", 64, 3), torch.randn(6, 64))
    assert [row["layer"] for row in result.tables["layers"]] == ["mhsa 1", "mhsa 2"]
    assert "query rows" in findings(result)[0]


def test_a_single_head_has_no_angles():
    decoder = create_decoder("depict_sa", 12, 3, layers=1, heads=1, head_dim=4)
    result = analyze_tokens(Orthogonality, decoder, torch.randn(6, 12))
    assert result.numbers["mean principal angle between heads of a layer (degrees)"] is None
    assert set(figures(result)) == {"bases", "classes"} < set(CAPTIONS)
    assert len(findings(result)) == 2


def test_several_heads_have_a_figure_of_their_angles():
    decoder = create_decoder("depict_sa", 12, 3, layers=2, heads=2, head_dim=4)
    result = analyze_tokens(Orthogonality, decoder, torch.randn(6, 12))
    assert set(figures(result)) == set(CAPTIONS)
    assert any("principal angles" in paragraph for paragraph in findings(result))


def test_a_linear_decoder_has_nothing_to_measure():
    result = analyze_tokens(Orthogonality, create_decoder("linear", 12, 3), torch.randn(6, 12), name="linear")
    assert result.skipped == "The decoder 'linear' has neither bases nor class embeddings."
    assert not result.numbers
