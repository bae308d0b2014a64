"""The neck: levels to tokens on one grid, linearly after the norms."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from depict import UserError, create_model
from depict.neck import Neck, Stem, pack, unpack

SMALL = "test_efficientnet"


def levels(*sizes, dims, batch=2):
    return [torch.randn(batch, *size, dim) for size, dim in zip(sizes, dims, strict=True)]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=4),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_tokens_are_the_sum_of_what_the_levels_contribute(shapes, grid):
    given_levels = levels(*(shape[:2] for shape in shapes), dims=[shape[2] for shape in shapes])
    neck = Neck([shape[2] for shape in shapes], 6)
    Z0, parts = neck(given_levels, grid), neck.contributions(given_levels, grid)
    assert Z0.shape == (2, grid[0] * grid[1], 6)
    assert torch.allclose(sum(parts), Z0, atol=1e-5)


def test_a_contribution_depends_on_its_own_level_alone():
    neck, first = Neck([3, 4], 5), levels((4, 4), (2, 2), dims=[3, 4])
    second = [first[0], torch.randn_like(first[1])]
    (fine, coarse), (same, other) = (neck.contributions(each, (4, 4)) for each in (first, second))
    assert torch.equal(fine, same)
    assert not torch.equal(coarse, other)


def test_mapping_before_enlarging_is_mapping_after_it():
    neck, (level,) = Neck([3], 5), levels((2, 3), dims=[3])
    enlarged = torch.nn.functional.interpolate(neck.norms[0](level).permute(0, 3, 1, 2), (8, 12), mode="bilinear")
    expected = neck.maps[0](enlarged.permute(0, 2, 3, 1)).flatten(1, 2)
    assert torch.allclose(neck([level], (8, 12)), expected, atol=1e-6)


def test_tokens_start_with_entries_of_variance_one():
    neck = Neck([24, 40, 112], 256)
    Z0 = neck(levels((8, 8), (8, 8), (8, 8), dims=[24, 40, 112]), (8, 8))
    assert Z0.var().item() == pytest.approx(1, rel=0.1)


def test_multiply_adds_are_those_that_pytorch_counts():
    neck, stem, images = Neck([64, 4], 5), Stem(), torch.randn(1, 3, 32, 64)
    with FlopCounterMode(display=False) as counter:
        neck([stem(images), torch.randn(1, 2, 4, 4)], (8, 16))
    norms = 5 * (8 * 16 * 64 + 2 * 4 * 4)  # PyTorch does not count them
    assert (
        stem.multiply_adds((32, 64)) + neck.multiply_adds([(8, 16), (2, 4)]) == counter.get_total_flops() // 2 + norms
    )


@pytest.mark.parametrize(
    ("options", "stride", "dim", "multiple", "grid"),
    [
        ({"encoder": SMALL}, 8, 256, 32, (8, 12)),
        ({"encoder": SMALL, "stride": 4, "neck_dim": 16}, 4, 16, 32, (16, 24)),
        ({"encoder": SMALL, "stride": 32}, 32, 256, 32, (2, 3)),
        ({"encoder": "test_vit"}, None, None, 16, (3, 5)),
        ({"encoder": "test_vit", "stride": 16}, None, None, 16, (3, 5)),
        ({"encoder": "test_vit", "stride": 8}, 8, 256, 16, (6, 10)),
        ({"encoder": "test_vit", "neck_dim": 32}, 16, 32, 16, (3, 5)),
        ({"encoder": "test_vit", "blocks": (1, 3)}, 16, 256, 16, (3, 5)),
        ({"encoder": "test_vit", "stem": True}, 4, 256, 16, (12, 20)),
        ({"encoder": "test_vit", "stride": 6}, 6, 256, 48, (8, 16)),
    ],
)
def test_the_stride_sets_the_grid_and_images_are_padded_to_what_the_encoder_needs(options, stride, dim, multiple, grid):
    model = create_model("linear", num_classes=3, image_size=(48, 70), **options).eval()
    assert (model.config.stride, model.config.neck.dim) == (stride, dim)
    assert (model.neck is None) == (dim is None)
    assert model.multiple == (multiple, multiple)
    images = torch.randn(1, 3, 48, 70)
    with torch.no_grad():
        assert model.masks(images).shape == (1, 3, *grid)
        assert model(images).shape == (1, 3, 48, 70)
    assert model.grid((48, 70)) == grid


def test_padding_does_not_reach_the_masks_of_a_level_that_sees_its_own_cell_only():
    """The logits at a pixel are those of the same pixel in the padded image: the cell is found at its place."""
    model = create_model("linear", SMALL, num_classes=3, image_size=(64, 64), stride=4).eval()
    image = torch.randn(1, 3, 40, 52)
    padded = torch.nn.functional.pad(image, (0, 12, 0, 24))
    with torch.no_grad():
        assert torch.allclose(model(image), model(padded)[..., :40, :52], atol=1e-5)


def test_several_blocks_are_the_outputs_of_those_blocks():
    model = create_model("linear", "test_vit", num_classes=3, image_size=(32, 32), blocks=(1, 3)).eval()
    outputs = []
    for block in model.encoder.vit.blocks:
        block.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    with torch.no_grad():
        (first, last), _ = model.levels(torch.randn(1, 3, 32, 32))
    prefix = model.encoder.vit.num_prefix_tokens
    assert torch.equal(first.flatten(1, 2), outputs[1][:, prefix:])
    assert torch.equal(last.flatten(1, 2), outputs[3][:, prefix:])


def test_a_stem_at_another_stride_is_refused():
    with pytest.raises(UserError, match="--neck.stem adds detail at stride 4: use --stride 4, not 8"):
        create_model("linear", "test_vit", num_classes=2, image_size=32, stem=True, stride=8)


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3),
)
def test_unpacking_undoes_packing_and_a_cell_holds_what_lies_in_it(grid, shapes):
    given_levels = [torch.randn(2, grid[0] * rows, grid[1] * columns, dim) for rows, columns, dim in shapes]
    features = pack(given_levels, grid)
    assert features.shape == (2, grid[0] * grid[1], sum(rows * columns * dim for rows, columns, dim in shapes))
    assert all(map(torch.equal, unpack(features, grid, shapes), given_levels))
    rows, columns, dim = shapes[0]
    first_cell = given_levels[0][0, :rows, :columns].flatten()
    assert torch.equal(features[0, 0, : rows * columns * dim], first_cell)


@pytest.mark.parametrize(
    "options", [{"encoder": SMALL, "stride": 4}, {"encoder": "test_vit"}, {"encoder": "test_vit", "stride": 6}]
)
def test_the_head_makes_the_masks_of_the_features_that_are_kept(options):
    model = create_model("linear", num_classes=3, image_size=(48, 70), **options).eval()
    images = torch.randn(2, 3, 48, 70)
    with torch.no_grad():
        assert torch.allclose(model.head()(*model.features(images)), model.masks(images), atol=1e-6)
