"""Attention maps of encoder and decoder agree with what the layers compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict.analysis import attention
from depict.analysis.attention import attention_maps
from depict.config.schema import Config, DecoderConfig, EncoderConfig
from depict.errors import UserError
from depict.inference.sliding import Layout
from depict.model import SegmentationModel, create_model

CLASSES = ("sky", "road", "car")
CONVOLUTIONS = "test_efficientnet"


def model(decoder: str = "depict_sa", encoder: str = "vit_tiny_patch16_224", **options) -> SegmentationModel:
    config = Config(
        encoder=EncoderConfig(encoder, pretrained=False, depth=2, dim=128),
        decoder=DecoderConfig(decoder, **options),
        image_size=32,
    )
    return SegmentationModel(config, CLASSES)


def picture(height: int = 40, width: int = 70) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def test_the_map_of_a_class_is_its_row_in_the_attention_of_the_unrolled_step():
    net = model(layers=2, heads=2, head_dim=8)
    maps, cells = attention_maps(net, picture(), layer=2, class_name="car")
    step = net.unroll(picture(), attention=True).steps[1]
    assert cells == (40 / 16, 70 / 16)
    assert [(each.layer, each.head, each.operator, each.query) for each in maps] == [
        (2, 1, "mssa", "class car"),
        (2, 2, "mssa", "class car"),
    ]
    for each in maps:
        expected = step.attention[0, each.head - 1, 15 + 2, :15].reshape(3, 5)
        np.testing.assert_allclose(each.values, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "operator"),
    [
        ("depict_sa", {"operator": "exact"}, "mssa_exact"),
        ("cbt", {}, "cbsa"),
        ("segmenter", {}, "mhsa"),
    ],
)
def test_one_row_is_computed_as_the_whole_matrix_would_be(name, options, operator):
    net = model(name, layers=2, **options)
    for query, row in (({"class_name": "car"}, 15 + 2), ({"at": (0, 39)}, 10)):
        maps, _ = attention_maps(net, picture(), layer=2, **query)
        steps = [step for step in net.unroll(picture(), attention=True).steps if step.attention is not None]
        assert maps[0].operator == steps[1].operator == operator
        for each in maps:
            expected = steps[1].attention[0, each.head - 1, row, :15].reshape(3, 5)
            np.testing.assert_allclose(each.values, expected.numpy(), atol=1e-4)


def test_a_decoder_without_class_queries_has_maps_of_patches_only():
    net = model("depict_us", layers=1)
    maps, _ = attention_maps(net, picture(), at=(0, 0))
    assert [(each.layer, each.operator) for each in maps] == [(1, "mssa_exact")] * 3
    assert min(each.values.min() for each in maps) < 0
    with pytest.raises(UserError, match="'depict_us' has no class queries: give --at X,Y"):
        attention_maps(net, picture(), class_name="car")


def test_layers_without_attention_are_not_counted():
    maps, _ = attention_maps(model("segmenter", layers=2), picture(), class_name="sky")
    assert sorted({(each.layer, each.operator) for each in maps}) == [(1, "mhsa"), (2, "mhsa")]


def test_cross_layers_have_class_queries_and_the_others_patch_queries():
    net = model("depict_ca", layers=2, cross_layers=1, heads=1, head_dim=8, cross_heads=1, cross_head_dim=8)
    of_class, _ = attention_maps(net, picture(), class_name="sky")
    of_patch, _ = attention_maps(net, picture(), at=(0, 0))
    assert [(each.layer, each.operator) for each in of_class] == [(3, "msca")]
    assert [(each.layer, each.operator) for each in of_patch] == [(1, "mssa"), (2, "mssa")]
    assert of_class[0].values.sum() == pytest.approx(1, abs=1e-5)
    with pytest.raises(UserError, match=r"layer 1 of the decoder \(mssa\) has patch queries only: give --at X,Y"):
        attention_maps(net, picture(), layer=1, class_name="sky")
    with pytest.raises(UserError, match=r"layer 3 of the decoder \(msca\) has class queries only: give --class NAME"):
        attention_maps(net, picture(), layer=3, at=(0, 0))


@pytest.mark.parametrize("at", [None, (69, 39), (17, 3)])
def test_encoder_maps_are_the_softmax_of_queries_and_keys(at):
    net = model().eval()
    block = net.encoder.vit.blocks[1].attn
    seen: list[torch.Tensor] = []
    hook = block.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    maps, _ = attention_maps(net, picture(), "encoder", layer=2, at=at)
    hook.remove()
    queries, keys, _ = block.qkv(seen[0]).unflatten(-1, (3, block.num_heads, -1)).permute(2, 0, 3, 1, 4)
    expected = (queries @ keys.mT * queries.shape[-1] ** -0.5).softmax(-1)[0]
    row = {None: 0, (69, 39): 15, (17, 3): 2}[at]  # the class token, then patches row by row
    assert len(maps) == block.num_heads == 2
    for each in maps:
        np.testing.assert_allclose(
            each.values, expected[each.head - 1, row, 1:].reshape(3, 5).detach().numpy(), atol=1e-6
        )


def test_reading_attention_does_not_change_the_model():
    net = model().train()
    flags = [block.attn.fused_attn for block in net.encoder.vit.blocks]
    attention_maps(net, picture(), "encoder")
    assert net.training
    assert [block.attn.fused_attn for block in net.encoder.vit.blocks] == flags
    assert not any(block.attn.attn_drop._forward_hooks for block in net.encoder.vit.blocks)


def test_the_attention_of_an_encoder_with_rotary_positions_can_be_read():
    net = model("linear", "vit_small_patch16_dinov3")
    maps, _ = attention_maps(net, picture(), "encoder", head=1)
    assert [each.layer for each in maps] == [1, 2]
    for each in maps:
        assert 0 < each.values.sum() < 1  # the rest goes to class and register tokens


@pytest.mark.parametrize(
    ("limit", "query"), [("MAX_TOKENS", {"class_name": "sky"}), ("MAX_PATCHES", {"part": "encoder", "at": (9, 9)})]
)
def test_large_images_are_scaled_down_to_a_bounded_number_of_patches(monkeypatch, limit, query):
    monkeypatch.setattr(attention, limit, 40)
    maps, cells = attention_maps(model(), picture(300, 500), layer=1, head=1, **query)
    assert 20 < maps[0].values.size <= 40
    assert cells[1] / cells[0] == pytest.approx(5 / 3, rel=0.05)


MODEL = model()


@given(st.integers(1, 300), st.integers(1, 300), st.data())
def test_every_pixel_belongs_to_the_patch_that_covers_it(height, width, data):
    y, x = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    layout = Layout(*[(height, width)] * 4)
    view = attention.View(np.zeros((height, width, 3), np.uint8), layout, MODEL)
    assert view.patch_at(x, y, height, width) == y // 16 * view.grid[1] + x // 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give --class NAME or --at X,Y"),
        ({"class_name": "cart"}, "Did you mean 'car'?"),
        ({"class_name": "car", "at": (0, 0)}, "not both"),
        ({"at": (70, 0)}, "the position 70,0 (x, y) is outside the image of 70 x 40 pixels"),
        ({"class_name": "car", "layer": 4}, "there is no layer 4: there are layers 1 to 3"),
        ({"class_name": "car", "head": 0}, "there is no head 0: there are heads 1 to 3"),
        ({"class_name": "car", "part": "encoder"}, "the encoder has no class queries"),
    ],
)
def test_what_cannot_be_shown_is_an_error_of_one_line(options, message):
    with pytest.raises(UserError) as caught:
        attention_maps(model(head_dim=8), picture(), **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("decoder", "encoder", "stride", "options", "message"),
    [
        ("linear", "test_vit", 16, {"at": (0, 0)}, "the decoder 'linear' has no attention on .*; try --part encoder"),
        ("depict_us", "test_vit", 8, {"part": "encoder"}, "the encoder 'test_vit' has no .*; try --part decoder"),
        ("depict_us", CONVOLUTIONS, 4, {"part": "encoder"}, "'test_efficientnet' has no .*; try --part decoder"),
        ("depict_us", CONVOLUTIONS, 4, {}, "needs a query: give --at X,Y.$"),
        ("linear", CONVOLUTIONS, 4, {"at": (0, 0)}, "and neither has the encoder 'test_efficientnet'.$"),
        ("linear", CONVOLUTIONS, 4, {"part": "encoder"}, "and neither has the decoder 'linear'.$"),
    ],
)
def test_advice_names_only_parts_that_have_attention_on_the_grid_of_the_masks(
    decoder, encoder, stride, options, message
):
    net = create_model(decoder, encoder, classes=CLASSES, image_size=32, stride=stride)
    with pytest.raises(UserError, match=message):
        attention_maps(net, picture(), **options)


@pytest.mark.parametrize(
    ("name", "options", "query"),
    [
        ("depict_us", {}, {"at": (69, 39)}),
        ("depict_sa", {"operator": "exact"}, {"class_name": "car"}),
        ("cbt", {}, {"at": (69, 39)}),
    ],
)
def test_behind_a_neck_the_maps_are_on_the_grid_of_the_masks(name, options, query):
    net = create_model(
        name,
        CONVOLUTIONS,
        classes=CLASSES,
        image_size=32,
        stride=4,
        neck_dim=16,
        layers=1,
        heads=2,
        head_dim=8,
        **options,
    )
    maps, cells = attention_maps(net, picture(), **query)
    step = next(step for step in net.unroll(picture(), attention=True).steps if step.attention is not None)
    assert cells == (40 / 4, 70 / 4)
    row = 16 * 24 + 2 if "class_name" in query else 9 * 24 + 17
    assert [each.values.shape for each in maps] == [(16, 24)] * 2  # padded to 64 x 96 pixels
    for each in maps:
        expected = step.attention[0, each.head - 1, row, : 16 * 24].reshape(16, 24)
        np.testing.assert_allclose(each.values, expected.numpy(), atol=1e-5)
