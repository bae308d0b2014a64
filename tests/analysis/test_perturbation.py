"""Perturbed copies of decoders: what each perturbation changes, and what it must not."""

import copy
import math

import numpy as np
import pytest
import torch

from depict.analysis.figures.perturbation import figures, miou_after_perturbation
from depict.analysis.perturbation import (
    MIX,
    NOISE,
    NONE,
    ORTHO,
    READINGS,
    ROTATE,
    Change,
    Perturbation,
    Tally,
    find_row,
    nearest_orthonormal,
    noise_deviation,
    perturb,
    plan_changes,
    predict_with,
    summarize,
)
from depict.analysis.runner import make_sample
from depict.analysis.text.perturbation import CAPTIONS, findings
from depict.data.dataset import random_subset
from depict.data.scenes.dataset import Scenes
from depict.decoders import create_decoder
from depict.evaluation import confusion_matrix, evaluate, sliding_window_for
from depict.operators import SubspaceAttention
from support.tiny_model import tiny_model, tiny_neck_model

ATTENTIVE = ["depict_sa", "depict_ca", "depict_us", "cbt", "segmenter"]


def random_decoder(name, dim=48):
    """A decoder with 2 heads in float64, whose biases are not zero, so that their share of the result is tested too."""
    options = {"heads": 2} if name == "segmenter" else {"heads": 2, "head_dim": 10}
    decoder = create_decoder(name, dim, 5, layers=2, **options).double().eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return decoder


def masks(decoder, dim=48):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        return decoder(torch.randn(2, 12, dim, dtype=torch.float64, generator=generator), (3, 4))


@pytest.mark.parametrize("name", ATTENTIVE)
@pytest.mark.parametrize("seed", [0, 1])
def test_an_orthogonal_change_within_heads_does_not_change_the_masks(name, seed):
    decoder = random_decoder(name)
    changed = perturb(decoder, Change(ROTATE, seed))
    assert any((a != b).any() for a, b in zip(decoder.parameters(), changed.parameters(), strict=True))
    torch.testing.assert_close(masks(changed), masks(decoder), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ATTENTIVE)
@pytest.mark.parametrize("change", [Change(MIX, 0), Change(ORTHO), Change(NOISE, 0, 0.1)])
def test_all_other_perturbations_change_the_masks(name, change):
    decoder = random_decoder(name)
    assert (masks(perturb(decoder, change)) - masks(decoder)).abs().max() > 1e-3


@pytest.mark.parametrize("name", [*ATTENTIVE, "linear"])
def test_the_original_decoder_is_never_changed(name):
    model = tiny_model(name)
    before = copy.deepcopy(model.state_dict())
    for change in plan_changes(model.decoder, (0, 1), (1e-2,)):
        perturb(model.decoder, change)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(p.requires_grad for p in model.decoder.parameters())


@pytest.mark.parametrize("name", ["depict_sa", "depict_ca"])
def test_mixing_keeps_the_gram_matrix_over_dimensions_but_not_that_of_a_head(name):
    decoder = random_decoder(name)
    changed = perturb(decoder, Change(MIX, 3))
    pairs = [
        (a.P, b.P)
        for a, b in zip(decoder.modules(), changed.modules(), strict=True)
        if isinstance(a, SubspaceAttention)
    ]
    assert len(pairs) == (2 if name == "depict_sa" else 5)
    for P, mixed in pairs:
        torch.testing.assert_close(mixed.T @ mixed, P.T @ P)
        assert (mixed[:10].T @ mixed[:10] - P[:10].T @ P[:10]).abs().max() > 1e-3


def test_orthonormal_rows_have_the_same_span():
    P = torch.randn(3, 4, 9, dtype=torch.float64)
    Q = nearest_orthonormal(P)
    torch.testing.assert_close(Q @ Q.mT, torch.eye(4, dtype=torch.float64).expand(3, 4, 4))
    torch.testing.assert_close(P @ Q.mT @ Q, P)
    torch.testing.assert_close(nearest_orthonormal(Q), Q)


def test_ortho_makes_every_head_orthonormal_and_any_such_basis_gives_the_same_masks():
    decoder = random_decoder("depict_sa")
    changed = perturb(decoder, Change(ORTHO))
    for part in changed.modules():
        if isinstance(part, SubspaceAttention):
            heads = part.bases()
            torch.testing.assert_close(heads @ heads.mT, torch.eye(10, dtype=torch.float64).expand(2, 10, 10))
    other = copy.deepcopy(decoder)
    with torch.no_grad():
        for part in other.modules():
            if isinstance(part, SubspaceAttention):
                part.P.copy_(torch.linalg.qr(part.bases().mT).Q.mT.flatten(0, 1))
    torch.testing.assert_close(masks(other), masks(changed), rtol=0, atol=1e-9)


