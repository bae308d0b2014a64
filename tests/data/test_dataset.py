"""Recipes and parts of data sets."""

import itertools

import pytest

from depict.data import DATASETS, dataset_class
from depict.data.dataset import Recipe, every_nth, hold_out, random_subset
from depict.data.scenes.dataset import Scenes


@pytest.fixture
def scenes():
    return Scenes(None, "train", 32)


def test_fewer_samples_of_a_seed_are_part_of_more(scenes):
    few, many = random_subset(scenes, 5, seed=3), random_subset(scenes, 9, seed=3)
    assert few.indices == many.indices[:5]
    assert random_subset(scenes, 5, seed=4).indices != few.indices


def test_a_part_reads_and_names_the_samples_of_the_whole(scenes):
    part = random_subset(scenes, 4, seed=0)
    image, labels = part.read(2)
    expected_image, expected_labels = scenes.read(part.indices[2])
    assert image.equal(expected_image)
    assert labels.equal(expected_labels)
    assert part.name_of(2) == scenes.name_of(part.indices[2])


def test_what_is_held_out_is_the_end_of_a_sequence(scenes):
    kept, held = hold_out(scenes, 0.25)
    assert kept.indices + held.indices == list(range(len(scenes)))
    assert len(held) == round(len(scenes) / 4)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.25, 0.7, 1.0])
def test_what_is_held_out_of_unrelated_images_is_evenly_spaced(scenes, share):
    scenes.sequential = False
    kept, held = hold_out(scenes, share)
    assert sorted(kept.indices + held.indices) == list(range(len(scenes)))
    assert len(held) == round(share * len(scenes))
    gaps = {later - earlier for earlier, later in itertools.pairwise(held.indices)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_every_fourth_image_is_a_quarter(scenes):
    part = every_nth(scenes, 4)
    assert part.indices == list(range(0, len(scenes), 4))
    assert every_nth(part, 2).name_of(1) == scenes.name_of(8)


def test_recipes_are_the_published_ones():
    context = Recipe(short_edge=520, max_aspect=8, crop=480, epochs=256, batch=16, lr=1e-3, stride=320)
    published = {
        "ade20k": Recipe(short_edge=512, max_aspect=4, crop=512, epochs=64, batch=8, lr=1e-3, stride=512),
        "cityscapes": Recipe(short_edge=1024, max_aspect=2, crop=768, epochs=216, batch=8, lr=1e-2, stride=512),
        "pascal_context": context,
        "pascal_context_59": context,
    }
    assert {name: dataset_class(name).recipe for name in published} == published
    assert all(dataset_class(name).recipe.stride is None for name in DATASETS if name not in published)
