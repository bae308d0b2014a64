"""PCA as a segmenter: planted directions are found, and every decoder can be analyzed."""

import dataclasses
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from depict.analysis.figures.principal import (
    CAPTION,
    GAP,
    MAX_IMAGES,
    figures,
    image_panels,
    part_colors,
    pictures,
)
from depict.analysis.partitions import compare
from depict.analysis.principal import MASKS, METHODS, Principal, pca_segments, principal_directions, stages
from depict.analysis.runner import make_sample
from depict.analysis.text.principal import CAPTIONS, findings
from depict.data.scenes.dataset import Scenes
from depict.viz.patches import paint
from support.tiny_model import tiny_model


def planted(sizes=(40, 25, 15, 10), dim=24, noise=0.0, seed=0):
    """Patches on orthogonal lines through the origin, as many on each as `sizes` say, and which line each is on."""
    rng = np.random.default_rng(seed)
    lines = np.linalg.qr(rng.normal(size=(dim, len(sizes))))[0].T
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    lengths = rng.uniform(0.9, 1.1, len(labels)) * rng.choice([-1, 1], len(labels))
    return lengths[:, None] * lines[labels] + noise * rng.normal(size=(len(labels), dim)), labels, lines


def test_planted_lines_are_the_principal_directions():
    Z, _, lines = planted()
    U, shares = principal_directions(Z, 4)
    assert np.abs(U @ lines.T) == pytest.approx(np.eye(4), abs=1e-9)
    assert shares.sum() == pytest.approx(1)
    assert shares == pytest.approx(np.array([40, 25, 15, 10]) / 90, abs=0.03)
    assert (np.diff(shares) < 0).all()


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_planted_lines_give_perfect_segments(noise):
    Z, labels, _ = planted(noise=noise)
    assert compare(labels.reshape(9, 10), pca_segments(Z, 4).reshape(9, 10)) == (1, 1, 1)


def test_centering_removes_what_all_patches_share():
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], [30, 20])
    spread = np.zeros((50, 8))
    spread[np.arange(50), labels] = rng.choice([-1, 1], 50) * np.repeat([2.0, 1.0], [30, 20])
    shared = np.full(8, 5.0)
    assert len(np.unique(pca_segments(spread + shared, 2))) == 1  # the first direction of all is the mean
    assert compare(labels[None], pca_segments(spread + shared, 2, centered=True)[None]).best_match_miou > 0.9


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("patches", [1, 4])
def test_equal_patches_are_one_segment(patches):
    Z = np.ones((patches, 6), np.float32)
    assert all(len(set(segment(Z))) == 1 for segment in METHODS.values())


@given(st.integers(0, 2**20), st.integers(1, 12), st.booleans())
def test_directions_are_orthonormal_and_their_shares_sum_to_at_most_1(seed, count, centered):
    Z = np.random.default_rng(seed).normal(size=(7, 9)).astype(np.float32)
    U, shares = principal_directions(Z, count, centered)
    assert len(U) == min(count, 9)
    assert pytest.approx(np.eye(len(U)), abs=1e-9) == U @ U.T
    assert (shares >= 0).all()
    assert shares.sum() <= 1 + 1e-9


@given(st.integers(0, 2**20))
def test_rotating_the_embeddings_changes_no_segment(seed):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(30, 8)) * np.arange(1, 9)
    rotation = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    for centered in (False, True):
        assert (pca_segments(Z, 4, centered) == pca_segments(Z @ rotation, 4, centered)).all()


@pytest.mark.parametrize(
    ("decoder", "names"),
    [
        ("depict_sa", ["Z0", "mssa 1"]),
        ("depict_ca", ["Z0", "mssa 1"]),
        ("segmenter", ["Z0", "projected", "mhsa 1", "mlp 1"]),
        ("linear", ["Z0"]),
    ],
)
def test_stages_go_from_the_encoders_tokens_to_the_last_step_that_moves_patches(decoder, names):
    trace = tiny_model(decoder).unroll(np.zeros((40, 40, 3), np.uint8))
    found = stages(trace)
    assert list(found) == names
    assert (found["Z0"] == trace.tokens[0].numpy()).all()
    if decoder == "depict_ca":
        assert (found["mssa 1"] == trace.steps[0].Z[0].numpy()).all()


