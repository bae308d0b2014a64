"""Rates in planted subspaces, and how often the sign of the step predicts the change."""

import pytest
import torch

from depict import create_decoder
from depict.analysis.coding_rates import CodingRates
from depict.analysis.text.coding_rates import findings
from depict.coding_rate import EPSILON, projected_coding_rate
from depict.operators import MSSA
from support.planted import analyze_tokens, orthonormal


def decoder_with(sizes, dim=12, heads=2, head_dim=4, classes=3, name="depict_sa"):
    """DEPICT with orthonormal bases and these step sizes."""
    decoder = create_decoder(name, dim, classes, layers=len(sizes), heads=heads, head_dim=head_dim)
    for seed, (layer, size) in enumerate(zip(decoder.layers, sizes, strict=True)):
        layer.operator.P.data = orthonormal(heads * head_dim, dim, seed).float()
        layer.operator.step_size.data.fill_(size)
    return decoder


def test_an_orthonormal_basis_of_the_whole_space_holds_the_whole_rate():
    decoder = decoder_with([0.3], dim=8, heads=1, head_dim=8)
    result = analyze_tokens(CodingRates, decoder, torch.randn(10, 8))
    for key in ("stream_share", "normed_share"):
        assert torch.tensor(result.data[key]["mean"]).flatten().tolist() == pytest.approx([1, 1], abs=1e-5)


@pytest.mark.parametrize("sizes", [(0.1, -0.1), (-0.05, 0.5)])
@pytest.mark.parametrize("name", ["depict_sa", "depict_ca"])
def test_with_orthonormal_bases_the_sign_always_predicts_the_direction(sizes, name):
    result = analyze_tokens(CodingRates, decoder_with(sizes, name=name), *torch.randn(5, 16, 12))
    for row in result.tables["agreement"]:
        assert row["operator_agrees"] == row["measured"] == 5 * 2
        assert row["operator_change"] * row["step_size"] > 0
    assert findings(result)[0].startswith("For a small step the sign always predicts the direction")


def test_a_layer_that_moves_the_rate_against_its_sign_is_counted():
    class Contrary(MSSA):
        def forward(self, Z):
            return -super().forward(Z)

    decoder = decoder_with([0.1, 0.1])
    decoder.layers[1].operator.__class__ = Contrary
    result = analyze_tokens(CodingRates, decoder, *torch.randn(5, 16, 12))
    assert [row["operator_agrees"] for row in result.tables["agreement"]] == [10, 0]
    assert "against its sign in 10 of 20 cases" in findings(result)[0]


def test_an_update_that_is_too_long_overshoots_in_the_right_direction():
    result = analyze_tokens(CodingRates, decoder_with([-8.0]), *torch.randn(5, 16, 12))
    (row,) = result.tables["agreement"]
    assert (row["small_agrees"], row["operator_agrees"]) == (10, 0)
    assert "overshoots" in findings(result)[0]


def test_rates_before_the_norm_equal_those_of_the_trace():
    decoder, Z = decoder_with([0.4, -0.7]), torch.randn(16, 12)
    result = analyze_tokens(CodingRates, decoder, Z)
    trace = decoder.unroll(Z[None], (4, 4))
    P = torch.stack([step.P for step in trace.steps])
    for depth, at in enumerate(trace.Z):
        expected = projected_coding_rate(at[0], P, EPSILON)
        assert torch.allclose(torch.tensor(result.data["stream"]["mean"])[..., depth], expected, rtol=1e-4)
        own = torch.stack([projected_coding_rate(layer.norm(at[0]), layer.bases()) for layer in decoder.layers])
        assert torch.allclose(torch.tensor(result.data["normed"]["mean"])[..., depth], own, rtol=1e-4)


def test_changes_are_counted_at_the_layers_own_step():
    result = analyze_tokens(CodingRates, decoder_with([0.4, -0.7]), torch.randn(16, 12))
    for row in result.tables["agreement"]:
        layer = row["layer"] - 1
        for reading in ("stream", "normed", "stream_share", "normed_share"):
            before, after = torch.tensor(result.data[reading]["mean"])[layer, :, layer : layer + 2].unbind(-1)
            assert row[f"{reading}_agrees"] == int(((after - before) * row["step_size"] > 0).sum())
            assert row[f"{reading}_change"] == pytest.approx((after - before).mean().item(), abs=1e-4)


def test_every_layer_head_and_depth_has_a_row():
    result = analyze_tokens(CodingRates, decoder_with([0.4, -0.7, 0.2]), torch.randn(16, 12))
    rows = result.tables["rates"]
    assert len(rows) == 3 * 2 * 4
    assert {row["depth"] for row in rows} == {0, 1, 2, 3}
    assert all(0 <= row["stream_share_mean"] <= 1.0001 for row in rows)


def test_steps_between_the_mssa_steps_count_as_depth():
    decoder = create_decoder("ablation", 12, 3, attention="mssa", feedforward="ista", heads=2, head_dim=4)
    result = analyze_tokens(CodingRates, decoder, torch.randn(16, 12), name="ablation")
    assert result.data["depths"] == [0, 2]
    assert torch.tensor(result.data["stream"]["mean"]).shape == (2, 2, 4)


def test_cross_attention_adds_no_depth():
    result = analyze_tokens(CodingRates, decoder_with([0.4, -0.7], name="depict_ca"), torch.randn(16, 12))
    assert torch.tensor(result.data["stream"]["mean"]).shape == (2, 2, 3)


@pytest.mark.parametrize(("name", "reason"), [("segmenter", "no MSSA step"), ("linear", "has no steps")])
def test_decoders_without_mssa_are_skipped_with_a_reason(name, reason):
    result = analyze_tokens(CodingRates, create_decoder(name, 64, 3), torch.randn(16, 64), name=name)
    assert not result.numbers
    assert reason in result.skipped
