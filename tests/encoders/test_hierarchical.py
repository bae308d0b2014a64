"""Encoders of timm with feature maps of several resolutions: levels, sizes, weights, stages."""

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from depict import UserError
from depict.encoders import create_encoder

SMALL = "test_efficientnet"  # timm's own for tests: small, with levels of strides 2 to 32


@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("tf_efficientnet_lite0", (8, 16, 32)),
        ("convnext_atto", (8, 16, 32)),
        ("swin_tiny_patch4_window7_224", (8, 16, 32)),
        ("hiera_tiny_224", (8, 16, 32)),
        ("pvt_v2_b0", (8, 16, 32)),
        ("mobilenetv3_small_050", (8, 16, 32)),
        ("resnet10t", (8, 16, 32)),
        ("densenet121", (8, 16, 32)),
        ("shvit_s1", (16, 32, 64)),
        ("beit_base_patch16_224", (16, 16, 16)),
    ],
)
def test_the_feature_maps_of_any_family_are_levels(name, strides):
    with torch.device("meta"):
        encoder = create_encoder(name, (64, 120)).eval()
        images = torch.empty(2, 3, 64, 128)
        levels = encoder(images)
    assert encoder.strides == tuple((stride, stride) for stride in strides)
    assert encoder.multiple == (strides[-1], strides[-1])
    expected = [(2, 64 // s, 128 // s, dim) for s, dim in zip(strides, encoder.dims, strict=True)]
    assert [tuple(level.shape) for level in levels] == expected


@pytest.mark.parametrize(("stride", "strides"), [(2, 5), (4, 4), (8, 3), (16, 2), (32, 1), (64, 1)])
def test_levels_finer_than_the_grid_of_the_decoder_are_left_out(stride, strides):
    encoder = create_encoder(SMALL, (64, 64), stride=stride)
    assert [side for side, _ in encoder.strides] == [2, 4, 8, 16, 32][5 - strides :]


@pytest.mark.parametrize("name", [SMALL, "test_convnext", "test_resnet", "test_byobnet"])
def test_levels_equal_those_of_the_classifier_whose_weights_are_in_the_file(tmp_path, name):
    classifier = timm.create_model(name).train()
    classifier(torch.randn(4, 3, 64, 64))  # statistics for its BatchNorms
    save_file(classifier.state_dict(), tmp_path / "weights.safetensors")
    encoder = create_encoder(name, (64, 64), tmp_path / "weights.safetensors", stride=4).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = classifier.eval().forward_intermediates(images, intermediates_only=True)[-4:]
        levels = encoder(images)
    assert len(levels) == 4
    for level, value in zip(levels, expected, strict=True):
        assert torch.allclose(level.permute(0, 3, 1, 2), value, atol=1e-5)


def test_the_real_pretrained_efficientnet_loads_strictly(shared):
    path = shared / "weights" / "tf_efficientnet_lite0.safetensors"
    encoder = create_encoder("tf_efficientnet_lite0", (64, 64), str(path))
    real = load_file(path)
    assert all(torch.equal(tensor, real[name]) for name, tensor in encoder.features.state_dict().items())
    assert encoder.mean == pytest.approx((0.498, 0.498, 0.498), abs=5e-3)  # timm rounds 127 / 255 to 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("conv_stem.weight"), "it lacks 'conv_stem.weight'. Is it for another encoder"),
        (lambda state: state.update({"other.weight": torch.zeros(1)}), "it has 'other.weight', which the encoder does"),
        (lambda state: state.update({"conv_stem.weight": torch.zeros(2)}), r"'conv_stem.weight' has shape \(2,\), not"),
    ],
)
def test_weights_of_another_encoder_are_refused(tmp_path, change, message):
    state = timm.create_model(SMALL).state_dict()
    change(state)
    save_file(state, tmp_path / "weights.safetensors")
    with pytest.raises(UserError, match=message):
        create_encoder(SMALL, (64, 64), tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("efficientnet_lite00", {}, "unknown encoder 'efficientnet_lite00'. Did you mean efficientnet_lite0 or"),
        ("coat_tiny", {}, "'coat_tiny' returns no feature maps and cannot be an encoder"),
        ("levit_128", {}, "does not take images of 64 x 128 pixels"),
        (SMALL, {"dim": 64}, "has its own dim"),
        (SMALL, {"blocks": (0, 1)}, "has levels of its own: omit the blocks"),
        ("densenet121", {"drop_path": 0.1}, "has no stochastic depth"),
        (SMALL, {"pretrained": "missing.safetensors"}, "there is no weight file 'missing.safetensors'"),
    ],
)
def test_an_encoder_that_cannot_be_built_is_refused_in_one_line(name, options, message):
    with pytest.raises(UserError, match=message) as caught:
        create_encoder(name, (30, 90), **options)
    assert "\n" not in str(caught.value)


def test_an_encoder_for_one_size_only_says_so():
    with torch.device("meta"):
        encoder = create_encoder("hiera_tiny_224", (64, 96))
        with pytest.raises(UserError, match="was built for 64 x 96 pixels and cannot take 96 x 64"):
            encoder(torch.empty(1, 3, 96, 64))


def test_drop_path_reaches_the_encoder():
    encoder = create_encoder("convnext_atto", (64, 64), drop_path=0.2)
    rates = [part.drop_prob for part in encoder.modules() if type(part).__name__ == "DropPath"]
    assert max(rates) == pytest.approx(0.2)


def test_a_frozen_encoder_keeps_the_statistics_of_its_batch_norms_and_a_trained_one_updates_them():
    encoder, images = create_encoder(SMALL, (64, 64)), torch.randn(2, 3, 64, 64)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items() if "running_" in name}
    encoder.freeze()
    encoder.train()
    encoder(images)
    assert before
    assert all(torch.equal(encoder.state_dict()[name], tensor) for name, tensor in before.items())
    trained = create_encoder(SMALL, (64, 64)).train()
    trained(images)
    assert not any(torch.equal(trained.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("name", [SMALL, "test_convnext", "test_resnet"])
def test_stages_are_counted_from_the_decoder(name):
    depths = create_encoder(name, (64, 64), stride=4).layer_depths()
    found = [depths[parameter] for parameter in depths]
    assert set(found) == set(range(1, max(found) + 1))
    assert found == sorted(found, reverse=True)
    assert len(set(found)) >= 4


def test_gradient_checkpointing_changes_no_number():
    encoder = create_encoder("test_convnext", (64, 64))
    image = torch.randn(1, 3, 64, 64)
    (weight, *_) = encoder.parameters()
    plain = encoder(image)[-1]
    (expected,) = torch.autograd.grad(plain.sum(), weight)
    encoder.set_grad_checkpointing()
    checkpointed = encoder(image)[-1]
    (actual,) = torch.autograd.grad(checkpointed.sum(), weight)
    assert torch.equal(plain, checkpointed)
    assert torch.allclose(expected, actual)
