"""Queries of classes: planted ones are found, counted and drawn."""

import math

import numpy as np
import pytest
import torch

from depict.analysis.base import Sample
from depict.analysis.figures.queries import figures, panels
from depict.analysis.queries import QueryMap, QueryUse, winning_queries
from depict.analysis.runner import choose_analyses, make_sample
from depict.analysis.text.queries import CAPTIONS, findings, verdict
from depict.data.scenes.dataset import Scenes
from depict.decoders import create_decoder
from support.planted import analyze_tokens
from support.tiny_model import tiny_model, tiny_neck_model

NOT_FOR_QUERIES = ("class_embeddings", "low_rank", "gradient_terms", "class_directions", "levels")


def planted_decoder():
    """Four queries along the axes of the space: two of class 0, one of class 1, one of no object."""
    options = {"layers": 1, "heads": 1, "head_dim": 1, "cross_layers": 1, "cross_heads": 1, "cross_head_dim": 1}
    decoder = create_decoder("depict_mask", 4, 2, queries=4, step_size=0.0, **options)
    with torch.no_grad():
        decoder.short_queries.copy_(torch.eye(4) / 2)
        decoder.classify.bias.zero_()
        targets = torch.tensor([[9.0, 0, 0], [9.0, 0, 0], [0, 9.0, 0], [0, 0, 9.0]])
        decoder.classify.weight.copy_(torch.linalg.lstsq(decoder.query_norm(torch.eye(4)), targets).solution.T)
    return decoder


def test_a_patch_belongs_to_the_query_that_adds_most_to_its_class():
    masks = torch.tensor([[3.0, -3.0, 3.0], [-3.0, 2.0, 5.0], [5.0, 5.0, -5.0]])
    classes = 9 * torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0]])
    assert winning_queries(masks, classes, torch.tensor([0, 0, 0])).tolist() == [0, 1, 1]
    assert winning_queries(masks, classes, torch.tensor([1, 1, 1])).tolist() == [2, 2, 2]


def test_queries_and_connected_parts_of_each_class_are_counted():
    axes = torch.eye(4)
    first = axes[[0, 0, 1, 1, 2, 0, 0, 1, 1]]  # class 0 in two parts, half of it by each of two queries
    second = axes[[2, 2, 2, 0, 0, 0, 2, 2, 2]]
    result = analyze_tokens(QueryUse, planted_decoder(), first, second, name="depict_mask")
    rows = {(row["image"], row["class"], row["patches"]): row for row in result.tables["images"]}
    mixed = rows["image", "class 0", 8]
    assert mixed["effective_queries"] == pytest.approx(2)
    assert (mixed["queries_in_use"], mixed["connected_parts"]) == (2, 2)
    assert rows["image", "class 1", 6]["connected_parts"] == 2
    numbers = list(result.numbers.values())
    assert numbers[0] == pytest.approx((8 * 2 + 1 + 3 + 6) / 18)
    assert numbers[3] == 75  # three of the four classes in images
    assert numbers[-1] == 3  # "no object" wins nothing


def test_shades_of_a_class_are_given_by_size_in_each_image():
    labels, queries = np.array([[0, 0, 0, 1]]), np.array([[7, 5, 5, 5]])
    image = QueryMap(np.zeros((1, 4, 3), np.uint8), (1, 4), (1.0, 4.0), labels, queries, [])
    drawn = panels(image, [(100, 0, 0), (0, 100, 0)])["queries"][0].tolist()
    assert drawn[1] == drawn[2] == [100, 0, 0]
    assert drawn[0] != [100, 0, 0]
    assert drawn[3] == [0, 100, 0]


def test_padding_is_neither_counted_nor_drawn():
    model = tiny_neck_model("depict_mask")  # padded to 32 pixels, masks of stride 4
    image = np.random.default_rng(0).integers(0, 255, (20, 40, 3), dtype=np.uint8)
    trace = model.unroll(image)
    analysis = QueryUse(model)
    analysis.update(Sample("image", image, None, trace, None))
    [drawn] = analysis.measured.images
    rows, columns = (math.ceil(cells) for cells in model.layout(20, 40).cells(model.stride))
    assert (rows, columns) < trace.grid
    assert drawn.labels.shape == drawn.queries.shape == drawn.masks[0].mask.shape == (rows, columns)
    assert analysis.measured.counts.sum() == rows * columns


def test_the_mask_of_a_query_is_named_by_a_class_even_if_no_object_is_more_likely():
    decoder = planted_decoder()
    with torch.no_grad():
        decoder.classify.bias.copy_(torch.tensor([0.0, 0.0, 20.0]))
    result = analyze_tokens(QueryUse, decoder, torch.eye(4)[[0, 0, 2, 2]], name="depict_mask")
    assert {mask.label for image in result.measured.images for mask in image.masks} <= {0, 1}


def test_figures_and_words_of_a_model():
    model = tiny_model("depict_mask")
    analysis = QueryUse(model)
    for index in range(2):
        analysis.update(make_sample(model, Scenes(None, "val"), index))
    result = analysis.compute()
    assert set(figures(result)) == set(CAPTIONS)
    assert len(findings(result)) == 2
    assert "queries for the class of a patch" in verdict(result).number


def test_decoders_without_queries_are_skipped_with_a_reason():
    analysis = QueryUse(tiny_model())
    analysis.update(make_sample(tiny_model(), Scenes(None, "val"), 0))
    assert analysis.compute().skipped == "The decoder 'depict_sa' has no queries: each class has one mask."


def test_every_other_analysis_takes_a_model_with_queries_or_says_why_not():
    model = tiny_model("depict_mask")
    sample = make_sample(model, Scenes(None, "val"), 0)
    for analysis in choose_analyses(None):
        running = analysis(model)
        running.update(sample)
        result = running.compute()
        assert bool(result.skipped) == (analysis.name in NOT_FOR_QUERIES)