def test_ortho_of_segmenter_acts_separately_on_queries_keys_and_values_and_on_nothing_else():
    decoder = random_decoder("segmenter")
    changed = perturb(decoder, Change(ORTHO))
    own = dict(decoder.named_parameters())
    for name, parameter in changed.named_parameters():
        if name.endswith("qkv.weight"):
            rows = parameter.unflatten(0, (3, 2, -1))
            torch.testing.assert_close(rows @ rows.mT, torch.eye(24, dtype=torch.float64).expand(3, 2, 24, 24))
        else:
            assert torch.equal(parameter, own[name])


@pytest.mark.parametrize(("reading", "variance"), [("variance", 0.04), ("standard deviation", 0.0016)])
def test_noise_has_the_variance_of_its_reading(reading, variance):
    decoder = create_decoder("segmenter", 128, 8)
    changed = perturb(decoder, Change(NOISE, 0, noise_deviation(0.04, reading)))
    pairs = zip(changed.parameters(), decoder.parameters(), strict=True)
    noise = torch.cat([(a - b).flatten() for a, b in pairs]).double()
    assert len(noise) > 400_000
    assert float(noise.detach().var()) == pytest.approx(variance, rel=0.02)
    assert float(noise.detach().mean()) == pytest.approx(0, abs=0.01 * math.sqrt(variance))


def test_every_parameter_gets_noise_and_a_seed_draws_the_same_directions_for_all_levels():
    decoder = random_decoder("depict_ca")
    small, large, other = (perturb(decoder, Change(NOISE, s, d)) for s, d in ((1, 0.1), (1, 0.2), (2, 0.1)))
    for own, a, b, c in zip(*(list(d.parameters()) for d in (decoder, small, large, other)), strict=True):
        assert (a != own).all()
        torch.testing.assert_close(2 * (a - own), b - own)
        assert (a != c).all()


def test_identities_are_planned_once_and_noise_levels_shared_between_readings():
    changes = plan_changes(random_decoder("depict_sa"), (0, 1, 2), (1e-4, 1e-2))
    kinds = [change.kind for change in changes]
    assert kinds[0] == NONE
    assert {kind: kinds.count(kind) for kind in kinds} == {NONE: 1, MIX: 3, ROTATE: 1, ORTHO: 1, NOISE: 9}
    assert sorted({c.deviation for c in changes if c.kind == NOISE}) == [1e-4, 1e-2, 1e-1]
    assert [c.kind for c in plan_changes(create_decoder("linear", 8, 2), (0,), (1e-2,))] == [NONE, NOISE, NOISE]


def test_rows_have_mean_spread_and_change_over_the_seeds():
    scores = {Change(NONE): 0.5, Change(MIX, 0): 0.2, Change(MIX, 7): 0.4, Change(NOISE, 0, 0.1): 0.1}
    rows = summarize(scores, (0.01, 0.1))
    mix = find_row(rows, MIX)
    assert (mix["seeds"], mix["miou"]) == ([0, 7], [0.2, 0.4])
    assert mix["mean"] == pytest.approx(0.3)
    assert mix["spread"] == pytest.approx(math.sqrt(0.02))
    assert mix["change"] == pytest.approx(-0.2)
    assert find_row(rows, ORTHO) is None
    assert find_row(rows, NOISE, "variance", 0.01)["mean"] == 0.1
    assert find_row(rows, NOISE, "standard deviation", 0.1)["mean"] == 0.1
    assert find_row(rows, NOISE, "standard deviation", 0.01) is None


@pytest.mark.parametrize("name", [*ATTENTIVE, "linear"])
def test_cached_tokens_give_the_labels_of_the_full_model(name):
    model = tiny_model(name)
    image, truth = Scenes(None, "val", size=(48, 70)).read(0)
    sliding = model.sliding_window()
    kept: list = []
    own = torch.from_numpy(model.predict(image).labels)
    assert torch.equal(predict_with(model.decoder, kept, image, model, sliding), own)
    assert len(kept) >= 1
    assert torch.equal(predict_with(model.decoder, kept, image, model, sliding), own)
    changed = copy.deepcopy(model)
    changed.decoder = perturb(model.decoder, Change(NOISE, 0, 0.5))
    labels = predict_with(changed.decoder, kept, image, model, sliding)
    assert torch.equal(labels, torch.from_numpy(changed.predict(image).labels))
    assert not torch.equal(labels, own)
    assert truth.shape == labels.shape


