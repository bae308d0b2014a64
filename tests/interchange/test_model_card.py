"""The model card says what the model is and how it scored."""

import json

import pytest
import yaml

import depict
from depict.costs import parameters
from depict.interchange.model_card import model_card
from depict.model import SegmentationModel
from depict.runs import save
from support.tiny_model import tiny_model


@pytest.fixture
def run(tmp_path):
    save(tiny_model("depict_sa"), tmp_path)
    return tmp_path


def evaluated(run, name, **result):
    (run / f"{name}.json").write_text(json.dumps({"data": "scenes", "split": "val", "classes": []} | result))


def test_the_card_describes_the_model_and_its_scores(run):
    evaluated(run, "evaluation", miou=0.4321, classes=[{"name": "sky", "iou": 0.876}])
    evaluated(run, "evaluation_multiscale_short-edge64", miou=0.45)
    evaluated(run, "evaluation_last", miou=0.99, weights="last")
    evaluated(run, "evaluation_folder_test photos", miou=0.46, data="folder", root="test photos")
    model = depict.load(run)
    _, front_matter, text = model_card(run, model, "anna/scenes-tiny").split("---\n", 2)
    facts = yaml.safe_load(front_matter)
    assert facts["pipeline_tag"] == "image-segmentation"
    assert facts["tags"] == ["semantic-segmentation", "depict", "depict_sa"]
    assert facts["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.4321
    for part in (
        "| mIoU, scenes val | 43.21 % |",
        "| mIoU, scenes val, multiscale, short-edge64 | 45.00 % |",
        "| mIoU, folder test photos val | 46.00 % |",
        "`depict_sa` (layers 1, heads 3, head_dim 100, operator softmax, dropout 0.0, ",
        f"{parameters(model.decoder) / 1e6:.3f} M parameters",
        "| 0 | sky | `#",
        "87.6 %",
        "| 7 | car |",
        'depict.load("hf-hub:anna/scenes-tiny")',
        "| data | scenes |",
    ):
        assert part in text
    assert "99.00" not in text  # the best weights are pushed, not the last ones


def test_the_card_describes_the_neck_and_the_stride_of_the_masks(tmp_path):
    model = depict.create_model("linear", "test_efficientnet", num_classes=2, image_size=64, stride=8, neck_dim=32)
    size = f"{parameters(model.neck) / 1e6:.3f} M parameters"
    card = model_card(tmp_path, model, "anna/scenes-tiny")
    assert f"| neck | stride 8, stride 16, stride 32 to tokens of 32 dimensions at stride 8, {size} |" in card


@pytest.mark.parametrize("content", [None, "{", '{"miou": null}', "[]"])
def test_a_card_without_an_evaluation_has_no_score(run, content):
    if content:
        (run / "evaluation.json").write_text(content)
    card = model_card(run, depict.load(run), "anna/scenes-tiny")
    assert "mIoU" not in card
    assert "model-index" not in card


CELLS = {
    "[sky](javascript:alert(1))": r"\[sky\](javascript\:alert(1))",
    "![x](https://a.example/b.png)": r"!\[x\](https\://a.example/b.png)",
    "<b>sky</b>": r"&lt;b>sky&lt;/b>",
    "www.a.example": r"www\.a.example",
    "sky | road_sign `x`": r"sky \| road\_sign \`x\`",
    "&lt;a&gt;": "&amp;lt;a&amp;gt;",
}


def test_a_name_is_neither_link_nor_markup(tmp_path):
    save(SegmentationModel(tiny_model("linear").config, list(CELLS)), tmp_path)
    for number, name in enumerate(CELLS):
        evaluated(tmp_path, f"evaluation_{number}", miou=0.5, data="folder", root=name)
    card = model_card(tmp_path, depict.load(tmp_path), "anna/scenes-tiny")
    for number, cell in enumerate(CELLS.values()):
        assert f"| {number} | {cell} | `#" in card
        assert f"| mIoU, folder {cell} val | 50.00 % |" in card