def test_parts_have_the_color_of_their_class_and_the_rest_a_shade_of_it():
    truth = np.array([[0, 0, 0, 1, 255]])
    found = np.array([[7, 7, 8, 9, 3]])
    colors = part_colors(truth, found, [(200, 0, 0), (0, 100, 0)])
    assert colors[7] == (200, 0, 0)
    assert colors[9] == (0, 100, 0)
    assert colors[8] != colors[7]
    assert colors[8][0] > max(colors[8][1:])
    assert paint(found, colors)[0, 0].tolist() == [200, 0, 0]
    assert colors[3] == tuple(paint(np.array([[50]]), {})[0, 0])


@pytest.fixture(scope="module", params=["depict_sa", "depict_ca", "segmenter", "linear"])
def analyzed(request):
    """The samples and the result of one decoder on five scenes, in reverse order."""
    model, scenes = tiny_model(request.param), Scenes(None, "val")
    analysis = Principal(model)
    samples = [make_sample(model, scenes, index) for index in reversed(range(5))]
    for sample in samples:
        analysis.update(sample)
    return samples, analysis.compute()


def test_every_decoder_has_numbers_at_every_stage(analyzed):
    samples, result = analyzed
    assert all(value is not None and np.isfinite(value) for value in result.numbers.values())
    assert result.data["images"] == 5
    assert len(result.tables["stages"]) == 3 * len(stages(samples[0].trace)) + 1
    expected = [
        compare(sample.patch_labels.view(sample.trace.grid).numpy(), sample.trace.masks[0].argmax(0).numpy())
        for sample in samples
    ]
    masks = next(row for row in result.tables["stages"] if row["stage"] == MASKS)
    assert masks["adjusted_rand"] == pytest.approx(np.mean([scores.adjusted_rand for scores in expected]))


def test_every_decoder_has_figures_words_and_a_picture_of_every_image(analyzed):
    samples, result = analyzed
    drawn = figures(result)
    assert set(drawn) == set(CAPTIONS)
    assert len(drawn["images"].axes) % MAX_IMAGES == 0
    assert list(pictures(result)) == sorted(sample.name for sample in samples)
    assert len(findings(result)) == (3 if len(stages(samples[0].trace)) > 1 else 1)


def test_the_picture_of_an_image_shows_every_method_before_and_after_the_decoder():
    model = tiny_model()
    analysis = Principal(model)
    sample = make_sample(model, Scenes(None, "val"), 0)
    analysis.update(sample)
    result = analysis.compute()
    panels = image_panels(result.measured.images[sample.name], model.palette)
    embeddings = stages(sample.trace)
    truth = sample.patch_labels.view(sample.trace.grid).numpy()
    for title, Z, method in (
        ("PCA on Z0", embeddings["Z0"], "PCA"),
        ("k-means, Z0", embeddings["Z0"], "k-means"),
        ("k-means, Z_L1", embeddings["mssa 1"], "k-means"),
    ):
        parts = METHODS[method](Z).reshape(sample.trace.grid)
        colors = part_colors(truth, parts, model.palette)
        assert {tuple(color) for color in panels[title].reshape(-1, 3).tolist()} <= set(colors.values())
    sheet = np.asarray(Image.open(io.BytesIO(pictures(result)[sample.name])))
    height, width = panels["input"].shape[:2]
    order = ["input", "truth", MASKS]
    order += [f"{method} {stage}" for stage in ("Z0", "Z_L1") for method in ("PCA on", "centered,", "k-means,")]
    for index, title in enumerate(order):
        y = GAP + CAPTION + index // 3 * (height + CAPTION + GAP)
        x = GAP + index % 3 * (max(width, 110) + GAP)
        assert (sheet[y : y + height, x : x + width] == panels[title]).all(), title


def test_images_without_truth_are_drawn_but_not_scored():
    model = tiny_model()
    analysis = Principal(model)
    sample = make_sample(model, Scenes(None, "val"), 0)
    analysis.update(dataclasses.replace(sample, labels=None, patch_labels=None))
    unlabeled = torch.full_like(sample.patch_labels, 255)
    ignored = torch.full_like(sample.labels, 255)
    analysis.update(dataclasses.replace(sample, name="other", labels=ignored, patch_labels=unlabeled))
    result = analysis.compute()
    assert not result.numbers
    assert set(figures(result)) == {"images"}
    assert list(pictures(result)) == ["other", sample.name]
    assert "no ground truth" in findings(result)[0]
