"""The curves show each logged value, whether or not there was a validation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from depict.viz.curves import curves_figure, draw_curves, running_mean


def metrics(steps: int, validations: dict[int, float | None]) -> list[dict]:
    lines = []
    for step in range(1, steps + 1):
        lines.append({"iteration": step, "epoch": step / 4, "loss": 1 / step, "lr": 1e-3 / step})
        if step in validations:
            lines.append({"iteration": step, "epoch": step / 4, "miou": validations[step]})
    return lines


def test_losses_rates_and_scores_are_drawn_at_their_steps_and_the_best_is_named():
    figure = curves_figure(metrics(12, {4: 0.25, 8: 0.5, 12: 0.375}), "run")
    loss, score, rate = figure.axes[:3]
    np.testing.assert_allclose(loss.lines[0].get_xydata()[-1], [12, 1 / 12])
    np.testing.assert_allclose(score.lines[0].get_xydata(), [[4, 25], [8, 50], [12, 37.5]])
    np.testing.assert_allclose(score.lines[1].get_xydata(), [[8, 50]])
    np.testing.assert_allclose(rate.lines[0].get_xydata()[0], [1, 1e-3])
    assert figure.get_suptitle() == "run: best mIoU 50.00 % at step 8"


@pytest.mark.parametrize("lines", [[], metrics(1, {}), metrics(3, {3: None})], ids=["none", "one", "no labels"])
def test_a_training_without_a_score_has_curves_too(tmp_path, lines):
    draw_curves(lines, "run", tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width > 800


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=200))
def test_the_running_mean_is_the_mean_around_each_value(values):
    half = int(0.05 * len(values) / 2)
    expected = [np.mean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    np.testing.assert_allclose(running_mean(np.array(values)), expected, atol=1e-9)
