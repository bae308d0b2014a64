"""The matching loss, against full enumeration and loops over pixels."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from depict import UserError
from depict.data.dataset import IGNORE
from depict.decoders import matching
from depict.decoders.matching import TERMS, Queries, connected_components, find_segments, match, matching_loss

LOSS = TERMS["maskformer"]


def random_queries(steps=1, batch=1, K=4, classes=3, grid=(2, 3), seed=0):
    g = torch.Generator().manual_seed(seed)
    masks = 3 * torch.randn(steps, batch, K, *grid, generator=g)
    return Queries(masks, 2 * torch.randn(steps, batch, K, classes + 1, generator=g))


def random_labels(batch=1, size=(4, 6), classes=3, ignored=0.2, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (batch, *size), generator=g, dtype=torch.uint8)
    return labels.masked_fill(torch.rand(batch, *size, generator=g) < ignored, IGNORE)


def pair_by_loops(mask, labels, value, focal):
    """Loss of the pixels and Dice loss of a mask, enlarged to the pixels of labels, for the class `value`, by loops."""
    enlarged = F.interpolate(mask[None, None], size=labels.shape, mode="nearest")[0, 0]
    pixels = overlap = size = inside = valid = 0.0
    for m, label in zip(enlarged.flatten(), labels.flatten().tolist(), strict=True):
        if label == IGNORE:
            continue
        p = m.sigmoid()
        likelihood = p if label == value else 1 - p
        weight = (0.25 if label == value else 0.75) * (1 - likelihood) ** 2 if focal else 1
        pixels += -weight * likelihood.log()
        overlap += p * (label == value)
        size += p
        inside += label == value
        valid += 1
    return pixels / valid, 1 - (2 * overlap + 1) / (size + inside + 1)


def loss_by_enumeration(masks, classes, labels, weights, focal):
    """The loss of one image: every assignment of queries to the (largest) classes in the labels is tried."""
    of_class, of_pixels, of_dice = weights
    K, none = len(masks), classes.shape[-1] - 1
    sizes = dict(zip(*(X.tolist() for X in labels[labels != IGNORE].unique(return_counts=True)), strict=True))
    present = sorted(sizes, key=lambda c: -sizes[c])[:K]
    pairs = {(k, c): pair_by_loops(masks[k], labels, c, focal) for k in range(K) for c in present}
    probability = classes.softmax(-1)

    def cost(chosen):
        return sum(of_masks(pair) - of_class * probability[pair] for pair in zip(chosen, present, strict=True))

    def of_masks(pair):
        return of_pixels * pairs[pair][0] + of_dice * pairs[pair][1]

    best = min(itertools.permutations(range(K), len(present)), key=cost)
    targets = dict(zip(best, present, strict=True))
    importance = [1.0 if k in targets else 0.1 for k in range(K)]
    entropy = sum(-w * classes[k].log_softmax(-1)[targets.get(k, none)] for k, w in enumerate(importance))
    return of_class * entropy / sum(importance) + sum(map(of_masks, targets.items())) / len(present)


@pytest.mark.parametrize(
    ("terms", "weights", "focal"), [("maskformer", (1, 20, 1), True), ("mask2former", (2, 5, 5), False)]
)
@given(seed=st.integers(0, 10**6), K=st.integers(1, 5), ignored=st.sampled_from([0.0, 0.3, 0.9]))
def test_the_loss_is_that_of_the_best_of_all_assignments(terms, weights, focal, seed, K, ignored):
    queries, labels = random_queries(K=K, seed=seed), random_labels(ignored=ignored, seed=seed)
    if (labels == IGNORE).all():
        return
    expected = loss_by_enumeration(queries.masks[0, 0], queries.classes[0, 0], labels[0], weights, focal)
    assert torch.allclose(matching_loss(queries, labels, (2, 2), TERMS[terms]), expected, rtol=1e-4)


def test_perfect_masks_and_classes_in_any_order_have_almost_no_loss():
    labels = torch.tensor([[[0, 0, 1], [2, IGNORE, 1]]], dtype=torch.uint8)
    masks = torch.stack([torch.where(labels[0] == c, 20.0, -20.0) for c in (2, 9, 0, 1)])[None, None]
    classes = 20 * F.one_hot(torch.tensor([2, 3, 0, 1]), 4).float()[None, None]
    assert matching_loss(Queries(masks, classes), labels, (1, 1), LOSS) < 1e-5
    found = find_segments(labels[0], (2, 3), (1, 1), 4, 3)
    queries, segments = match(masks[0, 0].flatten(1), classes[0, 0], found, LOSS)
    assert dict(zip(queries.tolist(), segments.tolist(), strict=True)) == {2: 0, 3: 1, 0: 2}


def test_ignored_pixels_change_nothing():
    queries, labels = random_queries(grid=(4, 6)), random_labels(ignored=0.3)
    queries.masks.requires_grad_()
    matching_loss(queries, labels, (1, 1), LOSS).backward()
    assert (queries.masks.grad[..., labels[0] == IGNORE] == 0).all()
    assert (queries.masks.grad[..., labels[0] != IGNORE] != 0).any()


def test_an_image_with_one_class_gives_one_query_a_segment_and_the_others_no_object():
    queries, labels = random_queries(), torch.full((1, 4, 6), 1, dtype=torch.uint8)
    queries.classes.requires_grad_()
    matching_loss(queries, labels, (2, 2), LOSS).backward()
    pulled = (-queries.classes.grad[0, 0]).argmax(-1).tolist()  # each query toward its target
    assert sorted(pulled) == [1, 3, 3, 3]


def test_images_without_labels_add_nothing_and_leave_every_parameter_a_gradient():
    queries = random_queries(batch=2)
    labels = torch.cat([random_labels(), torch.full((1, 4, 6), IGNORE, dtype=torch.uint8)])
    alone = Queries(queries.masks[:, :1], queries.classes[:, :1])
    assert torch.allclose(
        matching_loss(queries, labels, (2, 2), LOSS), matching_loss(alone, labels[:1], (2, 2), LOSS) / 2
    )
    for tensor in queries:
        tensor.requires_grad_()
    loss = matching_loss(queries, torch.full_like(labels, IGNORE), (2, 2), LOSS)
    loss.backward()
    assert loss == 0
    assert all((tensor.grad == 0).all() for tensor in queries)


def test_of_more_segments_than_queries_the_largest_are_kept():
    labels = torch.tensor([[0, 1, 1, 2, 2, 2]], dtype=torch.uint8)
    found = find_segments(labels, (1, 6), (1, 1), 2, 3)
    assert found.classes.tolist() == [2, 1]
    assert found.labeled.tolist() == [1] * 6  # pixels of the class that was left out still belong to no other


def test_the_loss_of_a_batch_is_the_mean_of_its_images_and_the_sum_of_its_steps():
    queries, labels = random_queries(steps=2, batch=3), random_labels(batch=3)
    parts = [
        matching_loss(
            Queries(queries.masks[s : s + 1, b : b + 1], queries.classes[s : s + 1, b : b + 1]), each, (2, 2), LOSS
        )
        for s in range(2)
        for b, each in enumerate(labels.split(1))
    ]
    assert torch.allclose(matching_loss(queries, labels, (2, 2), LOSS), sum(parts) / 3)


def test_the_grid_covers_the_labels_padded_to_the_multiple():
    labels = torch.zeros(3, 5, dtype=torch.uint8)
    assert find_segments(labels, (2, 3), (4, 6), 9, 1).inside.tolist() == [[4, 4, 2, 2, 2, 1]]


def test_components_are_connected_regions_of_a_class_and_keep_its_name():
    labels = torch.tensor([[0, 1, 1], [1, 0, 255], [0, 255, 1]], dtype=torch.uint8)
    numbers = connected_components(labels)
    assert numbers[0, 0] == numbers[1, 1] == numbers[2, 0]  # diagonal neighbors
    assert numbers[0, 1] == numbers[0, 2] == numbers[1, 0]
    assert numbers[2, 2] not in (numbers[0, 1], numbers[0, 0])
    found = find_segments(labels, (3, 3), (1, 1), 9, 2, "components")
    assert sorted(zip(found.classes.tolist(), found.inside.sum(1).tolist(), strict=True)) == [(0, 3), (1, 1), (1, 3)]


def test_values_that_are_not_finite_reach_the_loss():
    queries = random_queries()
    queries.masks[0, 0, 1] = torch.nan
    assert matching_loss(queries, random_labels(), (2, 2), LOSS).isnan()


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (torch.zeros(2, 4, 6, dtype=torch.uint8), {}, r"labels must be \(1, H, W\), not \(2, 4, 6\)"),
        (torch.full((1, 4, 6), 3, dtype=torch.uint8), {}, "labels must be below the 3 classes"),
        (torch.zeros(1, 4, 6, dtype=torch.uint8), {"kind": "objects"}, "unknown segments 'objects'. Known: classes"),
    ],
)
def test_what_does_not_fit_is_refused(labels, options, message):
    with pytest.raises(UserError, match=message):
        matching_loss(random_queries(), labels, (2, 2), LOSS, **options)


def dots():
    """65,536 pixels of class 1 that do not touch, on class 0."""
    labels = torch.zeros(512, 512, dtype=torch.uint8)
    labels[::2, ::2] = 1
    return labels


@pytest.mark.parametrize(
    ("kind", "labels"),
    [("classes", torch.arange(512 * 512).remainder(150).view(512, 512).to(torch.uint8)), ("components", dots())],
)
def test_memory_does_not_grow_with_segments_times_pixels(monkeypatch, kind, labels):
    """150 classes in an image of 512 x 512 pixels would be 157 MB of float32 masks."""
    largest = 0
    bincount = torch.bincount

    def watched(*args, **kwargs):
        nonlocal largest
        result = bincount(*args, **kwargs)
        largest = max(largest, result.numel())
        return result

    monkeypatch.setattr(matching.torch, "bincount", watched)
    found = find_segments(labels, (32, 32), (16, 16), 100, 150, kind)
    assert largest == 101 * 32 * 32
    assert found.labeled.sum() == labels.numel()
