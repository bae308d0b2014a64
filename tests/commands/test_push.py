"""`depict push` and `hf-hub:` with a hub on this machine."""

import pytest
import torch

import depict
from depict.cli import main
from depict.runs import save
from support.fake_hub import TOKEN, fake_hub, use_hub
from support.tiny_model import tiny_model


@pytest.fixture
def run(tmp_path):
    model = tiny_model("depict_sa", root=tmp_path / "secret place")
    model.config.encoder.pretrained = str(tmp_path / "secret place/weights.safetensors")
    model.config.train.init = str(tmp_path / "secret place/first run")
    save(model, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def hub():
    with fake_hub() as running:
        yield running


def test_a_run_goes_to_the_hub_and_comes_back(tmp_path, run, hub, monkeypatch, capsys):
    use_hub(monkeypatch, hub.url, tmp_path / "home")
    assert main(["push", str(run), "anna/scenes-tiny"]) == 0
    assert f"written: {hub.url}/anna/scenes-tiny" in capsys.readouterr().out
    files = hub.repositories["anna/scenes-tiny"]
    assert set(files) == {"README.md", "config.yaml", "model.safetensors"}
    assert files["model.safetensors"] == (run / "model.safetensors").read_bytes()
    assert all(b"secret place" not in files[name] for name in ("README.md", "config.yaml"))

    use_hub(monkeypatch, hub.url, tmp_path / "home", token=None)
    images = torch.linspace(-1, 1, 4608).view(1, 3, 48, 32)
    with torch.no_grad():
        assert torch.equal(depict.load("hf-hub:anna/scenes-tiny")(images), depict.load(run)(images))


def test_a_model_with_a_neck_comes_back_from_the_hub_with_its_statistics(tmp_path, hub, monkeypatch):
    model = depict.create_model("depict_sa", "test_efficientnet", num_classes=3, image_size=64, stride=4, neck_dim=16)
    images = torch.linspace(-1, 1, 2 * 3 * 64 * 64).view(2, 3, 64, 64)
    model.train()(images)  # changes the statistics of its BatchNorms
    save(model.eval(), tmp_path / "run")
    use_hub(monkeypatch, hub.url, tmp_path / "home")
    assert main(["push", str(tmp_path / "run"), "anna/neck"]) == 0
    with torch.no_grad():
        assert torch.equal(depict.load("hf-hub:anna/neck")(images), model(images))


@pytest.mark.parametrize(
    ("arguments", "token", "message"),
    [
        (("push", "RUN", "anna/model"), None, "cannot push to 'anna/model'"),
        (("evaluate", "hf-hub:anna/absent"), TOKEN, "cannot get 'anna/absent' from the hub"),
    ],
)
def test_refusals_of_the_hub_are_reported_in_one_line(
    tmp_path, run, hub, monkeypatch, capsys, arguments, token, message
):
    use_hub(monkeypatch, hub.url, tmp_path / "home", token)
    assert main([str(run) if word == "RUN" else word for word in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1, error
    assert hub.repositories == {}


def test_names_and_runs_are_checked_before_anything_is_sent(tmp_path, run, capsys):
    assert main(["push", str(run), "model"]) == 2
    assert "must have the form user/name" in capsys.readouterr().err
    assert main(["push", str(tmp_path), "anna/model"]) == 2
    assert "is not a run folder" in capsys.readouterr().err
