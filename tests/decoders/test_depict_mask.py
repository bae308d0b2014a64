"""What is specific to depict_mask: its queries, masked attention, and what it returns in training mode."""

import pytest
import torch

from depict import create_decoder
from depict.data.dataset import IGNORE
from depict.decoders.depict_mask import attended
from depict.decoders.mask_classification import semantic_scores
from depict.decoders.matching import TERMS, matching_loss

SMALL = {"layers": 1, "heads": 2, "head_dim": 4, "cross_layers": 2, "cross_heads": 2, "cross_head_dim": 4, "queries": 6}


def build(**options):
    return create_decoder("depict_mask", 16, 3, **SMALL | options)


def test_semantic_scores_sum_the_masks_of_a_class_and_leave_out_no_object():
    masks, classes = torch.randn(2, 5, 2, 3), torch.randn(2, 5, 4)
    p, m = classes.softmax(-1), masks.sigmoid()
    for b in range(2):
        for c in range(3):
            expected = sum(p[b, k, c] * m[b, k] for k in range(5))
            assert torch.allclose(semantic_scores(masks, classes)[b, c].exp(), expected, atol=1e-6)


def test_scores_exist_even_if_no_query_claims_a_patch():
    scores = semantic_scores(torch.full((1, 2, 1, 1), -200.0), torch.zeros(1, 2, 4))
    assert scores.isfinite().all()


@pytest.mark.parametrize(("options", "size"), [({}, 0.1), ({"operator": "exact"}, -0.1), ({"step_size": 0.5}, 0.5)])
def test_initial_step_sizes(options, size):
    decoder = build(**options)
    layers = [*decoder.layers, *decoder.cross_layers]
    assert [layer.operator.step_size.item() for layer in layers] == pytest.approx([size] * 3)


@pytest.mark.parametrize("name", TERMS)
def test_its_loss_is_the_one_that_was_chosen(name):
    decoder = build(matching=name).train()
    labels = torch.randint(3, (2, 6, 8), dtype=torch.uint8)
    outputs = decoder(torch.randn(2, 12, 16), (3, 4))
    losses = {other: matching_loss(outputs, labels, (2, 2), terms).item() for other, terms in TERMS.items()}
    assert decoder.loss(outputs, labels, (2, 2)).item() == losses[name]
    assert len(set(losses.values())) == len(TERMS)


@pytest.mark.parametrize("operator", ["softmax", "exact"])
@pytest.mark.parametrize("masked", [False, True])
def test_in_training_mode_every_step_is_returned_and_the_last_gives_the_result(operator, masked):
    decoder, Z = build(operator=operator, masked_attention=masked), torch.randn(2, 12, 16)
    queries = decoder.train()(Z, (3, 4))
    assert queries.masks.shape == (3, 2, 6, 3, 4)
    assert queries.classes.shape == (3, 2, 6, 4)
    last = semantic_scores(queries.masks[-1], queries.classes[-1])
    assert torch.allclose(decoder.eval()(Z, (3, 4)), last, atol=1e-5)
    trace = decoder.unroll(Z, (3, 4))
    for step in range(3):
        stopped = decoder.stop_after(trace, len(decoder.layers) + step)
        assert torch.allclose(stopped.query_masks, queries.masks[step], atol=1e-5)


def test_without_deep_supervision_only_the_last_step_is_returned():
    assert len(build(deep_supervision=False).train()(torch.randn(1, 12, 16), (3, 4)).masks) == 1


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("operator", ["softmax", "exact"])
def test_the_loss_reaches_every_parameter(operator, masked):
    decoder = build(operator=operator, masked_attention=masked).train()
    labels = torch.randint(3, (2, 6, 8), dtype=torch.uint8)
    decoder.loss(decoder(torch.randn(2, 12, 16), (3, 4)), labels, (2, 2)).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in decoder.parameters())


def test_a_query_attends_where_its_mask_is_positive_or_everywhere():
    masks = torch.tensor([[[1.0, -1.0, 2.0], [-1.0, -2.0, -3.0]]])
    assert attended(masks).tolist() == [[[True, False, True], [True, True, True]]]


