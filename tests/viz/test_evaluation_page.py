"""The page of an evaluation: which images it shows, what it says, and how it looks in a browser."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict.data.dataset import Dataset, Recipe
from depict.evaluation import evaluate
from depict.viz.evaluation_figures import MAX_CLASSES, confusion_figure, shown_classes
from depict.viz.evaluation_page import EXAMPLES, Examples, calibration_text, class_rows, confusions
from depict.viz.evaluation_page import write_evaluation_page as write
from support.browser import CONTRAST

EVIL = '<script>alert(1)</script> & "quotes"'


class Squares(Dataset):
    """Images whose gray level is the class; in image i, i percent of the pixels are labeled as another class."""

    name = "squares"
    classes = ("dark", EVIL, "a class with quite a long name", "never seen")
    palette = ((20, 20, 20), (200, 60, 60), (60, 200, 60), (60, 60, 200))
    recipe = Recipe(short_edge=40, max_aspect=2, crop=40, epochs=1, batch=1, lr=1.0)

    def __init__(self, order: list[int]) -> None:
        super().__init__(None, "val")
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def name_of(self, index: int) -> str:
        return f"square {self.order[index]}{' with_a_long_name' * (index == 0)}"

    def read(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = (torch.arange(100)[:, None] // 40 + torch.zeros(1, 150)).to(torch.uint8)
        image = (80 * labels)[None].repeat(3, 1, 1)
        labels[:, : int(1.5 * self.order[index])] = 1
        labels[:5] = 255
        return image, labels


class GrayPredictor:
    """Reads the class off the gray level, 70 % sure."""

    classes, palette = Squares.classes, Squares.palette

    def labels(self, image):
        return next(self.scores([image])).labels()

    def scores(self, images):
        return (GrayScores(image[..., 0] // 80) for image in images)


class GrayScores:
    def __init__(self, labels):
        self.values = labels

    def labels(self):
        return self.values

    def probabilities(self, size):
        rows, columns = ((np.arange(n) * m // n) for n, m in zip(size, self.values.shape, strict=True))
        one_hot = np.eye(4, dtype=np.float32)[self.values[rows][:, columns]].transpose(2, 0, 1)
        yield 0, size[0], 0.1 + 0.6 * one_hot


def evaluated(order: list[int]) -> tuple[dict, Examples]:
    dataset = Squares(order)
    examples = Examples(dataset)
    result = evaluate(GrayPredictor(), dataset, watch=examples.watch, calibrate=True)
    about = {"data": "squares", "split": "val", "weights": "best", "protocol": {"scales": [1.0], "flip": False}}
    return about | result.to_dict(), examples


@pytest.mark.slow
@given(st.permutations(range(0, 40, 2)))
def test_the_worst_and_the_best_images_are_kept_in_any_order(order):
    examples = evaluated(list(order))[1]
    worst, best = examples.worst_and_best()
    assert [found.name.split()[1] for found in worst] == ["38", "36", "34", "32", "30", "28"]
    assert [found.name.split()[1] for found in best] == ["0", "2", "4", "6", "8", "10"]
    assert len(examples.kept) == 2 * EXAMPLES


@pytest.mark.parametrize("images", range(1, 2 * EXAMPLES + 2))
def test_no_image_is_shown_twice(images):
    worst, best = evaluated(list(range(images)))[1].worst_and_best()
    shown = [found.index for found in (*worst, *best)]
    assert len(set(shown)) == len(shown) == min(images, 2 * EXAMPLES)
    assert 0 <= len(worst) - len(best) <= 1


def test_an_image_without_labels_is_not_an_example():
    dataset = Squares([0])
    examples = Examples(dataset)
    image, truth = dataset.read(0)
    examples.watch(0, image, torch.full_like(truth, 255), truth)
    assert examples.worst_and_best() == ([], [])


def test_confusions_are_listed_by_their_pixels_with_the_share_of_the_true_class():
    counts = np.array([[90, 10, 0], [30, 970, 0], [0, 1, 999]])
    assert confusions(counts, ("a", "b", "c")) == [("b", "a", "3.0 %"), ("a", "b", "10.0 %")]
    assert confusions(np.eye(3, dtype=int), ("a", "b", "c")) == []


def test_classes_are_listed_from_the_worst_and_without_those_that_appear_nowhere():
    scores = dict.fromkeys(("dice", "precision", "accuracy", "boundary_iou", "share"), 0.5)
    rows = [scores | {"name": name, "iou": iou} for name, iou in (("a", 0.9), ("b", None), ("c", 0.1))]
    assert [(row["name"], row["width"]) for row in class_rows(rows, [(0, 0, 0)] * 3)] == [
        ("c", "10.0%"),
        ("a", "90.0%"),
    ]


@pytest.mark.parametrize(
    ("confidence", "accuracy", "said"),
    [(0.9, 0.8, "too sure"), (0.7, 0.8, "not sure enough"), (0.8, 0.8, "as sure as")],
)
def test_the_calibration_is_put_into_words(confidence, accuracy, said):
    assert said in calibration_text({"ece": 0.1, "confidence": confidence, "accuracy": accuracy})


def test_a_confusion_matrix_of_many_classes_shows_the_largest():
    counts = np.diag(np.arange(150))
    assert shown_classes(counts) == list(range(150 - MAX_CLASSES, 150))
    figure = confusion_figure(counts, [f"class number {index}" for index in range(150)])
    assert len(figure.axes[0].get_xticks()) == MAX_CLASSES
    assert shown_classes(np.diag([5, 0, 3])) == [0, 2]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of an evaluation on 14 images."""
    path = tmp_path_factory.mktemp("page") / "evaluation.html"
    found, examples = evaluated(list(range(14)))
    write(path, "runs/mine", found, examples, "warning: the scores come from few images.", {"command": EVIL * 20})
    return path


