"""Decoders that follow the derivation exactly score 1; energies and ranks equal the planted ones."""

import itertools
import math

import pytest
import torch
from torch import nn

from depict import create_decoder
from depict.analysis.derivation import (
    Derivation,
    cosine,
    cosines_by_epsilon,
    energy_share,
    head_updates,
    through_norm,
)
from depict.analysis.text.derivation import findings, rank_decay
from depict.coding_rate import projected_coding_rate, projected_coding_rate_gradient
from depict.decoders.blocks import MSSABlock
from depict.operators import MSSA
from support.planted import analyze_tokens, orthonormal


class ExactStep(MSSA):
    """The gradient that MSSA stands for: step_size * d/dZ sum_h R(P_h^T Z)."""

    def forward(self, Z):
        return self.step_size * projected_coding_rate_gradient(Z[:, None], self.bases()).sum(1)


class GradientThroughTheNorm(MSSABlock):
    """X + step_size * d/dX sum_h R(P_h^T LayerNorm(X))."""

    def forward(self, X):
        with torch.enable_grad():
            X = X.detach().requires_grad_()
            objective = projected_coding_rate(self.norm(X)[:, None], self.bases()).sum()
            (gradient,) = torch.autograd.grad(objective, X)
        return X.detach() + self.operator.step_size.detach() * gradient


def decoder_with(size, name="depict_sa", layers=2, dim=12):
    decoder = create_decoder(name, dim, 3, layers=layers, heads=2, head_dim=4, step_size=size)
    for layer in decoder.layers:  # norms that are not trivial
        nn.init.uniform_(layer.norm.weight, 0.5, 1.5)
        nn.init.normal_(layer.norm.bias, std=0.3)
    return decoder


@pytest.mark.parametrize("size", [0.01, 0.5, -0.01])
@pytest.mark.parametrize("name", ["depict_sa", "depict_ca"])
def test_a_decoder_of_exact_gradient_steps_scores_cosine_one(size, name):
    decoder = decoder_with(size, name)
    for layer in decoder.layers:
        layer.operator.__class__ = ExactStep
    result = analyze_tokens(Derivation, decoder, *torch.randn(3, 16, 12))
    for row in result.tables["steps"]:
        sign = 1 if size > 0 else -1
        assert row["cosine"] == pytest.approx(sign, abs=1e-4)
        assert row["head_cosine"] == pytest.approx(sign, abs=1e-4)
        assert row["learned_change_nats"] == pytest.approx(row["exact_change_nats"], rel=1e-2)
        assert row["learned_change_nats"] * sign > 0
    assert result.numbers["cosine of update and exact gradient, signed by the step"] == pytest.approx(1, abs=1e-4)
    assert "nearly the exact gradient step" in findings(result)[0]


@pytest.mark.parametrize("size", [0.5, -0.1])
@pytest.mark.parametrize("name", ["depict_sa", "depict_ca", "depict_us"])
def test_the_exact_operator_scores_cosine_one_against_its_own_objective(size, name):
    decoder = create_decoder(name, 12, 3, layers=2, heads=2, head_dim=4, step_size=size, operator="exact")
    for layer in decoder.layers:
        nn.init.uniform_(layer.norm.weight, 0.5, 1.5)
        nn.init.normal_(layer.operator.log_c)
    result = analyze_tokens(Derivation, decoder, *torch.randn(2, 16, 12))
    sign = 1 if size > 0 else -1
    for row in result.tables["steps"]:
        assert row["cosine"] == pytest.approx(sign, abs=1e-5)
        assert row["head_cosine"] == pytest.approx(sign, abs=1e-5)
        assert row["learned_change_nats"] == pytest.approx(row["exact_change_nats"], rel=1e-3)
    assert findings(result)[0].startswith("Direction. A control: this decoder uses the exact operator")


def test_a_decoder_that_follows_the_gradient_through_its_norm_scores_one_there():
    decoder = decoder_with(0.1)
    for layer in decoder.layers:
        layer.__class__ = GradientThroughTheNorm
    result = analyze_tokens(Derivation, decoder, *torch.randn(2, 16, 12))
    for row in result.tables["steps"]:
        assert row["norm_cosine"] == pytest.approx(1, abs=1e-4)
        assert row["cosine"] < 0.999


def test_the_released_operator_is_not_the_exact_gradient():
    result = analyze_tokens(Derivation, decoder_with(0.5), *torch.randn(2, 16, 12))
    assert all(abs(row["cosine"]) < 0.99 for row in result.tables["steps"])


