"""Plain ViTs of timm by name: tokens, grids, positions, weights."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from depict import UserError
from depict.encoders import create_encoder
from depict.encoders.vit import resize_positions

TINY = {"dim": 64, "depth": 1}


@pytest.mark.parametrize(
    ("name", "patch", "prefix"),
    [
        ("vit_tiny_patch16_224", 16, 1),
        ("vit_small_patch32_384", 32, 1),
        ("vit_base_patch8_224", 8, 1),
        ("deit_tiny_distilled_patch16_224", 16, 2),
        ("vit_small_patch14_dinov2", 14, 1),
        ("vit_small_patch14_reg4_dinov2", 14, 5),
        ("vit_small_patch16_dinov3", 16, 5),
        ("vit_base_patch16_siglip_224", 16, 0),
    ],
)
def test_class_and_register_tokens_are_dropped_at_any_size(name, patch, prefix):
    encoder = create_encoder(name, (5 * patch, 3 * patch), **TINY).eval()
    assert encoder.vit.num_prefix_tokens == prefix
    assert encoder.strides == (encoder.multiple,) == ((patch, patch),)
    for grid in ((5, 3), (2, 7), (1, 1)):
        (Z,) = encoder(torch.randn(2, 3, grid[0] * patch, grid[1] * patch))
        assert Z.shape == (2, *grid, 64)


def test_mean_and_standard_deviation_are_those_of_the_encoder():
    assert create_encoder("vit_tiny_patch16_224", (32, 32), **TINY).mean == (0.5, 0.5, 0.5)
    assert create_encoder("deit_tiny_patch16_224", (32, 32), **TINY).std == (0.229, 0.224, 0.225)


def test_the_released_family_has_the_released_layer_norm_and_others_keep_their_own():
    assert create_encoder("vit_tiny_patch16_224", (32, 32), **TINY).vit.norm.eps == 1e-5
    assert create_encoder("vit_tiny_patch16_384.augreg_in21k_ft_in1k", (32, 32), **TINY).vit.blocks[0].norm1.eps == 1e-5
    assert create_encoder("vit_small_patch14_dinov2", (28, 28), **TINY).vit.norm.eps == 1e-6


def test_positions_are_resized_bilinearly_between_pixel_centers():
    """Half-pixel centers, clamped at the border, no antialiasing: what the released code does."""
    positions, old, new = torch.randn(1, 1 + 16, 3, dtype=torch.float64), (4, 4), (5, 6)
    table = positions[0, 1:].reshape(*old, 3)

    def source(index, axis):
        at = min(max((index + 0.5) * old[axis] / new[axis] - 0.5, 0), old[axis] - 1)
        low = int(at)
        return low, min(low + 1, old[axis] - 1), at - low

    resized = resize_positions(positions, 1, new, old)
    assert torch.equal(resized[:, 0], positions[:, 0])
    for index, actual in enumerate(resized[0, 1:]):
        (top, bottom, down), (left, right, across) = source(index // new[1], 0), source(index % new[1], 1)
        above = (1 - across) * table[top, left] + across * table[top, right]
        below = (1 - across) * table[bottom, left] + across * table[bottom, right]
        assert torch.allclose(actual, (1 - down) * above + down * below)


def test_positions_are_resized_as_the_released_code_does(shared):
    vectors = torch.load(shared / "reference" / "pos_embed.pt", weights_only=True)
    assert torch.allclose(resize_positions(vectors["pos"], 1, (5, 6), (4, 4)), vectors["out_4x4_to_5x6"], atol=1e-6)
    assert torch.allclose(resize_positions(vectors["pos"], 1, (7, 3)), vectors["out_none_to_7x3"], atol=1e-6)


def test_positions_are_kept_when_only_the_shape_of_the_grid_differs():
    encoder = create_encoder("vit_tiny_patch16_224", (64, 96), **TINY).eval()
    image = torch.zeros(1, 3, 96, 64)  # 6 x 4 patches instead of 4 x 6: the released code does not resize
    with torch.no_grad():
        encoder.vit.pos_embed.copy_(torch.randn_like(encoder.vit.pos_embed))
        transposed, original = encoder(image)[0], encoder(image.mT)[0]
    assert torch.allclose(transposed.flatten(1, 2), original.flatten(1, 2), atol=1e-5)


def test_drop_path_rises_linearly_to_its_value():
    encoder = create_encoder("vit_tiny_patch16_224", (32, 32), drop_path=0.2, dim=64, depth=3)
    assert [getattr(block.drop_path1, "drop_prob", 0.0) for block in encoder.vit.blocks] == pytest.approx([0, 0.1, 0.2])


def test_a_frozen_encoder_stays_in_evaluation_mode_and_takes_no_gradient():
    encoder = create_encoder("vit_tiny_patch16_224", (32, 32), drop_path=0.5, **TINY)
    encoder.freeze()
    encoder.train()
    assert not encoder.vit.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_load_from_a_local_file_with_the_head_left_out(tmp_path, suffix):
    source = create_encoder("vit_tiny_patch16_224", (224, 224))
    state = dict(source.vit.state_dict()) | {"head.weight": torch.zeros(1000, 192), "head.bias": torch.zeros(1000)}
    path = tmp_path / f"weights.{suffix}"
    save_file(state, path) if suffix == "safetensors" else torch.save({"model": state}, path)
    loaded = create_encoder("vit_tiny_patch16_224", (224, 224), pretrained=path)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), source.parameters(), strict=True))
    resized = create_encoder("vit_tiny_patch16_224", (64, 96), pretrained=path)
    expected = resize_positions(source.vit.pos_embed, 1, (4, 6), (14, 14))
    assert torch.equal(resized.vit.pos_embed, expected)


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("deit_tiny_distilled_patch16_224", 2),
        ("vit_small_patch14_dinov2", 1),
        ("vit_small_patch14_reg4_dinov2", 0),  # its positions are those of the patches alone
        ("vit_small_patch16_dinov3", None),  # rotary, no table of positions
    ],
)
def test_every_family_loads_its_tensors_from_a_file_onto_another_grid(tmp_path, name, prefix):
    patch = 14 if "patch14" in name else 16
    source = create_encoder(name, (4 * patch, 4 * patch), **TINY).eval()
    state = source.vit.state_dict()
    for tensor in state.values():
        tensor.normal_(std=0.3)
    if prefix is not None:
        state["pos_embed"][:, prefix:] = torch.arange(4.0).repeat_interleave(4)[:, None]  # the row, in every channel
    heads = {"head.weight": torch.zeros(1000, 64), "head.bias": torch.zeros(1000)}
    if "distilled" in name:
        heads |= {f"head_dist.{kind}": heads[f"head.{kind}"].clone() for kind in ("weight", "bias")}
    save_file(state | heads, tmp_path / "weights.safetensors")
    # Files fit whole encoders only, which would take hundreds of megabytes here: so this is loaded afterwards.
    same, other = (
        create_encoder(name, (4 * patch, 4 * patch), **TINY).eval(),
        create_encoder(name, (7 * patch, 3 * patch), **TINY),
    )
    for encoder in (same, other):
        encoder._load(name, tmp_path / "weights.safetensors")
    image = torch.randn(1, 3, 4 * patch, 4 * patch)
    assert torch.equal(same(image)[0], source(image)[0])
    loaded = other.vit.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], state[key]) for key in state if key != "pos_embed")
    if prefix is not None:
        assert torch.equal(loaded["pos_embed"][:, :prefix], state["pos_embed"][:, :prefix])
        rows = loaded["pos_embed"][0, prefix:].unflatten(0, (7, 3))
        assert torch.allclose(rows, rows[:, :1, :1].expand_as(rows), atol=1e-5)
        assert (rows[:, 0, 0].diff() > 0).all()


def test_the_real_pretrained_vit_loads_strictly(shared):
    path = shared / "weights" / "vit_tiny_patch16_224.safetensors"
    encoder = create_encoder("vit_tiny_patch16_224", (224, 224), pretrained=str(path))
    real = load_file(path)
    assert all(torch.equal(tensor, real[name]) for name, tensor in encoder.vit.state_dict().items())


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "vit_small_patch16_224",
            {},
            r"'cls_token' has shape \(1, 1, 384\), not \(1, 1, 192\). Is it for another",
        ),
        ("vit_tiny_patch16_224", {"depth": 2}, "it lacks 'blocks.10"),
    ],
)
def test_weights_of_another_encoder_are_refused(tmp_path, name, changes, message):
    save_file(create_encoder(name, (32, 32), **changes).vit.state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=message):
        create_encoder("vit_tiny_patch16_224", (32, 32), pretrained=str(tmp_path / "other.safetensors"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit_tiny_patch16_242", {}, "unknown encoder 'vit_tiny_patch16_242'. Did you mean vit_tiny_patch16_224"),
        ("vit_tiny_patch16_224", {"depth": 2, "blocks": (0, 2)}, "must be rising numbers from 0 to 1, not '0 2'"),
        ("vit_tiny_patch16_224", {"depth": 2, "blocks": (1, 0)}, "must be rising numbers from 0 to 1, not '1 0'"),
        ("vit_tiny_patch16_224", {"drop_path": 1.5}, "drop_path must be in"),
        ("vit_tiny_patch16_224", {"dim": 200}, "must be below 128 or a multiple of 64"),
        ("vit_tiny_patch16_224", {"depth": 0}, "must be at least 1"),
        ("vit_tiny_patch16_224", {"depth": 2, "pretrained": True}, "has no pretrained weights"),
        ("vit_tiny_patch16_224", {"pretrained": True}, "from the hub: .* Set `pretrained` to a local file"),
    ],
)
def test_an_encoder_that_cannot_be_built_is_refused_in_one_line(name, options, message):
    with pytest.raises(UserError, match=message) as caught:
        create_encoder(name, (32, 32), **options)
    assert "\n" not in str(caught.value)


def test_gradient_checkpointing_changes_no_number():
    encoder = create_encoder("vit_tiny_patch16_224", (32, 32), dim=64, depth=2)
    image = torch.randn(1, 3, 32, 32)
    (plain,) = encoder(image)
    (expected,) = torch.autograd.grad(plain.sum(), encoder.vit.cls_token)
    encoder.set_grad_checkpointing()
    (checkpointed,) = encoder(image)
    (actual,) = torch.autograd.grad(checkpointed.sum(), encoder.vit.cls_token)
    assert torch.equal(plain, checkpointed)
    assert torch.allclose(expected, actual)