def test_the_page_says_what_the_numbers_are(page):
    text = re.sub(r"base64,[^\"]*", "", page.read_text())
    assert "The scores come from few images." in text
    assert "Neither labeled nor predicted, and left out of the means: never seen." in text
    for word in ("mIoU", "Dice (F1)", "precision", "recall (mAcc)", "boundary IoU", "calibration error", "too sure"):
        assert word in text
    assert text.count("<picture>") == 2 + 4 * 2 * EXAMPLES
    assert "<script" not in text
    assert EVIL not in text
    assert not re.findall(r"(?:https?:)?//[a-z]", text)


def test_a_page_without_examples_or_calibration_has_no_such_sections(tmp_path):
    found, _ = evaluated([1])
    write(tmp_path / "page.html", "run", found | {"calibration": None}, Examples(Squares([])), None, {})
    text = (tmp_path / "page.html").read_text()
    assert 'id="classes"' in text
    assert not re.findall(r'id="(worst|best|calibration)"|class="note"', text)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_the_window_and_can_be_read(page, browser, width, scheme):
    messages, requests = [], []
    tab = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(page.as_uri())
    for details in tab.locator("details").all():
        details.evaluate("node => node.open = true")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert messages == []
    assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]
    assert min(tab.evaluate(CONTRAST))[0] >= 4.5, min(tab.evaluate(CONTRAST))
    row = [round(image.bounding_box()["y"]) for image in tab.locator("#worst .example").first.locator("img").all()]
    assert len(set(row)) == (2 if width == 390 else 1)
    bars = [bar.evaluate("node => node.style.getPropertyValue('--value')") for bar in tab.locator("td.bar").all()]
    assert bars == sorted(bars, key=lambda share: float(share.strip("% ")))
    photo = tab.locator("#best img").first
    photo.click()
    assert photo.bounding_box()["width"] >= 0.95 * min(width, 844)
    tab.close()
