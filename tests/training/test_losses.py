"""The losses in bands against the direct computation: upsample everything, then F.cross_entropy and friends."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from depict.errors import UserError
from depict.training import losses
from depict.training.losses import cross_entropy, dice, lovasz

PATCH = (4, 4)


def example(batch=2, classes=5, height=18, width=23, patch=PATCH, dtype=torch.float64, ignored=0.2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = -(-height // patch[0]), -(-width // patch[1])
    masks = 2 * torch.randn(batch, classes, *size, dtype=dtype, generator=generator)
    labels = torch.randint(0, classes, (batch, height, width), generator=generator).to(torch.uint8)
    labels[torch.rand(labels.shape, generator=generator) < ignored] = 255
    return masks.requires_grad_(), labels


def upsampled(masks: Tensor, labels: Tensor, patch=PATCH) -> Tensor:
    height, width = labels.shape[1:]
    padded = (-(-height // patch[0]) * patch[0], -(-width // patch[1]) * patch[1])
    return F.interpolate(masks, size=padded, mode="bilinear")[..., :height, :width]


def plain_cross_entropy(masks, labels, patch=PATCH, weight=None):
    logits = upsampled(masks, labels, patch)
    return F.cross_entropy(logits, labels.long(), ignore_index=255, weight=weight)


def plain_dice(masks, labels, patch=PATCH):
    valid = labels != 255
    softmax = upsampled(masks, labels, patch).softmax(1).movedim(1, -1)[valid]
    truth = F.one_hot(labels[valid].long(), masks.shape[1]).to(softmax)
    present = truth.sum(0) > 0
    return (1 - 2 * (softmax * truth).sum(0) / (softmax + truth).sum(0))[present].mean()


def plain_lovasz(masks, labels, patch=PATCH):
    """The definition: errors sorted, weighted by how much each one more would cost the Jaccard index."""
    valid = labels != 255
    softmax = upsampled(masks, labels, patch).softmax(1).movedim(1, -1)[valid]
    truth = labels[valid]
    terms = []
    for index in truth.unique().tolist():
        inside = (truth == index).to(softmax)
        errors, order = (inside - softmax[:, index]).abs().sort(descending=True)
        missed = inside[order].cumsum(0)
        false = (1 - inside[order]).cumsum(0)
        loss = 1 - (inside.sum() - missed) / (inside.sum() + false)
        terms.append((errors * torch.diff(loss, prepend=loss.new_zeros(1)).detach()).sum())
    return torch.stack(terms).mean()


def ours(masks, labels, patch=PATCH, weight=None, pixels=losses.ALL):
    total, count = cross_entropy(masks, labels, patch, weight, pixels)
    return total / count


def gradient(loss: Tensor, masks: Tensor) -> Tensor:
    return torch.autograd.grad(loss, masks)[0]


PAIRS = [(ours, plain_cross_entropy), (dice, plain_dice), (lovasz, plain_lovasz)]


@pytest.mark.parametrize(("lean", "plain"), PAIRS)
@pytest.mark.parametrize("band", [1, 1 << 22])
@given(
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    patch=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    seed=st.integers(0, 9),
)
def test_value_and_gradient_are_those_of_the_plain_way(lean, plain, band, height, width, patch, seed):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(losses, "CPU_BAND", band)
        patched.setattr(losses, "CPU_GROUP", band)
        masks, labels = example(height=height, width=width, patch=patch, seed=seed)
        labels[0, 0, 0] = 1  # at least one valid pixel
        lean_loss, plain_loss = lean(masks, labels, patch), plain(masks, labels, patch)
        torch.testing.assert_close(lean_loss, plain_loss, atol=1e-12, rtol=1e-9)
        torch.testing.assert_close(gradient(lean_loss, masks), gradient(plain_loss, masks), atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize(("lean", "plain"), PAIRS)
@given(step=st.integers(1, 9), first=st.tuples(st.integers(0, 8), st.integers(0, 8)), seed=st.integers(0, 9))
def test_a_loss_of_some_pixels_is_that_of_labels_ignored_elsewhere(lean, plain, step, first, seed):
    masks, labels = example(seed=seed)
    labels[0, first[0] % step, first[1] % step] = 1  # at least one valid pixel
    pixels = slice(first[0] % step, None, step), slice(first[1] % step, None, step)
    elsewhere = torch.full_like(labels, 255)
    elsewhere[:, pixels[0], pixels[1]] = labels[:, pixels[0], pixels[1]]
    lean_loss, plain_loss = lean(masks, labels, PATCH, pixels=pixels), plain(masks, elsewhere)
    torch.testing.assert_close(lean_loss, plain_loss, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(gradient(lean_loss, masks), gradient(plain_loss, masks), atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize(("lean", "_"), PAIRS)
def test_labels_of_any_integer_type_are_the_same_and_stay_as_they_are(lean, _):
    masks, labels = example()
    labels[labels == 0] = 255
    given = labels.long()
    torch.testing.assert_close(lean(masks, given, PATCH), lean(masks, labels, PATCH))
    assert torch.equal(given, labels.long())


@given(st.lists(st.sampled_from([0.0, 1e-30, 0.1, 0.5, 1.0]) | st.floats(0, 1, width=32), max_size=40))
def test_errors_are_sorted_as_by_a_stable_argsort(values):
    errors = torch.tensor(values, dtype=torch.float32)
    assert losses.largest_first(errors).tolist() == errors.argsort(descending=True, stable=True).tolist()


def test_pixels_are_drawn_so_that_all_come_up():
    torch.manual_seed(0)
    counts = torch.zeros(6, 9)
    for _ in range(400):
        rows, columns = losses.every_nth_pixel(3)
        counts[rows, columns] += 1
    assert counts.sum() == 400 * 2 * 3
    assert counts.min() > 0
    assert losses.every_nth_pixel(1) == losses.ALL


@pytest.mark.parametrize(("lean", "plain"), PAIRS)
def test_single_precision_is_as_good(lean, plain):
    masks, labels = example(classes=20, height=50, width=61, patch=(16, 16), dtype=torch.float32)
    lean_loss, plain_loss = lean(masks, labels, (16, 16)), plain(masks, labels, (16, 16))
    torch.testing.assert_close(lean_loss, plain_loss, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(gradient(lean_loss, masks), gradient(plain_loss, masks), atol=1e-6, rtol=1e-5)


def test_the_gradient_is_the_slope_of_the_value():
    masks, labels = example(batch=1, classes=3, height=6, width=7)
    for loss in (ours, dice):
        torch.autograd.gradcheck(lambda x, loss=loss: loss(x, labels, PATCH), masks)


def test_class_weights_weigh_value_count_and_gradient():
    masks, labels = example()
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0])
    total, count = cross_entropy(masks, labels, PATCH, weight)
    expected = plain_cross_entropy(masks, labels, weight=weight.double())
    torch.testing.assert_close(total / count, expected, atol=1e-6, rtol=1e-6)
    assert count.item() == pytest.approx(sum(weight[c].item() * (labels == c).sum().item() for c in range(5)))
    torch.testing.assert_close(gradient(total / count, masks), gradient(expected, masks), atol=1e-6, rtol=1e-6)


def test_total_and_count_of_parts_add_up_to_those_of_the_batch():
    masks, labels = example(batch=4)
    whole = cross_entropy(masks, labels, PATCH)
    parts = [cross_entropy(masks[i : i + 1], labels[i : i + 1], PATCH) for i in range(4)]
    for index in range(2):
        torch.testing.assert_close(sum(part[index] for part in parts), whole[index])


def test_the_upstream_gradient_scales_ours():
    masks, labels = example()
    one, three = gradient(ours(masks, labels), masks), gradient(3 * ours(masks, labels), masks)
    torch.testing.assert_close(three, 3 * one)


@pytest.mark.parametrize("loss", [ours, dice, lovasz])
def test_without_gradients_the_value_is_the_same(loss):
    masks, labels = example()
    with torch.no_grad():
        silent = loss(masks, labels, PATCH)
    assert not silent.requires_grad
    torch.testing.assert_close(silent, loss(masks, labels, PATCH).detach())
    torch.testing.assert_close(silent, loss(masks.detach(), labels, PATCH))


@pytest.mark.parametrize("loss", [lambda *args: cross_entropy(*args)[0], dice, lovasz])
def test_a_batch_of_ignored_pixels_costs_nothing(loss):
    masks, labels = example(ignored=1.1)
    value = loss(masks, labels, PATCH)
    assert value.item() == 0
    assert gradient(value, masks).abs().max() == 0


def test_ignored_pixels_do_not_count():
    masks, labels = example()
    assert cross_entropy(masks, labels, PATCH)[1].item() == (labels != 255).sum().item()


@pytest.mark.parametrize("loss", [ours, dice, lovasz])
def test_bfloat16_masks_under_autocast_are_not_rounded_further(loss):
    masks, labels = example(dtype=torch.float32)
    half = masks.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(half, labels, PATCH)
    exact = half.detach().float().requires_grad_()
    expected = loss(exact, labels, PATCH)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected)
    slope = gradient(value, half)
    assert slope.dtype == torch.bfloat16
    torch.testing.assert_close(slope, gradient(expected, exact).bfloat16())


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        result = operation(*arguments, **keywords or {})
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_no_tensor_is_as_large_as_the_upsampled_masks():
    masks = torch.zeros(2, 150, 16, 16, requires_grad=True)
    labels = torch.zeros(2, 256, 256, dtype=torch.uint8)
    with Largest() as largest:
        cross_entropy(masks, labels, (16, 16))[0].backward()
    assert masks.numel() <= largest.elements < 2 * 150 * 256 * 256 / 10


@pytest.mark.slow
def test_memory_stays_far_below_that_of_the_upsampled_masks():
    code = """
import resource, torch
from depict.training.losses import cross_entropy
peaks = []
for side in (32, 512):
    masks = torch.zeros(4, 150, side // 16, side // 16, requires_grad=True)
    labels = torch.zeros(4, side, side, dtype=torch.uint8)
    cross_entropy(masks, labels, (16, 16))[0].backward()
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print((peaks[1] - peaks[0]) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 120  # of 600 MB, and as much again for the gradient


def test_huge_logits_stay_finite():
    masks, labels = example(dtype=torch.float32)
    for loss in (ours, dice, lovasz):
        large = (masks * 1e4).detach().requires_grad_()
        value = loss(large, labels, PATCH)
        assert torch.isfinite(value)
        assert torch.isfinite(gradient(value, large)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, y: (m[0], y, PATCH), "masks must be"),
        (lambda m, y: (m[:1], y, PATCH), "masks must be"),
        (lambda m, y: (m, y.clone().fill_(7), PATCH), r"labels \[7\]"),
        (lambda m, y: (m, y, PATCH, torch.ones(4)), "one per class"),
        (lambda m, y: (m, y[:, :2, :2], (1, 1)), "larger than their labels"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    masks, labels = example()
    with pytest.raises(UserError, match=message):
        cross_entropy(*change(masks, labels))
