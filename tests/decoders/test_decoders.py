"""What holds for every decoder, and what is specific to some."""

import pytest
import torch

from depict import UserError, create_decoder
from depict.decoders import DECODERS, decoder_options, level_decoder

MIXTURES = [
    {"attention": attention, "feedforward": feedforward}
    for attention in ("mssa", "mhsa", "none")
    for feedforward in ("ista", "mlp", "none")
]
ON_TOKENS = [name for name in DECODERS if not level_decoder(name)]
WITH_HEADS = [name for name in ON_TOKENS if "head" in decoder_options(name)]
HEADS = [(name, {"head": head}) for name in WITH_HEADS for head in ("cosine", "linear", "subspaces")]
EXACT = [(name, {"operator": "exact"}) for name in ("depict_sa", "depict_ca", "depict_mask", "ablation")]
MASKED = [("depict_mask", {"masked_attention": True, "operator": operator}) for operator in ("softmax", "exact")]
SOFTMAX = [("depict_us", {"operator": "softmax"})]
PLAIN = [(name, {}) for name in ON_TOKENS]
CASES = PLAIN + [("ablation", mixture) for mixture in MIXTURES] + HEADS + EXACT + MASKED + SOFTMAX
every_decoder = pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value))


def build(name, options, dim=64, classes=5):
    return create_decoder(name, dim, classes, **options).eval()


@every_decoder
def test_tokens_on_a_grid_become_masks_on_that_grid(name, options):
    masks = build(name, options)(torch.randn(2, 12, 64), (3, 4))
    assert masks.shape == (2, 5, 3, 4)


@every_decoder
def test_the_grid_is_filled_row_by_row(name, options):
    if name == "cbt":
        pytest.skip("its representatives depend on the shape of the grid")
    decoder, Z = build(name, options), torch.randn(1, 12, 64)
    wide, tall = decoder(Z, (3, 4)), decoder(Z, (4, 3))
    assert torch.equal(wide.flatten(2), tall.flatten(2))


@every_decoder
def test_unroll_ends_with_exactly_the_result_of_forward(name, options):
    decoder, Z = build(name, options), torch.randn(2, 12, 64)
    for attention in (False, True):
        trace = decoder.unroll(Z, (3, 4), attention=attention)
        assert torch.equal(trace.masks, decoder(Z, (3, 4)))


@every_decoder
def test_images_of_a_batch_do_not_see_each_other(name, options):
    decoder, Z = build(name, options), torch.randn(3, 12, 64)
    alone = torch.cat([decoder(z[None], (3, 4)) for z in Z])
    assert torch.allclose(decoder(Z, (3, 4)), alone, atol=1e-5)


@every_decoder
def test_every_parameter_gets_a_gradient(name, options):
    decoder = build(name, options)
    (decoder(torch.randn(2, 12, 64), (3, 4)) * torch.randn(2, 5, 3, 4)).sum().backward()
    for key, parameter in decoder.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


@every_decoder
def test_saved_parameters_give_the_same_masks(name, options):
    first, second, Z = build(name, options), build(name, options), torch.randn(1, 6, 64)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(Z, (2, 3)), second(Z, (2, 3)))


@every_decoder
def test_one_patch_and_one_class_are_enough(name, options):
    assert build(name, options, classes=1)(torch.randn(1, 1, 64), (1, 1)).isfinite().all()


@every_decoder
def test_tokens_that_do_not_fit_are_refused(name, options):
    decoder = build(name, options)
    with pytest.raises(UserError, match="12 tokens do not fill a grid of 3 x 3"):
        decoder(torch.randn(1, 12, 64), (3, 3))
    with pytest.raises(UserError, match=r"tokens must have shape \(batch, N, 64\), not \(1, 12, 32\)"):
        decoder(torch.randn(1, 12, 32), (3, 4))


