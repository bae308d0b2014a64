"""Models that come with depict work by name wherever a run does."""

from pathlib import Path

import pytest
from PIL import Image

import depict
from depict.cli import main
from depict.data.scenes.dataset import Scenes
from depict.io import shipped
from depict.io.hub import local_run, output_folder
from depict.runs import save
from support.tiny_model import tiny_model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a shipped model `small-one`; the tests run in another one."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "models")
    save(tiny_model(), tmp_path / "models" / "small-one")
    (tmp_path / "models" / "small-one" / "README.md").write_text("# small-one\n\nA model for tests.\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "models" / "small-one"


def test_a_shipped_model_is_loaded_by_its_name(folder):
    assert local_run("small-one") == folder
    assert depict.load("small-one").classes == tiny_model().classes


def test_results_about_a_shipped_model_go_to_the_current_folder(folder):
    assert output_folder("small-one") == Path()
    assert output_folder("other") == Path("other")
    assert output_folder(Path("small-one")) == Path("small-one")


def test_a_local_folder_of_the_same_name_is_an_error_that_names_the_way_out(folder):
    save(tiny_model(), Path("small-one"))
    with pytest.raises(depict.UserError, match="and a local folder: write './small-one' for the folder"):
        depict.load("small-one")
    assert depict.load("./small-one").classes


COMMANDS = {
    "segment": ("segment", "RUN", "view.png", "--out", "out"),
    "attention": ("attention", "RUN", "view.png", "--at", "9,9"),
    "evaluate": ("evaluate", "RUN", "--data", "scenes"),
    "analyze": ("analyze", "RUN", "--pictures", "pictures", "--out", "out", "--only", "coding_rates"),
    "perturbation": ("study", "perturbation", "RUN", "--out", "out", "--data", "scenes", "--limit", "1"),
    "train": ("train", "--out", "out", "--init", "RUN", "--data", "scenes", "--data.limit", "2", "--epochs", "1"),
    "export": ("export", "RUN", "out.onnx"),
}


@pytest.mark.parametrize("name", ["small-one", "./small-one"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_its_name_or_the_path_of_such_a_folder(folder, command, name, monkeypatch, capsys):
    if command == "export":
        pytest.importorskip("onnxruntime")
    if name.startswith("."):
        save(tiny_model(), Path(name))
    Path("pictures").mkdir()
    for path in ("view.png", "pictures/view.png"):
        Image.new("RGB", (64, 64), (90, 120, 200)).save(path)
    monkeypatch.setitem(Scenes.images, "val", 2)
    assert main([name if word == "RUN" else word for word in COMMANDS[command]]) == 0, capsys.readouterr().err
    if command == "evaluate":
        file = "small-one_evaluation" if name == "small-one" else "small-one/evaluation"
        assert list(Path().glob(f"{file}*.json"))


def test_a_mistyped_name_is_an_error_that_names_the_model(folder, capsys):
    with pytest.raises(depict.UserError, match="'smal-one' is not a run folder.* Did you mean 'small-one'"):
        depict.load("smal-one")
    assert main(["train", "--out", "run", "--init", "smal-one", "--data", "scenes"]) == 2
    assert "Did you mean 'small-one'?" in capsys.readouterr().err
    with pytest.raises(depict.UserError, match=r"it does not exist\.$"):
        depict.load("runs/mine")
    with pytest.raises(depict.UserError, match=f"Give the folder '{folder}'"):
        depict.load(str(folder / "config.yaml"))


def test_a_report_may_go_to_the_current_folder_beside_results_of_the_model_s_name(folder, tmp_path):
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (50, 40)).save(tmp_path / "pictures/a.png")
    command = ["analyze", "small-one", "--pictures", str(tmp_path / "pictures"), "--only", "principal", "--out", "."]
    assert main(command) == 0
    assert Path("report.html").is_file() and Path("small-one/principal.json").is_file()


def test_info_lists_the_models(folder, capsys):
    assert main(["info", "--models"]) == 0
    assert capsys.readouterr().out == "small-one  A model for tests.\n"
