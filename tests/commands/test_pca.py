"""`depict pca` writes one picture and one JSON file, or prints one line that says why not."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from depict.cli import main
from depict.data.scenes.dataset import render
from depict.runs import save
from support.tiny_model import tiny_model

SMALL = ["--encoder", "vit_tiny_patch16_224", "--encoder.pretrained", "False", "--short-edge", "64", "--device", "cpu"]


@pytest.fixture
def picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(render(0, 3, (60, 100))[0]).save("scene.png")
    return "scene.png"


def test_any_vit_gives_a_picture_and_the_shares_of_its_directions(picture, tmp_path, capsys):
    assert main(["pca", picture, *SMALL, "--directions", "4"]) == 0
    assert "written: scene-pca.png and scene-pca.json (4 x 7 patches)" in capsys.readouterr().out
    with Image.open(tmp_path / "scene-pca.png") as drawn:
        assert drawn.width > 1000
    written = json.loads((tmp_path / "scene-pca.json").read_text())
    assert written["grid"] == [4, 7]
    facts = written["embeddings"]["Z0"]
    assert len(facts["energy"]) == 4
    assert 0 < sum(facts["energy"]) <= 1
    for shares in facts["shares"].values():
        assert len(shares) == 4
        assert sum(shares) == pytest.approx(1)


def test_the_picture_itself_is_not_overwritten(picture, tmp_path, capsys):
    before = (tmp_path / picture).read_bytes()
    assert main(["pca", picture, *SMALL, "--out", f"./{picture}"]) == 2
    assert "is the picture itself" in capsys.readouterr().err
    assert (tmp_path / picture).read_bytes() == before


def test_encoders_with_register_tokens_and_other_patch_sizes_work(picture, tmp_path):
    words = ["--encoder", "vit_small_patch14_reg4_dinov2", "--encoder.pretrained", "False", "--short-edge", "40"]
    assert main(["pca", picture, *words, "--device", "cpu", "--out", "maps/dino.png"]) == 0
    assert json.loads((tmp_path / "maps" / "dino.json").read_text())["grid"] == [3, 5]


def test_a_level_of_a_hierarchical_encoder_is_chosen_by_its_stride(picture, tmp_path, capsys):
    words = ["--encoder", "test_efficientnet", "--encoder.pretrained", "False", "--short-edge", "64", "--device", "cpu"]
    for more, grid in (([], [2, 4]), (["--stride", "8"], [8, 16]), (["--stride", "4"], [16, 32])):
        assert main(["pca", picture, *words, *more, "--directions", "3"]) == 0
        assert json.loads((tmp_path / "scene-pca.json").read_text())["grid"] == grid
    assert main(["pca", picture, *words, "--stride", "5"]) == 2
    assert "'test_efficientnet' has no level of stride 5: try --stride 8." in capsys.readouterr().err
    assert main(["pca", picture, *SMALL, "--stride", "8"]) == 2
    assert "'vit_tiny_patch16_224' has no level of stride 8: try --stride 16." in capsys.readouterr().err


def test_a_run_also_shows_the_patches_after_its_decoder(picture, tmp_path):
    for decoder, names in (("depict_sa", ["Z0", "Z_L1"]), ("linear", ["Z0"])):
        save(tiny_model(decoder), tmp_path / decoder)
        words = ["--run", str(tmp_path / decoder), "--directions", "3", "--out", f"{decoder}.png"]
        assert main(["pca", picture, *words, "--device", "cpu"]) == 0
        assert list(json.loads((tmp_path / f"{decoder}.json").read_text())["embeddings"]) == names


def test_a_picture_of_one_color_is_one_segment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (50, 50), "navy").save("flat.png")
    assert main(["pca", "flat.png", *SMALL, "--directions", "2"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.png", *SMALL], "missing.png"),
        (["scene.png", *SMALL, "--directions", "0"], "--directions must be at least 1, not 0"),
        (["scene.png", *SMALL, "--directions", "29"], "at most 28, the patches of the picture"),
        (["scene.png", *SMALL, "--out", "a.jpg"], "--out 'a.jpg' must end in .png."),
        (["scene.png", *SMALL, "--run", "x"], "give --run or --encoder and --stride, not both"),
        (["scene.png", "--run", "x"], "'x' is not a run folder"),
        (["scene.png", "--encoder", "vit_tny_patch16_224"], "unknown encoder 'vit_tny_patch16_224'"),
        (
            ["scene.png", "--encoder", "vit_tiny_patch16_224", "--encoder.pretrained", "none.pth"],
            "there is no weight file 'none.pth'",
        ),
    ],
)
def test_user_errors_are_one_line_and_nothing_is_written(picture, tmp_path, capsys, words, message):
    assert main(["pca", *words]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not list(tmp_path.glob("*.json"))


def test_few_directions_hold_most_of_the_energy_of_a_pretrained_vit(shared, tmp_path, monkeypatch):
    photograph = sorted((shared / "camvid" / "val").glob("*.png"))[0]
    weights = shared / "weights" / "vit_tiny_patch16_224.safetensors"
    monkeypatch.chdir(tmp_path)
    words = ["--encoder", "vit_tiny_patch16_224", "--encoder.pretrained", str(weights), "--short-edge", "224"]
    assert main(["pca", str(photograph), *words, "--out", "out.png", "--device", "cpu"]) == 0
    facts = json.loads((tmp_path / "out.json").read_text())["embeddings"]["Z0"]
    assert sum(facts["energy"]) > 0.5