def test_the_gradient_through_the_norm_equals_a_finite_difference():
    norm = nn.LayerNorm(6)
    nn.init.uniform_(norm.weight, 0.5, 2)
    X, G = torch.randn(5, 6), torch.randn(5, 6)
    direction = torch.randn(5, 6)
    h = 1e-2
    rate = ((norm(X + h * direction) - norm(X - h * direction)) * G).sum() / (2 * h)  # directional derivative
    assert (through_norm(norm, X, G) * direction).sum().item() == pytest.approx(rate.item(), rel=1e-2)


def test_the_updates_of_the_heads_add_up_to_that_of_the_operator():
    operator, Y = MSSA(12, 3, 4), torch.randn(10, 12)
    with torch.no_grad():
        assert torch.allclose(head_updates(operator, Y).sum(0), operator(Y[None])[0], atol=1e-5)
    assert operator.heads == 3
    assert operator.P.shape == (12, 12)


def test_one_decomposition_gives_the_cosine_at_every_distortion():
    Y, P, U = torch.randn(10, 6).double(), torch.randn(2, 3, 6).double(), torch.randn(8, 6).double()
    epsilons = (0.05, 0.5, 5.0)
    exact = [cosine(U, projected_coding_rate_gradient(Y, P, epsilon).sum(0)[:8]) for epsilon in epsilons]
    assert cosines_by_epsilon(Y, P, U, epsilons) == pytest.approx(exact)
    bases = P.flatten(0, 1)
    assert cosines_by_epsilon(Y, P, U, (math.inf,)) == pytest.approx([cosine(U, (Y @ bases.mT @ bases)[:8])])


def test_the_best_exact_step_is_at_least_as_good_as_that_of_equal_length():
    for size in (0.5, -2.0):
        for row in analyze_tokens(Derivation, decoder_with(size), *torch.randn(2, 16, 12)).tables["steps"]:
            assert row["best_change_nats"] * size >= row["exact_change_nats"] * size
            assert row["best_change_nats"] * size > 0


def test_cosines_depend_on_direction_and_not_on_length():
    A = torch.randn(4, 5)
    assert cosine(A, 7 * A) == pytest.approx(1)
    assert cosine(A, -A) == pytest.approx(-1)
    assert cosine(A, 0 * A) == 0


def test_the_energy_inside_a_planted_subspace_is_known():
    O = orthonormal(6, 6)  # noqa: E741
    Z = 2 * O[:1] + O[3:4]  # 4 parts of 5 inside
    assert energy_share(Z, O[:2]) == pytest.approx(0.8)
    assert energy_share(Z, O) == pytest.approx(1)


def test_ranks_are_those_of_the_patches_at_every_depth():
    Z = (3 * orthonormal(2, 16, 1).mT @ orthonormal(2, 12)).float()
    result = analyze_tokens(Derivation, decoder_with(0.0, layers=3), Z)
    assert result.data["effective_ranks"][0] == pytest.approx([2] * 4, abs=1e-2)
    assert [row["rank_after"] for row in result.tables["steps"]] == pytest.approx([2] * 3, abs=1e-2)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ((121.5, 131.6, 110.2, 113.2), "it does not fall in layers 1 and 3; at the end it is 93 % of"),
        ((120.0, 30.0, 40.0, 20.0), "it does not fall in layer 2; at the end it is 17 % of"),
        ((100.0, 90.0, 80.0, 70.0), "it falls in every step, but not rapidly; at the end it is 70 % of"),
        ((100.0, 50.0, 20.0, 10.0), "it falls in every step, rapidly; at the end it is 10 % of"),
        ((100.0, 100.0, 101.0, 102.0), "it does not fall in layers 1, 2 and 3; at the end it is 102 % of"),
    ],
)
def test_the_text_on_the_rank_covers_every_step(ranks, message):
    rows = [
        {"layer": layer, "rank_before": before, "rank_after": after}
        for layer, (before, after) in enumerate(itertools.pairwise(ranks), start=1)
    ]
    assert f"Here {message} the initial rank" in rank_decay(rows, 192)


def test_bases_that_span_the_space_hold_all_energy():
    result = analyze_tokens(Derivation, decoder_with(0.5, dim=6), torch.randn(16, 6))
    for row in result.tables["steps"]:
        assert row["layer_energy"] == pytest.approx(1)
        assert 0 < row["head_energy"] < 1
        assert row["random_head_energy"] == pytest.approx(4 / 6)
    assert "hold all of it" in findings(result)[2]


@pytest.mark.parametrize(("name", "reason"), [("segmenter", "no MSSA step"), ("linear", "has no steps")])
def test_decoders_without_mssa_are_skipped_with_a_reason(name, reason):
    result = analyze_tokens(Derivation, create_decoder(name, 64, 3), torch.randn(16, 64), name=name)
    assert not result.numbers
    assert reason in result.skipped
