"""Class embeddings across images: planted subspaces have known dimensions, cosines and scores."""

import dataclasses
import math

import pytest
import torch

from depict.analysis.class_embeddings import ClassEmbeddings, subspace, union_of_subspaces
from depict.analysis.runner import make_sample
from depict.data.scenes.dataset import Scenes
from support.tiny_model import tiny_model


def evenly_spaced(*rows, copies=3):
    """Unit vectors along the rows and back, several of each."""
    found = torch.tensor(rows, dtype=torch.float64)
    return torch.cat([found, -found]).repeat(copies, 1)


def test_orthogonal_planes_score_1_and_have_two_dimensions():
    e = torch.eye(6, dtype=torch.float64).tolist()
    union = union_of_subspaces([evenly_spaced(e[0], e[1]), evenly_spaced(e[2], e[3]), evenly_spaced(e[4], e[5])])
    assert union.dimensions == [2, 2, 2]
    assert union.score == pytest.approx(1)
    assert union.between == pytest.approx(0, abs=1e-12)
    # Of the 11 other vectors 5 lie on the same line and 6 on the orthogonal one.
    assert union.within == pytest.approx(5 / 11)
    assert union.chance == pytest.approx(1 - 2 / 6)


def test_lines_at_60_degrees_overlap_by_a_quarter():
    line = [math.cos(math.pi / 3), math.sin(math.pi / 3), 0.0]
    union = union_of_subspaces([evenly_spaced([1.0, 0.0, 0.0]), evenly_spaced(line)])
    assert union.dimensions == [1, 1]
    assert union.between == pytest.approx(0.5)
    assert union.score == pytest.approx(0.75)


def test_a_subspace_in_another_scores_0():
    e = torch.eye(4, dtype=torch.float64).tolist()
    assert union_of_subspaces([evenly_spaced(e[0]), evenly_spaced(e[0], e[1])]).score == pytest.approx(0)


def test_the_dimension_holds_95_percent_of_the_energy():
    group = torch.diag(torch.tensor([math.sqrt(0.8), math.sqrt(0.15), math.sqrt(0.05)], dtype=torch.float64))
    assert len(subspace(group)) == 2
    assert len(subspace(group, 0.951)) == 3
    assert len(subspace(group, 0.5)) == 1


def test_turning_all_embeddings_changes_nothing():
    torch.manual_seed(0)
    groups = [torch.nn.functional.normalize(torch.randn(9, 12, dtype=torch.float64), dim=1) for _ in range(4)]
    turn = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64))[0]
    before, after = union_of_subspaces(groups), union_of_subspaces([group @ turn for group in groups])
    for name in ("within", "between", "score", "chance"):
        assert getattr(after, name) == pytest.approx(getattr(before, name))
    assert after.dimensions == before.dimensions


def test_random_subspaces_score_as_chance_says():
    torch.manual_seed(0)
    groups = [torch.linalg.qr(torch.randn(40, 5, dtype=torch.float64))[0].T for _ in range(30)]
    union = union_of_subspaces(groups)
    assert union.score == pytest.approx(union.chance, abs=0.01)


@pytest.mark.parametrize("decoder", ["depict_sa", "depict_ca", "segmenter"])
def test_embeddings_are_grouped_by_the_classes_that_an_image_has(decoder):
    model, scenes = tiny_model(decoder), Scenes(None, "val")
    question = ClassEmbeddings(model)
    samples = [make_sample(model, scenes, index) for index in range(6)]
    for sample in samples:
        question.update(sample)
    result = question.compute()
    rows = {row["class"]: row["images"] for row in result.tables["classes"]}
    for index, name in enumerate(model.classes):
        holding = sum(bool((sample.patch_labels == index).any()) for sample in samples)
        assert rows.get(name, holding if holding < 2 else None) == holding
    assert result.data["all classes in all images"]["classes"] == list(model.classes)
    assert all(value is not None and value >= 0 for value in result.numbers.values())
    assert set(result.figures) == {"gram"}


def test_without_truth_the_prediction_says_which_classes_are_there():
    model = tiny_model()
    question = ClassEmbeddings(model)
    sample = dataclasses.replace(make_sample(model, Scenes(None, "val"), 0), labels=None, patch_labels=None)
    question.update(sample)
    assert question.present[0].nonzero().flatten().tolist() == sample.trace.masks[0].argmax(0).unique().tolist()
    assert "Fewer than two classes" in question.compute().skipped


def test_a_linear_decoder_has_none():
    model = tiny_model("linear")
    question = ClassEmbeddings(model)
    question.update(make_sample(model, Scenes(None, "val"), 0))
    result = question.compute()
    assert not result.numbers
    assert result.skipped == "The decoder 'linear' has no class embeddings."
