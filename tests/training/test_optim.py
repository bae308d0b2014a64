"""Learning rates, parameter groups, and the check for inf and NaN."""

import itertools

import pytest
import torch

from depict.config.schema import Config, DecoderConfig, EncoderConfig, TrainConfig
from depict.model import SegmentationModel
from depict.training.optim import all_finite, create_optimizer, learning_rate, parameter_groups, set_rate


@pytest.fixture(scope="module")
def model():
    encoder = EncoderConfig("vit_tiny_patch16_224", pretrained=False, dim=64, depth=2)
    return SegmentationModel(Config(encoder, DecoderConfig("depict_sa"), image_size=32), ["a", "b"])


def test_the_rate_follows_the_released_trace(shared):
    trace = torch.load(shared / "reference" / "poly_lr.pt", weights_only=True)
    rates = trace if isinstance(trace, (list, torch.Tensor)) else next(v for v in trace.values() if len(v) == 23)
    for iteration, expected in enumerate(rates):
        assert learning_rate(iteration, 20, 1e-3) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(("iteration", "share"), [(0, 1), (15, 0.25), (16, 0.2), (20, 0), (22, 0)])
def test_the_rate_is_the_published_polynomial(iteration, share):
    """The released trace, which the test above reads, has these rates for 20 steps from 1e-3."""
    assert learning_rate(iteration, 20, 1e-3) == pytest.approx(1e-5 + (1e-3 - 1e-5) * share**0.9, rel=1e-9)


def test_the_rate_falls_from_its_start_to_the_floor_and_stays():
    rates = [learning_rate(i, 100, 1e-2) for i in range(120)]
    assert rates[0] == 1e-2
    assert all(a > b for a, b in itertools.pairwise(rates[:101]))
    assert rates[100:] == [1e-5] * 20


def test_warm_up_rises_linearly_and_then_joins_the_schedule():
    assert learning_rate(0, 100, 1e-2, warmup=10) == pytest.approx(1e-3)
    assert learning_rate(20, 100, 1e-2, warmup=10) == learning_rate(20, 100, 1e-2)


def test_every_trained_parameter_is_in_one_group_and_vectors_and_embeddings_are_not_decayed(model):
    groups = parameter_groups(model, weight_decay=0.1, layer_decay=1.0)
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in decayed}
    assert "encoder.vit.blocks.0.attn.qkv.weight" in names
    assert "decoder.layers.0.operator.P" in names
    for word in ("bias", "norm", "class_embeddings", "pos_embed", "cls_token", "step_size"):
        assert not any(word in name for name in names), word


def test_layer_decay_slows_early_blocks_and_leaves_the_decoder_alone(model):
    groups = parameter_groups(model, weight_decay=0.0, layer_decay=0.5)
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    by_name = {name: scale[id(p)] for name, p in model.named_parameters()}
    assert by_name["decoder.layers.0.operator.P"] == 1
    assert by_name["encoder.vit.norm.weight"] == 1
    assert by_name["encoder.vit.blocks.1.attn.qkv.weight"] == 0.5
    assert by_name["encoder.vit.blocks.0.attn.qkv.weight"] == 0.25
    assert by_name["encoder.vit.patch_embed.proj.weight"] == 0.125
    optimizer = create_optimizer(model, TrainConfig(layer_decay=0.5), 1.0)
    set_rate(optimizer, 0.1)
    assert {round(group["lr"], 4) for group in optimizer.param_groups} == {0.1, 0.05, 0.025, 0.0125}


def test_frozen_parameters_are_left_out():
    encoder = EncoderConfig("vit_tiny_patch16_224", pretrained=False, dim=64, depth=1, freeze=True)
    frozen = SegmentationModel(Config(encoder, image_size=32), ["a", "b"])
    groups = parameter_groups(frozen, 0.0, 1.0)
    assert sum(p.numel() for g in groups for p in g["params"]) == sum(p.numel() for p in frozen.decoder.parameters())


def test_sgd_is_the_published_one(model):
    optimizer = create_optimizer(model, TrainConfig(optimizer="sgd"), 1e-3)
    assert isinstance(optimizer, torch.optim.SGD)
    assert all(group["momentum"] == 0.9 and group["nesterov"] for group in optimizer.param_groups)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("holder", ["weight", "momentum", "average"])
def test_one_infinite_or_undefined_number_is_found_wherever_it_is_kept(holder, value):
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    average = network.weight.detach().clone()
    with torch.no_grad():
        network.weight.fill_(3e38)  # large, and finite
    assert all_finite(optimizer, [average])
    momentum = optimizer.state[network.weight]["momentum_buffer"]
    {"weight": network.weight.data, "momentum": momentum, "average": average}[holder][1, 2] = value
    assert not all_finite(optimizer, [average])