def test_the_encoder_runs_once_for_all_decoders():
    model = tiny_model()
    calls = []
    model.encoder.register_forward_hook(lambda _, inputs, __: calls.append(len(inputs[0])))
    tally = Tally(model, plan_changes(model.decoder, (0, 1), (1e-2,)))
    image, truth = Scenes(None, "val").read(0)
    tally.add(image, truth, model.sliding_window())
    first = len(calls)
    model.predict(image)
    assert len(calls) == 2 * first


@pytest.mark.parametrize("name", ["depict_us", "depict_sa", "cbt"])
def test_behind_a_neck_only_the_decoder_is_perturbed(name):
    model = tiny_neck_model(name)
    before = copy.deepcopy(model.state_dict())
    tokens = []
    model.neck.register_forward_hook(lambda _, __, output: tokens.append(output))
    tally = Tally(model, [Change(NONE), Change(ROTATE, 0), Change(NOISE, 0, 0.5)])
    tally.add(*Scenes(None, "val").read(0), model.sliding_window(full_image=True))
    assert len(tokens) == 1  # one for all decoders
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    with torch.inference_mode():
        own, rotated, noisy = (changed(tokens[0], (16, 16)) for changed in tally.decoders.values())
        assert torch.equal(own, model.decoder(tokens[0], (16, 16)))
    torch.testing.assert_close(rotated, own, rtol=0, atol=1e-4)
    assert (noisy - own).abs().max() > 0.1


def test_the_unperturbed_score_is_that_of_evaluate():
    model, scenes = tiny_model(), random_subset(Scenes(None, "val"), 3, 0)
    tally = Tally(model, [Change(NONE), Change(ROTATE, 0)])
    sliding = sliding_window_for(model, scenes)
    for index in range(3):
        tally.add(*scenes.read(index), sliding)
    expected = evaluate(model.predictor(sliding), scenes).miou
    assert tally.scores()[Change(NONE)] == expected
    assert tally.scores()[Change(ROTATE, 0)] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", [*ATTENTIVE, "linear"])
def test_a_run_is_analyzed_from_the_tokens_of_the_trace(name):
    model, scenes = tiny_model(name), Scenes(None, "val")
    before = copy.deepcopy(model.state_dict())
    analysis = Perturbation(model)
    own = np.zeros((8, 8), np.int64)
    for index in range(2):
        analysis.update(sample := make_sample(model, scenes, index))
        predictor = model.predictor(analysis.sliding, network=lambda _, sample=sample: sample.trace.masks)
        own += confusion_matrix(sample.labels, torch.from_numpy(predictor.labels(sample.image)), 8)
    assert (analysis.tally.confusions[Change(NONE)] == own).all()  # the tokens are those that the decoder was given
    result = analysis.compute()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    numbers = result.numbers
    assert numbers["mIoU unperturbed (%)"] > 0
    if name == "linear":
        assert numbers["after P O_K (%)"] is None
        assert "no attention" in findings(result)[0]
    else:
        assert numbers["after P'_h O_M (identity) (%)"] == pytest.approx(numbers["mIoU unperturbed (%)"], abs=0.1)
    assert {row["reading"] for row in result.tables["perturbations"]} == {None, *READINGS}
    assert all(np.isfinite(row["mean"]) for row in result.tables["perturbations"])
    assert set(figures(result)) == set(CAPTIONS)
    assert len(findings(result)) == 4


def test_images_without_truth_are_skipped():
    assert "no ground truth" in Perturbation(tiny_model()).compute().skipped


@pytest.mark.parametrize("length", [9, 40, 300])
def test_long_run_names_leave_room_for_the_figure(length):
    def row(kind, mean, reading=None, sigma=None):
        return {"perturbation": kind, "reading": reading, "sigma": sigma, "mean": mean, "spread": 0.01}

    rows = [row("none", 0.5), row("P O_K", 0.4)]
    rows += [row("noise", 0.3, reading, sigma) for reading in READINGS for sigma in (1e-3, 1e-2)]
    figure = miou_after_perturbation({f"{index}{'x' * length}": rows for index in range(3)})
    figure.canvas.draw()
    assert all(axes.get_position().width > 0.7 for axes in figure.axes)