def test_depict_sa_unrolls_into_its_layers_with_their_subspaces_and_steps():
    decoder = build("depict_sa", {"layers": 2, "heads": 3, "head_dim": 4})
    trace = decoder.unroll(torch.randn(2, 12, 64), (3, 4), attention=True)
    assert [step.operator for step in trace.steps] == ["mssa", "mssa"]
    assert [Z.shape for Z in trace.Z] == [(2, 12, 64)] * 3
    assert [Q.shape for Q in trace.Q] == [(2, 5, 64)] * 3
    for step, layer in zip(trace.steps, decoder.layers, strict=True):
        assert torch.equal(step.P.flatten(0, 1), layer.operator.P)
        assert step.P.shape == (3, 4, 64)
        assert torch.equal(step.step_size, layer.operator.step_size)
        assert step.attention.shape == (2, 3, 17, 17)
    assert torch.allclose(trace.Z_unit.norm(dim=-1), torch.ones(2, 12))


def test_depict_ca_leaves_classes_alone_in_mssa_and_patches_alone_in_msca():
    trace = build("depict_ca", {}).unroll(torch.randn(2, 12, 64), (3, 4), attention=True)
    assert [step.operator for step in trace.steps] == ["mssa"] * 3 + ["msca"] * 3
    assert all(torch.equal(step.Q, trace.Q0) for step in trace.steps[:3])
    assert all(torch.equal(step.Z, trace.steps[3].Z) for step in trace.steps[3:])
    assert trace.steps[0].attention.shape == (2, 3, 12, 12)
    assert trace.steps[3].attention.shape == (2, 3, 5, 12)


def test_masks_are_normalized_over_the_classes():
    masks = build("depict_sa", {})(torch.randn(2, 12, 64), (3, 4))
    assert torch.allclose(masks.mean(1), torch.zeros(2, 3, 4), atol=1e-5)


def test_ista_takes_one_proximal_step_from_the_normalized_tokens():
    from depict.decoders.blocks import ISTABlock

    block, X = ISTABlock(6), torch.randn(1, 3, 6)
    Y = torch.nn.functional.layer_norm(X, (6,))
    for token, expected in zip(block(X)[0], Y[0], strict=True):
        gradient = block.A.T @ expected - block.A.T @ (block.A @ expected)
        assert torch.allclose(token, (expected + 0.1 * gradient - 0.01).clamp(min=0), atol=1e-5)


