"""The steps of a picture: what is shown is what the decoder computed, and a patch is answered from what was kept."""

import base64
import gzip

import numpy as np
import pytest
import torch

from depict.coding_rate import projected_coding_rate
from depict.web.unrolled import packed, token_colors, unroll
from support.explorer import picture
from support.tiny_model import tiny_model

DECODERS = ["depict_sa", "depict_ca", "depict_us", "depict_mask", "cbt", "segmenter", "linear", "ablation"]


def maps(unrolled, view):
    """Labels (depths, h, w), colors (depths, N, 3) and movement (depths, N)."""
    tokens, pixels = np.prod(unrolled.facts["grid"]), np.prod(view)
    size = pixels + 4 * tokens
    rows = np.frombuffer(gzip.decompress(unrolled.maps), np.uint8).reshape(-1, size)
    assert len(rows) == len(unrolled.facts["depths"])
    return (
        rows[:, :pixels].reshape(-1, *view),
        rows[:, pixels : pixels + 3 * tokens].reshape(-1, tokens, 3),
        rows[:, -tokens:],
    )


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_last_labels_are_those_of_the_whole_picture(decoder):
    model, image = tiny_model(decoder), picture(44, 60)
    unrolled = unroll(model, image, lambda: None)
    labels, _, _ = maps(unrolled, (44, 60))
    expected = model.predictor(model.sliding_window(full_image=True)).labels(image)
    assert (labels[-1] == expected).mean() > 0.999  # ties in the last digit
    assert len(labels) == len(model.unroll(image).steps) + 1
    assert unrolled.facts["queries"] == (decoder == "depict_mask")


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_patch_is_answered_with_the_attention_and_cosines_of_the_pass(decoder):
    model, image = tiny_model(decoder), picture(44, 60)
    unrolled = unroll(model, image, lambda: None)
    trace = model.unroll(image, attention=True)
    rows, columns = unrolled.facts["grid"]
    answer = unrolled.ask(1, columns - 1)
    patch = columns + columns - 1
    expected = {
        index: step.attention[0, :, patch, : rows * columns]
        for index, step in enumerate(trace.steps)
        if step.attention is not None and not step.operator.startswith("msca")
    }
    assert [step["step"] for step in answer["steps"]] == list(expected)
    for step in answer["steps"]:
        for head, values in zip(step["heads"], expected[step["step"]], strict=True):
            found = np.frombuffer(base64.b64decode(head["values"]), np.uint8).astype(float) - 128
            assert np.abs(found / 127 * head["scale"] - values.numpy()).max() <= 0.51 / 127 * head["scale"]
    closeness = trace.masks[0].flatten(1)[:, patch]
    if trace.Q_unit is not None:
        closeness = (trace.Z_unit @ trace.Q_unit.mT)[0, patch]
    assert unrolled.facts["closeness"] == ("logit" if decoder in ("linear", "depict_us", "depict_mask") else "cosine")
    assert np.array(answer["closeness"][-1]) == pytest.approx(closeness.numpy(), rel=2e-3, abs=2e-3)
    assert len(answer["closeness"]) == len(trace.steps) + 1


@torch.no_grad()
def test_facts_of_mssa_steps_are_the_step_size_and_the_rate_in_their_subspaces():
    model, image = tiny_model("depict_sa"), picture()
    trace = model.unroll(image)
    start, step = unroll(model, image, lambda: None).facts["depths"]
    assert (start["operator"], start["rates"], step["operator"]) == (None, None, "mssa")
    assert step["step_size"] == pytest.approx(model.decoder.layers[0].operator.step_size.item())
    expected = torch.stack([projected_coding_rate(Z[0].double(), trace.steps[0].P.double()) for Z in trace.Z], 1)
    assert np.array(step["rates"]) == pytest.approx(expected.numpy(), rel=1e-4)
    change = (trace.Z[1] - trace.Z[0])[0].norm(dim=1) / trace.Z[0][0].norm(dim=1)
    assert step["moved"] == pytest.approx(change.mean().item(), rel=1e-4)
    assert step["largest"] == pytest.approx(change.max().item(), rel=1e-4)


def test_msca_moves_the_classes_and_not_the_patches():
    unrolled = unroll(tiny_model("depict_ca"), picture(), lambda: None)
    _, colors, movement = maps(unrolled, (44, 60))
    depths = unrolled.facts["depths"]
    cross = [index for index, depth in enumerate(depths) if depth["operator"] == "msca"]
    assert len(cross) == 3
    for index in cross:
        assert not movement[index].any()
        assert (colors[index] == colors[index - 1]).all()
        assert depths[index]["moved"] > 0
        assert depths[index]["rates"] is None


def test_token_colors_do_not_flip_from_step_to_step():
    Z = np.random.default_rng(0).normal(size=(50, 12)) * np.linspace(3, 0.1, 12)
    first, second, third = token_colors([Z, Z.copy(), -Z])
    assert (first == second).all()
    assert (third == first).all()  # the mirrored tokens have the mirrored components, which are turned back


def test_signed_values_keep_their_sign_and_zero():
    values = np.array([0.0, -0.5, 0.25, 0.001])
    found = packed(values)
    steps = np.frombuffer(base64.b64decode(found["values"]), np.uint8)
    assert found["scale"] == 0.5
    assert list(steps) == [128, 1, 192, 128]


def test_what_is_kept_is_counted_and_the_picture_is_not_kept():
    unrolled = unroll(tiny_model(), picture(60, 80), lambda: None)
    assert unrolled.view.image.size == 0
    tokens = np.prod(unrolled.facts["grid"])
    assert unrolled.bytes > 2 * tokens * 64 * 4
    assert unrolled.bytes < 1 << 20