def test_parameters_are_bases_steps_norms_queries_and_a_class_layer():
    kinds = {name.split(".")[-1] for name, _ in build(operator="exact").named_parameters()}
    assert kinds == {"P", "step_size", "log_c", "short_queries", "weight", "bias"}
    matrices = {name for name, p in build().named_parameters() if p.ndim > 1 and not name.endswith(".P")}
    assert matrices == {"short_queries", "classify.weight"}


@pytest.mark.parametrize("operator", ["softmax", "exact"])
def test_in_masked_attention_a_query_sees_only_the_patches_under_its_current_mask(operator):
    """Each step by hand: unmasked steps on the patches that `attended` chooses, query by query."""
    torch.manual_seed(2)
    decoder, Z = build(operator=operator, masked_attention=True).eval(), torch.randn(1, 12, 16)
    with torch.no_grad():
        for layer in decoder.cross_layers:
            layer.operator.step_size.fill_(3.0)  # so that masks change from step to step
        expected = decoder(Z, (3, 4))
        refined = Z
        for layer in decoder.layers:
            refined = layer(refined)
        refined, Q, seen = decoder.norm(refined), decoder.queries[None], []
        for layer in decoder.cross_layers:
            seen.append(attended(decoder.estimate(refined, Q)[0])[0])
            rows = [layer(Q[:, [k]], refined[:, chosen]) for k, chosen in enumerate(seen[-1])]
            Q = torch.cat(rows, 1)
        assert not torch.equal(*seen)
        assert not seen[0].all()
        assert torch.allclose(decoder.result(refined, Q, (3, 4), None), expected, atol=1e-4)


def test_the_loss_compares_queries_with_the_chosen_kind_of_segment():
    labels = torch.tensor([[[0, 0, 1, 0], [0, 0, 1, 0], [2, 2, 1, 0]]], dtype=torch.uint8)  # class 0 in two parts
    losses = []
    for segments in ("classes", "components"):
        torch.manual_seed(0)
        decoder = build(segments=segments).train()
        queries = decoder(torch.randn(1, 12, 16), (3, 4))
        losses.append(decoder.loss(queries, labels, (1, 1)))
        assert torch.equal(losses[-1], matching_loss(queries, labels, (1, 1), TERMS["mask2former"], segments))
    assert not torch.isclose(*losses)


def test_a_patch_that_no_query_claims_gets_the_class_with_the_largest_of_its_small_scores():
    masks = torch.tensor([-20.0, -15.0]).view(1, 2, 1, 1)
    classes = torch.tensor([[[0.0, 9, 0, 0], [0, 0, 9, 0]]])
    scores = semantic_scores(masks, classes)
    assert scores.argmax(1).item() == 2
    assert scores.isfinite().all()
    assert scores.max() - scores.min() < 14  # the others do not drown when masks are enlarged


def test_queries_start_as_long_as_normalized_patches_and_one_adam_step_turns_them():
    decoder = create_decoder("depict_mask", 256, 3)
    before = decoder.queries.detach()
    assert torch.allclose(before.norm(dim=1).mean(), torch.tensor(16.0), rtol=0.05)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=3e-3)
    (decoder.queries * torch.randn(256)).sum().backward()
    optimizer.step()
    assert torch.cosine_similarity(before, decoder.queries.detach()).max() < 0.9995


@pytest.mark.parametrize("operator", ["softmax", "exact"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_few_steps_fit_two_images(operator, masked):
    torch.manual_seed(1)
    decoder = build(operator=operator, masked_attention=masked).train()
    labels = torch.tensor([[[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 2, IGNORE]], [[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 2, 2]]])
    labels = labels.to(torch.uint8)
    colors = torch.randn(256, 16)
    Z = colors[labels.long()].flatten(1, 2) + 0.3 * torch.randn(2, 12, 16)
    optimizer = torch.optim.AdamW(decoder.parameters(), 3e-2)
    for _ in range(60):
        optimizer.zero_grad()
        decoder.loss(decoder(Z, (3, 4)), labels, (1, 1)).backward()
        optimizer.step()
    predicted = decoder.eval()(Z, (3, 4)).argmax(1)
    assert torch.equal(predicted[labels != IGNORE], labels[labels != IGNORE].long())
