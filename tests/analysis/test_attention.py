"""Attention maps of encoder and decoder against what the layers compute, and as pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict.analysis import attention
from depict.analysis.attention import AttentionMap, attention_maps, draw_maps
from depict.config.schema import Config, DecoderConfig, EncoderConfig
from depict.errors import UserError
from depict.model import SegmentationModel

CLASSES = ("sky", "road", "car")


def model(decoder: str = "depict_sa", encoder: str = "vit_tiny_patch16_224", **options) -> SegmentationModel:
    config = Config(
        encoder=EncoderConfig(encoder, pretrained=False, depth=2, dim=128),
        decoder=DecoderConfig(decoder, **options),
        image_size=32,
    )
    return SegmentationModel(config, CLASSES)


def picture(height: int = 40, width: int = 70) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def test_the_class_row_of_a_joint_decoder_is_that_of_the_unrolled_step():
    net = model(layers=2, heads=2, head_dim=8)
    maps, cells = attention_maps(net, picture(), layer=2, name="car")
    step = net.unroll(picture(), attention=True).steps[1]
    assert cells == (40 / 16, 70 / 16)
    assert [(one.layer, one.head, one.operator, one.query) for one in maps] == [
        (2, 1, "mssa", "class car"),
        (2, 2, "mssa", "class car"),
    ]
    for one in maps:
        expected = step.attention[0, one.head - 1, 15 + 2, :15].reshape(3, 5)
        np.testing.assert_allclose(one.values, expected.numpy(), atol=1e-6)


def test_layers_without_attention_are_not_counted():
    maps, _ = attention_maps(model("segmenter", layers=2), picture(), name="sky")
    assert sorted({(one.layer, one.operator) for one in maps}) == [(1, "mhsa"), (2, "mhsa")]


def test_classes_ask_the_cross_layers_and_patches_the_others():
    net = model("depict_ca", layers=2, cross_layers=1, heads=1, head_dim=8, cross_heads=1, cross_head_dim=8)
    asked_by_class, _ = attention_maps(net, picture(), name="sky")
    asked_by_patch, _ = attention_maps(net, picture(), at=(0, 0))
    assert [(one.layer, one.operator) for one in asked_by_class] == [(3, "msca")]
    assert [(one.layer, one.operator) for one in asked_by_patch] == [(1, "mssa"), (2, "mssa")]
    assert asked_by_class[0].values.sum() == pytest.approx(1, abs=1e-5)
    with pytest.raises(UserError, match=r"layer 1 of the decoder \(mssa\) is asked by patches only: give --at X,Y"):
        attention_maps(net, picture(), layer=1, name="sky")
    with pytest.raises(UserError, match=r"layer 3 of the decoder \(msca\) is asked by classes only: give --class NAME"):
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
    for one in maps:
        np.testing.assert_allclose(
            one.values, expected[one.head - 1, row, 1:].reshape(3, 5).detach().numpy(), atol=1e-6
        )


def test_looking_leaves_the_model_as_it_was():
    net = model().train()
    flags = [block.attn.fused_attn for block in net.encoder.vit.blocks]
    attention_maps(net, picture(), "encoder")
    assert net.training
    assert [block.attn.fused_attn for block in net.encoder.vit.blocks] == flags
    assert not any(block.attn.attn_drop._forward_hooks for block in net.encoder.vit.blocks)


def test_an_encoder_with_rotary_positions_can_be_looked_at():
    net = model("linear", "vit_small_patch16_dinov3")
    maps, _ = attention_maps(net, picture(), "encoder", head=1)
    assert [one.layer for one in maps] == [1, 2]
    for one in maps:
        assert 0 < one.values.sum() < 1  # the rest goes to class and register tokens


def test_large_images_are_scaled_down_to_a_bounded_number_of_patches(monkeypatch):
    monkeypatch.setattr(attention, "MOST_PATCHES", 40)
    maps, cells = attention_maps(model(), picture(300, 500), name="sky", layer=1, head=1)
    assert 20 < maps[0].values.size <= 40
    assert cells[1] / cells[0] == pytest.approx(5 / 3, rel=0.05)


@given(st.integers(1, 300), st.integers(1, 300), st.data())
def test_every_pixel_lies_in_the_patch_that_covers_it(height, width, data):
    y, x = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    view = attention._View(np.zeros((height, width, 3), np.uint8), (height, width), (16, 16))
    assert view.patch_at(x, y, height, width) == y // 16 * view.grid[1] + x // 16


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Give --class NAME or --at X,Y"),
        ({"name": "cart"}, "Did you mean 'car'?"),
        ({"name": "car", "at": (0, 0)}, "not both"),
        ({"at": (70, 0)}, "the place 70,0 (x, y) is outside the image of 70 x 40 pixels"),
        ({"name": "car", "layer": 4}, "there is no layer 4: they are counted from 1 to 3"),
        ({"name": "car", "head": 0}, "there is no head 0: they are counted from 1 to 3"),
        ({"name": "car", "part": "encoder"}, "the encoder knows no classes"),
    ],
)
def test_what_cannot_be_shown_is_told(options, said):
    with pytest.raises(UserError) as caught:
        attention_maps(model(head_dim=8), picture(), **options)
    assert said in str(caught.value)


def test_a_decoder_without_attention_is_told():
    with pytest.raises(UserError, match="the decoder 'linear' has no attention; try --part encoder"):
        attention_maps(model("linear"), picture(), name="car")


def test_the_picture_is_hot_where_attention_is_and_dark_elsewhere():
    values = np.zeros((3, 5), np.float32)
    values[0, 4] = 0.5
    black = np.zeros((40, 70, 3), np.uint8)
    sheet = np.asarray(draw_maps(black, [AttentionMap(1, 1, "mssa", "class car", values)], (2.5, 70 / 16)))
    heat = sheet[30 : 30 + 549, 8 : 8 + 960].astype(float).mean(2)
    # Patch (0, 4) covers columns 64 to 70 of 70, rows 0 to 16 of 40.
    assert heat[:80, 950:].mean() > 100
    assert heat[340:].max() == heat[:, :650].max() == 0


def test_a_sheet_has_a_place_for_every_layer_and_head():
    maps, cells = attention_maps(model(layers=2, heads=3, head_dim=8), picture(), at=(5, 5))
    sheet = draw_maps(picture(), maps, cells, (5, 5))
    assert len(maps) == 6
    assert sheet.width >= 3 * 320
    assert sheet.height >= 2 * 180
