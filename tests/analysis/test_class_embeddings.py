"""Class embeddings across images: planted subspaces have known dimensions, cosines and scores."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from depict.analysis.class_embeddings import ClassEmbeddings, principal_subspace, union_of_subspaces
from depict.analysis.figures.class_embeddings import figures, gram_by_class, spread
from depict.analysis.runner import make_sample
from depict.analysis.text.class_embeddings import CAPTIONS, findings
from depict.data.scenes.dataset import Scenes
from support.tiny_model import tiny_model


def both_ways(*rows, copies=3):
    """Unit vectors in the directions of the rows and opposite to them, several of each."""
    vectors = torch.tensor(rows, dtype=torch.float64)
    return torch.cat([vectors, -vectors]).repeat(copies, 1)


def test_orthogonal_planes_score_1_and_have_two_dimensions():
    e = torch.eye(6, dtype=torch.float64).tolist()
    union = union_of_subspaces([both_ways(e[0], e[1]), both_ways(e[2], e[3]), both_ways(e[4], e[5])])
    assert union.dimensions == [2, 2, 2]
    assert union.score == pytest.approx(1)
    assert union.between == pytest.approx(0, abs=1e-12)
    # Of the 11 other vectors, 5 are on the same line and 6 on the orthogonal one.
    assert union.within == pytest.approx(5 / 11)
    assert union.chance == pytest.approx(1 - 2 / 6)


def test_lines_at_60_degrees_overlap_by_a_quarter():
    line = [math.cos(math.pi / 3), math.sin(math.pi / 3), 0.0]
    union = union_of_subspaces([both_ways([1.0, 0.0, 0.0]), both_ways(line)])
    assert union.dimensions == [1, 1]
    assert union.between == pytest.approx(0.5)
    assert union.score == pytest.approx(0.75)


def test_nested_subspaces_score_0():
    e = torch.eye(4, dtype=torch.float64).tolist()
    assert union_of_subspaces([both_ways(e[0]), both_ways(e[0], e[1])]).score == pytest.approx(0)


def test_the_dimension_holds_95_percent_of_the_energy():
    group = torch.diag(torch.tensor([math.sqrt(0.8), math.sqrt(0.15), math.sqrt(0.05)], dtype=torch.float64))
    assert len(principal_subspace(group)) == 2
    assert len(principal_subspace(group, 0.951)) == 3
    assert len(principal_subspace(group, 0.5)) == 1


def test_rotating_all_embeddings_changes_nothing():
    torch.manual_seed(0)
    groups = [torch.nn.functional.normalize(torch.randn(9, 12, dtype=torch.float64), dim=1) for _ in range(4)]
    rotation = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64))[0]
    before, after = union_of_subspaces(groups), union_of_subspaces([group @ rotation for group in groups])
    for name in ("within", "between", "score", "chance"):
        assert getattr(after, name) == pytest.approx(getattr(before, name))
    assert after.dimensions == before.dimensions


def test_random_subspaces_score_as_expected_by_chance():
    torch.manual_seed(0)
    groups = [torch.linalg.qr(torch.randn(40, 5, dtype=torch.float64))[0].T for _ in range(30)]
    union = union_of_subspaces(groups)
    assert union.score == pytest.approx(union.chance, abs=0.01)


@pytest.mark.parametrize("decoder", ["depict_sa", "depict_ca", "segmenter"])
def test_embeddings_are_grouped_by_the_classes_that_an_image_has(decoder):
    model, scenes = tiny_model(decoder), Scenes(None, "val")
    analysis = ClassEmbeddings(model)
    samples = [make_sample(model, scenes, index) for index in range(6)]
    for sample in samples:
        analysis.update(sample)
    result = analysis.compute()
    rows = {row["class"]: row["images"] for row in result.tables["classes"]}
    for index, name in enumerate(model.classes):
        images = sum(bool((sample.patch_labels == index).any()) for sample in samples)
        assert rows.get(name) == (images if images >= 2 else None)
    assert result.data["all classes in all images"]["classes"] == list(model.classes)
    assert all(value is not None and value >= 0 for value in result.numbers.values())
    assert set(figures(result)) == set(CAPTIONS)
    assert f"{result.numbers['union-of-orthogonal-subspaces score']:.3f}" in findings(result)[0]


def test_without_truth_the_prediction_decides_which_classes_are_present():
    model = tiny_model()
    analysis = ClassEmbeddings(model)
    sample = dataclasses.replace(make_sample(model, Scenes(None, "val"), 0), labels=None, patch_labels=None)
    analysis.update(sample)
    assert analysis.present[0].nonzero().flatten().tolist() == sample.trace.masks[0].argmax(0).unique().tolist()
    assert "Fewer than two classes" in analysis.compute().skipped


def test_a_linear_decoder_has_no_class_embeddings():
    model = tiny_model("linear")
    analysis = ClassEmbeddings(model)
    analysis.update(make_sample(model, Scenes(None, "val"), 0))
    result = analysis.compute()
    assert not result.numbers
    assert result.skipped == "The decoder 'linear' has no class embeddings that depend on the image."


def test_labels_of_classes_with_few_embeddings_do_not_overlap():
    counts = [100, 80, *[3] * 26, 1, 1]
    figure = gram_by_class([torch.eye(4)[[0] * count] for count in counts], [f"class {index}" for index in range(30)])
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    [axes, _] = figure.axes
    boxes = [label.get_window_extent(renderer) for label in axes.get_yticklabels()]
    assert len(boxes) == 30
    assert all(above.y0 >= below.y1 for above, below in itertools.pairwise(boxes))
    assert boxes[-1].y0 >= axes.get_window_extent(renderer).y0 - 1  # a pixel


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.floats(0.1, 5))
def test_spread_places_keep_their_order_and_distance(places, gap):
    moved = spread(np.array(sorted(places)), gap, 100)
    assert np.all(np.diff(moved) >= gap - 1e-9) and moved[-1] <= 100
    apart = [0.0, gap * 1.5, gap * 3]
    assert spread(np.array(apart), gap, 1000).tolist() == apart
