"""Directions of classes: planted ones are found, and what the squares decide is counted."""

import dataclasses

import pytest
import torch

from depict.analysis.class_directions import (
    ClassDirections,
    direction_cosines,
    effective_number,
    strongest_directions,
)
from depict.analysis.figures.class_directions import figures
from depict.analysis.runner import make_sample
from depict.analysis.text.class_directions import CAPTIONS, findings, verdict
from depict.data.scenes.dataset import Scenes
from depict.decoders import create_decoder
from depict.model import SegmentationModel
from support.planted import analyze_tokens
from support.tiny_model import tiny_model


def planted_decoder(weights=((1.0, 2.0), (1.0, -1.0)), dim=4):
    """Two classes with two directions each: the axes of the space."""
    decoder = create_decoder("linear", dim, 2, head="subspaces", directions=2)
    with torch.no_grad():
        decoder.class_embeddings.zero_()
        decoder.head.directions.copy_(torch.eye(dim).view(2, 2, dim))
        decoder.head.weights.copy_(torch.tensor(weights))
    return decoder


def test_a_patch_along_a_direction_belongs_to_it():
    decoder = planted_decoder()
    energies = decoder.unroll(torch.eye(4)[None], (2, 2)).energies[0]
    assert energies.shape == (4, 2, 2)
    assert strongest_directions(energies, torch.tensor([0, 0, 1, 1])).tolist() == [0, 1, 0, 1]
    assert energies[0, 0].tolist() == pytest.approx([4.0, 0.0])  # z has length 2
    assert energies[3, 1].tolist() == pytest.approx([0.0, -4.0])


def test_classes_directions_and_changes_are_counted():
    result = analyze_tokens(ClassDirections, planted_decoder(), torch.eye(4))
    rows = {row["class"]: row for row in result.data["classes"]}
    first, second = rows.values()
    # The last axis has a negative weight in class 1, so class 0 gets it, along no direction of its own.
    assert (first["patches"], second["patches"]) == (3, 1)
    assert first["shares"] == pytest.approx([2 / 3, 1 / 3])
    assert second["shares"] == [1.0, 0.0]
    assert first["added_by_squares"] == pytest.approx((4 + 8 + 0) / 3)
    numbers = result.numbers
    assert numbers["patches that get another class without the squares (%)"] == 25  # only the third prefers class 1
    assert numbers["weights above 0 (%)"] == 75
    assert numbers["mean |cosine| of two directions of a class"] == pytest.approx(0, abs=1e-9)


def test_the_effective_number_counts_directions_in_use():
    counts = torch.tensor([[4.0, 4, 4, 4], [7, 0, 0, 0], [5, 5, 0, 0]])
    assert effective_number(counts).tolist() == pytest.approx([4, 1, 2])


def test_cosines_are_those_of_all_pairs():
    directions = torch.randn(3, 2, 5)
    flat = torch.nn.functional.normalize(directions.flatten(0, 1), dim=1)
    within, between = [], []
    for i in range(6):
        for j in range(6):
            if i != j:
                (within if i // 2 == j // 2 else between).append(abs(float(flat[i] @ flat[j])))
    expected = (sum(within) / len(within), sum(between) / len(between))
    assert direction_cosines(directions) == pytest.approx(expected)
    assert direction_cosines(torch.randn(1, 1, 5)) == (None, None)


@pytest.mark.parametrize("name", ["depict_us", "depict_sa", "segmenter", "linear"])
def test_every_decoder_with_the_head_has_figures_and_words(name):
    plain = tiny_model(name)
    decoder = dataclasses.replace(plain.config.decoder, head="subspaces", logit_gain=None)
    model = SegmentationModel(dataclasses.replace(plain.config, decoder=decoder), plain.classes, plain.palette).eval()
    analysis = ClassDirections(model)
    for index in range(2):
        analysis.update(make_sample(model, Scenes(None, "val"), index))
    result = analysis.compute()
    assert set(figures(result)) == set(CAPTIONS)
    assert len(findings(result)) == 2
    assert "directions in use; without them" in verdict(result).number
    assert all(value is not None for value in result.numbers.values())
    assert sum(row["patches"] for row in result.data["classes"]) == result.data["patches"]


def test_other_heads_are_skipped_with_a_reason():
    analysis = ClassDirections(tiny_model())
    analysis.update(make_sample(tiny_model(), Scenes(None, "val"), 0))
    assert analysis.compute().skipped == "The head 'cosine' has no directions: only the head 'subspaces' has them."
