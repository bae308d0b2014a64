"""Reading cached features: tokens with the labels that belong to them, in the order of a schedule."""

from pathlib import Path

import numpy as np
import pytest
import torch

from depict import UserError
from depict.data.loading import Schedule
from depict.training.feature_cache import View, feature_batches
from support.features import FewScenes, by_hand, opened, photographs, small


@pytest.mark.parametrize("image_size", [(32, 48), (30, 45)])
def test_the_cache_holds_what_the_encoder_returns_for_every_image_and_its_mirror_image(tmp_path, image_size):
    model, dataset = small(image_size), photographs(tmp_path / "data")
    cache = opened(model, dataset, tmp_path / "cache", batch=3)
    assert len(cache) == len(dataset) == 4
    for index in range(4):
        for mirror in (False, True):
            tokens, labels, grid = by_hand(model, dataset, index, mirror)
            batch = cache.batch([index], [View(mirror)])
            assert cache.grid == grid
            assert (batch.tokens.dtype, batch.labels.dtype) == (torch.float32, torch.uint8)
            torch.testing.assert_close(batch.tokens[0], tokens, rtol=2e-3, atol=2e-3)
            assert torch.equal(batch.labels[0], labels)


def test_a_decoder_gives_the_same_masks_from_the_cache_as_from_the_image(tmp_path):
    model, dataset = small((32, 32)), FewScenes(None, "train")
    cache = opened(model, dataset, tmp_path)
    images = torch.stack([model.normalize(dataset.read(index)[0]) for index in range(5)])
    tokens, labels, _, grid = cache.batch([0, 1, 2, 3, 4], [View()] * 5)
    torch.testing.assert_close(model.decoder(tokens, grid), model.masks(images), rtol=5e-3, atol=5e-3)
    assert all(torch.equal(labels[index], dataset.read(index)[1]) for index in range(5))


@pytest.mark.parametrize("image_size", [(32, 48), (30, 45)])
def test_a_part_of_the_grid_comes_with_the_labels_of_its_cells(tmp_path, image_size):
    model, dataset = small(image_size), photographs(tmp_path / "data")
    cache = opened(model, dataset, tmp_path / "cache")
    assert (cache.grid, cache.cell) == ((4, 6), (8, 8))
    for view in (View(), View(True), View(False, 1, 2), View(True, 2, 3)):
        whole = cache.batch([0, 1, 2, 3], [View(view.mirrored)] * 4)
        part = cache.batch([0, 1, 2, 3], [view] * 4, (2, 3))
        cells = whole.tokens.view(4, 4, 6, -1)[:, view.top : view.top + 2, view.left : view.left + 3]
        assert torch.equal(part.tokens, cells.flatten(1, 2))
        padding = (0, 48 - image_size[1], 0, 32 - image_size[0])
        pixels = torch.nn.functional.pad(whole.labels, padding, value=255)
        top, left = 8 * view.top, 8 * view.left
        assert torch.equal(part.labels, pixels[:, top : top + 16, left : left + 24])
        assert part.grid == (2, 3)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads the memory maps of Linux")
def test_a_cache_is_mapped_read_only_so_that_it_may_exceed_the_memory(tmp_path):
    cache = opened(small(), FewScenes(None, "train"), tmp_path)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(cache.folder) in line]
    assert {Path(file).name for *_, file in maps} == {"tokens.npy", "labels.npy", "sizes.npy"}
    assert {access for _, access, *_ in maps} == {"r--s"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return opened(small(), FewScenes(None, "train"), tmp_path_factory.mktemp("cache"))


def test_batches_follow_the_schedule_and_mirror_half_of_the_samples(cache):
    schedule = Schedule(images=5, batch=2, epochs=40, seed=3)
    batches = list(feature_batches(cache, schedule))
    assert [batch.indices.tolist() for batch in batches] == [[index for _, index in step] for step in schedule]
    mirrored = 0
    for batch in batches:
        for tokens, index in zip(batch.tokens, batch.indices, strict=True):
            plain, mirror = (torch.equal(tokens, cache.tokens[index, side].float()) for side in (0, 1))
            assert plain != mirror
            mirrored += mirror
    assert 70 < mirrored < 130


def test_nothing_is_mirrored_where_left_and_right_differ(cache):
    for batch in feature_batches(cache, Schedule(images=5, batch=2, epochs=10), flip=False):
        assert torch.equal(batch.tokens, cache.tokens[batch.indices, 0].float())


def test_crops_are_anywhere_on_the_image_and_never_on_its_padding_alone(tmp_path):
    cache = opened(small(), photographs(tmp_path / "data"), tmp_path / "cache")
    generator, seen = np.random.default_rng(0), set()
    for _ in range(200):
        seen.add(cache.random_view(1, (2, 3), True, generator))  # 16 x 48 of 32 x 48 pixels: half of the rows
    assert seen == {View(mirrored, 0, left) for mirrored in (False, True) for left in range(4)}
    shapes = {(batch.grid, batch.tokens.shape[1]) for batch in feature_batches(cache, Schedule(4, 2, 3), crop=0.5)}
    assert shapes == {((2, 3), 6)}


@pytest.mark.parametrize(
    ("crop", "shapes"), [(None, ((0, 24, 64), (0, 32, 48))), (0.7, ((0, 12, 64), (0, 24, 32)))], ids=["whole", "crop"]
)
@pytest.mark.parametrize("world", [2, 3])
def test_the_batches_of_several_processes_make_up_those_of_one_and_can_start_anywhere(cache, world, crop, shapes):
    whole = list(feature_batches(cache, Schedule(5, 2, 3, seed=1), crop=crop))
    again = [
        list(feature_batches(cache, Schedule(5, 2, 3, seed=1, rank=rank, world=world, start=4), crop=crop))
        for rank in range(world)
    ]
    for step, batch in enumerate(whole[4:]):
        order = batch.indices.argsort()
        shares = [torch.cat(parts) for parts in zip(*(share[step][:3] for share in again), strict=True)]
        assert torch.equal(shares[2].sort().values, batch.indices[order])
        for mine, theirs in zip(shares, batch[:3], strict=True):
            assert torch.equal(mine[shares[2].argsort()], theirs[order])
    empty = again[-1][1]
    assert (empty.tokens.shape, empty.labels.shape) == shapes


def test_another_seed_mirrors_other_samples(cache):
    first, second = (next(feature_batches(cache, Schedule(5, 5, 1, seed=seed))) for seed in (0, 1))
    first, second = (batch.tokens[batch.indices.argsort()] for batch in (first, second))
    assert not torch.equal(first, second)


def test_mirror_images_that_are_not_cached_are_refused(tmp_path):
    plain = opened(small(), FewScenes(None, "train"), tmp_path, mirrored=False)
    with pytest.raises(UserError, match="has no mirror images"):
        next(feature_batches(plain, Schedule(5, 2, 1)))
    assert len(list(feature_batches(plain, Schedule(5, 2, 1), flip=False))) == 3


def test_a_schedule_for_another_number_of_images_is_refused(cache):
    with pytest.raises(UserError, match="a schedule of 6 images does not fit the 5"):
        next(feature_batches(cache, Schedule(6, 2, 1)))