def test_segmenter_has_heads_of_64_by_default():
    assert build("segmenter", {}, dim=192).layers[0].heads == 3
    assert build("segmenter", {"heads": 4}, dim=192).layers[0].heads == 4


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            ("depict_saa", 64, 5),
            {},
            "Did you mean 'depict_sa'. Known: depict_sa, depict_ca, depict_us, depict_mask, cbt, maskformer",
        ),
        (
            ("linear", 64, 5),
            {"layers": 2},
            "unknown option for the decoder 'linear': 'layers'. Known: head, directions",
        ),
        (("depict_sa", 64, 5), {"layer": 2}, "Did you mean 'layers'"),
        (("maskformer", 64, 5), {}, "'maskformer' takes levels: give their dimensions as a list, not 64"),
        (("depict_mask", 64, 5), {"queries": 0}, "queries must be at least 1, not 0"),
        (("depict_mask", 64, 5), {"segments": "class"}, "unknown segments 'class'. Did you mean 'classes'"),
        (("depict_mask", 64, 5), {"matching": "detr"}, "unknown matching 'detr'. Known: maskformer, mask2former"),
        (("depict_sa", 64, 0), {}, "number of classes must be an integer of at least 1, not 0"),
        (("depict_sa", 64, 5), {"layers": 0}, "layers must be at least 1, not 0"),
        (("depict_ca", 64, 5), {"cross_layers": 0}, "cross_layers must be at least 1, not 0"),
        (("depict_sa", 64, 5), {"heads": 0}, "heads must be at least 1, not 0"),
        (("segmenter", 64, 5), {"heads": 5}, "5 heads do not divide the embedding dimension 64"),
        (("segmenter", 64, 5), {"dropout": 2.0}, "dropout must be in"),
        (("depict_sa", 64, 5), {"operator": "exat"}, "unknown operator 'exat'. Did you mean 'exact'"),
        (("depict_us", 64, 5), {"dropout": 0.1}, "dropout must be 0 with the exact operator, not 0.1"),
        (("ablation", 64, 5), {"attention": "mhsa", "operator": "exact"}, "'exact' is a form of MSSA and does not fit"),
        (("linear", 64, 5), {"head": "cosin"}, "unknown head 'cosin'. Did you mean 'cosine'"),
        (("linear", 64, 5), {"directions": 2}, "directions 2 does not fit the head 'linear'"),
        (("depict_us", 64, 5), {"directions": 0}, "directions must be at least 1, not 0"),
        (("depict_us", 64, 5), {"logit_gain": 4.0}, "logit_gain 4.0 does not fit the head 'subspaces'"),
        (("ablation", 64, 5), {"attention": "msa"}, "unknown attention 'msa'. Did you mean"),
        (("ablation", 64, 5), {"feedforward": "moe"}, "unknown feedforward 'moe'. Known: ista, mlp, none"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(arguments, options, message):
    with pytest.raises(UserError, match=message) as caught:
        create_decoder(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_options_are_listed_with_their_defaults():
    assert decoder_options("depict_sa") == {
        "layers": 3,
        "heads": 3,
        "head_dim": 100,
        "operator": "softmax",
        "dropout": 0.0,
        "head": "cosine",
        "directions": None,
        "logit_gain": 1.0,
        "step_size": None,
    }


@pytest.mark.parametrize("name", ["depict_sa", "depict_ca", "segmenter", "ablation"])
def test_a_logit_gain_scales_the_masks_at_the_start(name):
    torch.manual_seed(0)
    plain = build(name, {})
    torch.manual_seed(0)
    louder = build(name, {"logit_gain": 4.0})
    Z = torch.randn(1, 12, 64)
    assert torch.allclose(louder(Z, (3, 4)), 4 * plain(Z, (3, 4)), atol=1e-5)


@pytest.mark.parametrize("name", ["depict_sa", "depict_ca"])
def test_all_step_sizes_can_start_at_one_value(name):
    trace = build(name, {"step_size": 0.2}).unroll(torch.randn(1, 12, 64), (3, 4))
    assert [round(step.step_size.item(), 6) for step in trace.steps] == [0.2] * len(trace.steps)


@every_decoder
def test_stopping_after_the_last_step_gives_the_result_itself(name, options):
    decoder, Z = build(name, options), torch.randn(2, 12, 64)
    trace = decoder.unroll(Z, (3, 4))
    assert torch.equal(decoder.stop_after(trace, len(trace.steps)).masks, trace.masks)


@pytest.mark.parametrize("name", ["depict_sa", "segmenter"])
def test_stopping_early_gives_the_result_of_a_decoder_without_the_later_layers(name):
    decoder, Z = build(name, {"layers": 3}), torch.randn(2, 12, 64)
    trace = decoder.unroll(Z, (3, 4))
    blocks = len(decoder.layers) // 3
    for layers in (2, 1):
        decoder.layers = decoder.layers[: layers * blocks]
        stopped = decoder.stop_after(trace, layers * blocks)
        expected = decoder.unroll(Z, (3, 4))
        assert torch.equal(stopped.masks, expected.masks)
        assert torch.equal(stopped.Z_unit, expected.Z_unit)


def test_stopping_depict_ca_before_its_cross_layers_uses_the_class_embeddings_as_they_start():
    decoder, Z = build("depict_ca", {"layers": 2, "cross_layers": 2}), torch.randn(2, 12, 64)
    trace = decoder.unroll(Z, (3, 4))
    decoder.cross_layers = decoder.cross_layers[:1]
    assert torch.equal(decoder.stop_after(trace, 3).masks, decoder(Z, (3, 4)))
    decoder.cross_layers = decoder.cross_layers[:0]
    assert torch.equal(decoder.stop_after(trace, 2).masks, decoder(Z, (3, 4)))
    decoder.layers = decoder.layers[:1]
    assert torch.equal(decoder.stop_after(trace, 1).masks, decoder(Z, (3, 4)))
