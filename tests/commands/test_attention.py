"""`depict attention` writes one picture, or prints one line that says why not."""

from __future__ import annotations

import pytest
from PIL import Image

from depict.cli import main
from depict.model import create_model
from depict.runs import save


@pytest.fixture
def run(tmp_path):
    model = create_model("depict_ca", "vit_tiny_patch16_224", image_size=32, classes=["sky", "traffic light"])
    save(model, tmp_path / "run")
    Image.new("RGB", (40, 30), "green").save(tmp_path / "picture.png")
    return str(tmp_path / "run")


def test_the_picture_itself_is_not_overwritten(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["attention", run, "picture.png", "--class", "sky", "--out", str(tmp_path / "picture.png")]) == 2
    assert "is the picture itself" in capsys.readouterr().err


def test_the_attention_of_a_layer_and_a_head_is_drawn_over_the_picture(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["attention", run, "picture.png", "--layer", "4", "--head", "2", "--class", "traffic light"]
    assert main(command) == 0
    name = "picture-attention-decoder-layer4-head2-traffic_light.png"
    assert f"written: {name} (1 map of 2 x 3 patches)" in capsys.readouterr().out
    with Image.open(tmp_path / name) as picture:
        assert picture.width > 900
    assert main(["attention", run, "picture.png", "--part", "encoder", "--at", "3,4", "--out", "maps/a.png"]) == 0
    assert (tmp_path / "maps/a.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.png", "--class", "sky"], "missing.png"),
        (["picture.png", "--at", "3;4"], "--at takes a position X,Y"),
        (["picture.png", "--at", "-3,4"], "--at takes a position X,Y"),
        (["picture.png", "--at", "40,0"], "outside the image of 40 x 30 pixels"),
    ],
)
def test_user_errors_are_one_line(run, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["attention", run, *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
