"""The pass: each image goes through the model once, and every question sees what came out."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from depict.analysis import runner
from depict.analysis.base import Result, Analysis
from depict.analysis.runner import Pictures, run_analyses, choose_analyses, evenly_spaced, make_sample, patch_labels
from depict.data import create_dataset
from depict.data.dataset import IGNORE
from depict.errors import UserError
from depict.segment.inputs import find_inputs
from support.tiny_model import tiny_model


class Names(Analysis):
    """Remembers what it saw."""

    name, title = "names", "Which images came?"

    def __init__(self, model):
        super().__init__(model)
        self.seen = []

    def update(self, sample):
        self.seen.append(sample.name)

    def compute(self):
        return Result(numbers={"images": len(self.seen)}, data={"names": self.seen})


class Refuses(Names):
    name = "refuses"

    def update(self, sample):
        super().update(sample)
        raise UserError(f"no use of '{sample.name}', the {len(self.seen)}. image.")


class RefusesModels(Names):
    def __init__(self, model):
        raise UserError("this decoder has no steps.")


class Silent(Names):
    def compute(self):
        raise UserError("nothing was seen.")


class Broken(Names):
    def update(self, sample):
        raise ZeroDivisionError


@given(st.integers(1, 500), st.integers(1, 500))
def test_chosen_images_are_evenly_spread_and_distinct(count, wanted):
    chosen = sorted(evenly_spaced(count, wanted))
    assert len(chosen) == min(count, wanted)
    gaps = np.diff([*chosen, count])
    assert chosen[0] == 0
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1


def test_the_first_images_are_spread_as_well():
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
    # Rows and columns of patches reach beyond the image; among equals the first class is taken.
    assert patch_labels(labels, (3, 5), (2, 2)).tolist() == [3, 0, 1, 5, 4, IGNORE]


def test_labels_are_brought_to_the_size_at_which_the_model_sees_the_image():
    labels = torch.tensor([[1, 2], [255, 3]], dtype=torch.uint8)
    assert patch_labels(labels, (4, 4), (2, 2)).tolist() == [1, 2, 255, 3]
    assert patch_labels(labels.repeat_interleave(6, 0).repeat_interleave(6, 1), (4, 4), (2, 2)).tolist() == [
        1,
        2,
        255,
        3,
    ]


@given(
    arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.sampled_from([0, 1, 2, 255])),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_patch_labels_are_those_of_counting_patch_by_patch(labels, patch):
    found = patch_labels(torch.from_numpy(labels), labels.shape, patch).tolist()
    expected = []
    for top in range(0, labels.shape[0], patch[0]):
        for left in range(0, labels.shape[1], patch[1]):
            cell = labels[top : top + patch[0], left : left + patch[1]]
            counts = [(cell == value).sum() for value in range(3)]
            expected.append(int(np.argmax(counts)) if max(counts) else IGNORE)
    assert found == expected


def test_a_sample_holds_the_image_as_it_is_and_the_steps_of_the_whole_image():
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


def test_patch_labels_lie_where_the_model_sees_them():
    """The patch in which a class was painted is the patch that the network is given it in."""
    model = tiny_model()
    labels = torch.zeros(80, 120, dtype=torch.uint8)
    labels[64:, 96:] = 1  # rows 32 to 40 and columns 48 to 60 at the size of the protocol: the last patch of both
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


def test_the_encoder_runs_once_per_image_for_all_questions():
    model, calls = tiny_model(), []
    model.encoder.register_forward_hook(lambda *_: calls.append(1))
    outcome = run_analyses(model, create_dataset("scenes", split="val"), [0, 50, 99], [Names, Names, Names])
    assert len(calls) == outcome.images == 3
    names = ["val_00000", "val_00050", "val_00099"]
    assert [outcome.result.data["names"] for finding in outcome.findings] == [names] * 3


def test_a_question_that_refuses_is_told_and_the_others_go_on():
    kinds = [Refuses, Names, RefusesModels, Silent]
    outcome = run_analyses(tiny_model("linear"), create_dataset("scenes", split="val"), [4, 8], kinds)
    errors = [finding.error for finding in outcome.findings]
    assert errors[0] == "no use of 'val_00004', the 1. image."  # and was not asked about the second
    assert errors[1:] == [None, "this decoder has no steps.", "nothing was seen."]
    assert [outcome.result is not None for finding in outcome.findings] == [False, True, False, False]


def test_a_mistake_of_ours_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        run_analyses(tiny_model(), create_dataset("scenes", split="val"), [0], [Broken])


def test_pictures_without_ground_truth_are_seen_without_labels(tmp_path):
    for index in (10, 9):
        Image.new("RGB", (50, 40), (index, 0, 0)).save(tmp_path / f"frame{index}.png")
    pictures = Pictures(find_inputs([str(tmp_path)], tmp_path / "out")[0])
    sample = make_sample(tiny_model(), pictures, 1)
    assert (len(pictures), sample.name, sample.image.shape) == (2, "frame10", (40, 50, 3))
    assert sample.labels is None
    assert sample.patch_labels is None


def test_questions_are_asked_in_the_order_of_the_report():
    every = [kind.name for kind in choose_analyses(None)]
    assert every == list(runner.ANALYSES)
    assert [kind.name for kind in choose_analyses(f"{every[2]}, {every[0]}")] == [every[0], every[2]]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("principle", "unknown question 'principle'. Did you mean 'principal'?"), (",", "--questions names no question")],
)
def test_a_question_that_is_not_there_is_told(wanted, said):
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        choose_analyses(wanted)


def test_every_question_says_what_it_asks():
    for kind in choose_analyses(None):
        assert kind.title
        assert len(kind.about) > 80
