"""The models that come with depict: small, documented, and ready for any picture."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

import depict
from depict.cli import main
from depict.commands.demo import PHOTOGRAPHS
from depict.io.shipped import shipped_models

NAME = "depict-ade20k"


@pytest.fixture(scope="module")
def folder():
    return shipped_models()[NAME]


@pytest.fixture(scope="module")
def model():
    return depict.load(NAME)


@pytest.fixture(scope="module")
def photograph():
    """Sky above grass, with a gradient and some noise."""
    rows = np.linspace(0, 1, 150)[:, None, None]
    sky, grass = np.array([120, 170, 230]), np.array([70, 130, 40])
    pixels = np.where(rows < 0.5, sky + 60 * rows, grass) * np.ones((1, 200, 1))
    noise = np.random.default_rng(0).normal(0, 8, pixels.shape)
    return Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))


def test_its_weights_are_small_and_in_float16(folder):
    path = folder / "model.safetensors"
    assert path.stat().st_size < 15e6
    with safe_open(path, "pt") as file:
        kinds = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 - it is not a mapping
    assert kinds <= {torch.float16, torch.int64}


def test_it_is_used_in_float32(model):
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float32}


def test_its_settings_name_no_folder_of_the_machine_that_trained_it(folder):
    text = (folder / "config.yaml").read_text()
    assert "root:" not in text
    assert "/work" not in text and "/home" not in text


def test_its_card_states_the_terms_and_the_scores_in_evaluation_json(folder):
    card, evaluation = (folder / "README.md").read_text(), json.loads((folder / "evaluation.json").read_text())
    assert "non-commercial research" in card and "Apache-2.0" in card
    assert evaluation["images"] == 2000
    assert f"{100 * evaluation['miou']:.1f} % mIoU" in " ".join(card.split())
    assert f"{100 * evaluation['aacc']:.1f} % of the pixels" in " ".join(card.split())


@pytest.mark.parametrize(
    ("file", "found"), [("temple.jpg", {"sky", "tree"}), ("rocket.jpg", {"sky"}), ("astronaut.jpg", {"person"})]
)
def test_it_finds_what_a_person_sees_in_a_photograph(model, file, found):
    shares = model.predict(PHOTOGRAPHS / file).classes
    assert all(shares.get(name, 0) > 0.1 for name in found), shares


def test_segment_takes_its_name(photograph, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    photograph.save("view.png")
    assert main(["segment", NAME, "view.png", "--out", "out"]) == 0
    assert (tmp_path / "out/overlays/view.png").is_file()
    printed = capsys.readouterr()
    assert "1 picture: 1 written" in printed.out
    assert re.search(r"^(sky|grass|field) \d+\.\d %, ", printed.out, re.MULTILINE)
    assert "Traceback" not in printed.err


def test_a_folder_of_its_name_needs_a_dot_and_a_slash(folder, photograph, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    photograph.save("view.png")
    (tmp_path / NAME).mkdir()
    assert main(["segment", NAME, "view.png", "--out", "out"]) == 2
    assert f"write './{NAME}' for the folder" in capsys.readouterr().err
    assert main(["segment", f"./{NAME}", "view.png", "--out", "out"]) == 2
    assert f"'{NAME}' is not a run folder" in capsys.readouterr().err
    shutil.copytree(folder, tmp_path / NAME, dirs_exist_ok=True)
    assert main(["segment", f"./{NAME}", "view.png", "--out", "out"]) == 0
    assert depict.load(f"./{NAME}").num_classes == 150


def test_info_lists_it(capsys):
    assert main(["info", "--models"]) == 0
    assert capsys.readouterr().out.startswith(NAME)


@pytest.mark.slow
def test_its_export_gives_the_same_labels(photograph, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    photograph.save("view.png")
    assert main(["export", NAME, "model.onnx"]) == 0
    for source, out in ((NAME, "torch"), ("model.onnx", "onnx")):
        assert main(["segment", source, "view.png", "--out", out]) == 0
    labels = [np.asarray(Image.open(tmp_path / out / "labels/view.png")) for out in ("torch", "onnx")]
    assert (labels[0] == labels[1]).mean() > 0.999
