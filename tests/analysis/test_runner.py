"""The pass: the model runs once per image, and every analysis sees the same trace."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from depict.analysis.base import Analysis, Result
from depict.analysis.runner import (
    ANALYSES,
    Pictures,
    choose_analyses,
    evenly_spaced,
    make_sample,
    patch_labels,
    run_analyses,
)
from depict.data import create_dataset
from depict.data.dataset import IGNORE
from depict.errors import UserError
from depict.segment.inputs import find_inputs
from support.tiny_model import tiny_model


class Names(Analysis):
    """Remembers which images it saw."""

    name = "names"

    def __init__(self, model):
        super().__init__(model)
        self.seen = []

    def update(self, sample):
        self.seen.append(sample.name)

    def compute(self):
        return Result(numbers={"images": len(self.seen)}, data={"names": self.seen})


class RefusesImages(Names):
    def update(self, sample):
        super().update(sample)
        raise UserError(f"cannot use '{sample.name}', image {len(self.seen)}.")


class RefusesModels(Names):
    def __init__(self, model):
        raise UserError("this decoder has no steps.")


class RefusesResults(Names):
    def compute(self):
        raise UserError("no image was usable.")


class Broken(Names):
    def update(self, sample):
        raise ZeroDivisionError


@given(st.integers(1, 500), st.integers(1, 500))
def test_chosen_images_are_evenly_spaced_and_distinct(count, limit):
    chosen = sorted(evenly_spaced(count, limit))
    assert len(chosen) == min(count, limit)
    gaps = np.diff([*chosen, count])
    assert chosen[0] == 0
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1


def test_the_first_few_images_are_evenly_spaced_too():
    assert evenly_spaced(100, 8) == [0, 50, 25, 75, 12, 62, 37, 87]
    assert sorted(evenly_spaced(101, 100)[:4]) == [0, 32, 64, 96]


def test_a_patch_has_the_most_frequent_class_of_its_labeled_pixels():
    labels = torch.tensor(
        [
            [3, 3, 255, 255, 1],
            [3, 7, 255, 0, 2],
            [5, 5, 9, 4, 255],
        ],
        dtype=torch.uint8,
    )
    # The last patches reach beyond the image; ties go to the first class.
    assert patch_labels(labels, (3, 5), (2, 2), (2, 3)).tolist() == [3, 0, 1, 5, 4, IGNORE]


def test_labels_are_resized_to_the_size_at_which_the_model_sees_the_image():
    labels = torch.tensor([[1, 2], [255, 3]], dtype=torch.uint8)
    assert patch_labels(labels, (4, 4), (2, 2), (2, 2)).tolist() == [1, 2, 255, 3]
    larger = labels.repeat_interleave(6, 0).repeat_interleave(6, 1)
    assert patch_labels(larger, (4, 4), (2, 2), (2, 2)).tolist() == [1, 2, 255, 3]


@given(
    arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.sampled_from([0, 1, 2, 255])),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_patch_labels_equal_counting_patch_by_patch(labels, patch):
    grid = (-(-labels.shape[0] // patch[0]), -(-labels.shape[1] // patch[1]))
    found = patch_labels(torch.from_numpy(labels), labels.shape, patch, grid).tolist()
    expected = []
    for top in range(0, labels.shape[0], patch[0]):
        for left in range(0, labels.shape[1], patch[1]):
            cell = labels[top : top + patch[0], left : left + patch[1]]
            counts = [(cell == value).sum() for value in range(3)]
            expected.append(int(np.argmax(counts)) if max(counts) else IGNORE)
    assert found == expected


def test_a_sample_holds_the_unchanged_image_and_the_steps_on_the_full_image():
    model, scenes = tiny_model(), create_dataset("scenes", split="val")
    sample = make_sample(model, scenes, 3)
    image, labels = scenes.read(3)
    np.testing.assert_array_equal(sample.image, image.permute(1, 2, 0))
    assert (sample.name, sample.trace.grid) == ("val_00003", (3, 3))  # 128 pixels become 40, which need three patches
    assert torch.equal(sample.labels, labels)
    assert sample.patch_labels.shape == (9,)
    expected = model.unroll(sample.image)
    torch.testing.assert_close(sample.trace.Z[-1], expected.Z[-1])
    torch.testing.assert_close(sample.trace.masks, expected.masks)
    assert not any(step.P.requires_grad or step.step_size.requires_grad for step in sample.trace.steps)


def test_patch_labels_match_the_patches_that_the_model_sees():
    model = tiny_model()
    labels = torch.zeros(80, 120, dtype=torch.uint8)
    labels[64:, 96:] = 1  # rows 32 to 40 and columns 48 to 60 at the model's size: the last patch of both
    image = torch.zeros(3, 80, 120, dtype=torch.uint8)
    image[:, labels == 1] = 255
    embedded = []
    model.encoder.vit.patch_embed.register_forward_hook(
        lambda _module, _inputs, output: embedded.append(output.flatten(1, 2))
    )
    pictures = SimpleNamespace(read=lambda index: (index * image, labels), name_of=str)
    for index in (0, 1):
        sample = make_sample(model, pictures, index)
    assert sample.trace.grid == (3, 4)
    assert sample.patch_labels.nonzero().tolist() == [[11]]
    assert (embedded[0] != embedded[1])[0].any(-1).nonzero().tolist() == [[11]]


def test_the_encoder_runs_once_per_image_for_all_analyses():
    model, calls = tiny_model(), []
    model.encoder.register_forward_hook(lambda *_: calls.append(1))
    done = run_analyses(model, create_dataset("scenes", split="val"), [0, 50, 99], [Names, Names, Names])
    assert len(calls) == done.images == 3
    names = ["val_00000", "val_00050", "val_00099"]
    assert [outcome.result.data["names"] for outcome in done.outcomes] == [names] * 3


def test_an_analysis_that_raises_a_user_error_is_dropped_and_the_others_continue():
    analyses = [RefusesImages, Names, RefusesModels, RefusesResults]
    done = run_analyses(tiny_model("linear"), create_dataset("scenes", split="val"), [4, 8], analyses)
    errors = [outcome.error for outcome in done.outcomes]
    assert errors[0] == "cannot use 'val_00004', image 1."  # and it did not see the second
    assert errors[1:] == [None, "this decoder has no steps.", "no image was usable."]
    assert [outcome.result is not None for outcome in done.outcomes] == [False, True, False, False]


def test_a_bug_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        run_analyses(tiny_model(), create_dataset("scenes", split="val"), [0], [Broken])


def test_pictures_without_ground_truth_have_no_labels(tmp_path):
    for index in (10, 9):
        Image.new("RGB", (50, 40), (index, 0, 0)).save(tmp_path / f"frame{index}.png")
    pictures = Pictures(find_inputs([str(tmp_path)], tmp_path / "out")[0])
    sample = make_sample(tiny_model(), pictures, 1)
    assert (len(pictures), sample.name, sample.image.shape) == (2, "frame10", (40, 50, 3))
    assert sample.labels is None
    assert sample.patch_labels is None


def test_a_picture_that_cannot_be_read_is_named_and_skipped(tmp_path, capsys):
    Image.new("RGB", (50, 40)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    pictures = Pictures(find_inputs([str(tmp_path)], tmp_path / "out")[0])
    done = run_analyses(tiny_model(), pictures, [0, 1], [Names])
    assert (done.images, done.outcomes[0].result.data["names"]) == (1, ["good"])
    assert "depict: skipped:" in (error := capsys.readouterr().err) and "bad.png" in error
    with pytest.raises(UserError, match="none of the pictures"):
        run_analyses(tiny_model(), pictures, [0], [Names])


def test_analyses_run_in_the_order_of_the_report():
    names = [analysis.name for analysis in choose_analyses(None)]
    assert names == list(ANALYSES)
    assert [analysis.name for analysis in choose_analyses(f"{names[2]}, {names[0]}")] == [names[0], names[2]]


@pytest.mark.parametrize(
    ("only", "message"),
    [("principle", r"unknown analysis 'principle'. Did you mean 'principal'\?"), (",", "--only is empty")],
)
def test_an_unknown_or_empty_list_of_analyses_is_refused(only, message):
    with pytest.raises(UserError, match=message):
        choose_analyses(only)


@pytest.mark.parametrize("name", ANALYSES)
def test_a_module_that_measures_neither_draws_nor_words(name):
    source = Path(importlib.util.find_spec(f"depict.analysis.{name}").origin).read_text()
    imported = re.findall(r"^\s*(?:from|import) (\S+)", source, re.MULTILINE)
    forbidden = ("matplotlib", "depict.viz.style", "depict.analysis.figures", "depict.analysis.text")
    assert not [module for module in imported if module.startswith(forbidden)]
