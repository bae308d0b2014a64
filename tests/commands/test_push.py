"""`depict push` and `hf-hub:` against a hub on this machine. In processes of their own: the client reads its
settings once, and every other test is offline."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import depict
from depict.cli import main
from depict.runs import save
from support.fake_hub import TOKEN, fake_hub
from support.tiny_model import tiny_model


@pytest.fixture
def run(tmp_path):
    model = tiny_model("depict_sa", root=tmp_path / "secret place")
    save(model, tmp_path / "run")
    result = {"miou": 0.4321, "data": "scenes", "split": "val", "classes": [{"name": "sky", "iou": 0.876}]}
    (tmp_path / "run" / "evaluation.json").write_text(json.dumps(result))
    result = {"miou": 0.45, "data": "scenes", "split": "val", "classes": []}
    (tmp_path / "run" / "evaluation_multiscale_side64.json").write_text(json.dumps(result))
    result |= {"data": "folder", "root": "test photos", "miou": 0.46}
    (tmp_path / "run" / "evaluation_folder_test photos.json").write_text(json.dumps(result))
    return tmp_path / "run"


@pytest.fixture
def hub():
    with fake_hub() as running:
        yield running


def python(hub, home, *arguments, token=TOKEN):
    """Run Python with the hub's address and a home of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "5"}
    if token:
        environment["HF_TOKEN"] = token
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_a_run_goes_to_the_hub_and_comes_back(tmp_path, run, hub):
    pushed = python(hub, tmp_path / "home", "-m", "depict.cli", "push", run, "anna/scenes-tiny")
    assert pushed.returncode == 0, pushed.stderr
    assert f"written: {hub.url}/anna/scenes-tiny" in pushed.stdout
    files = hub.repositories["anna/scenes-tiny"]
    assert set(files) == {"README.md", "config.yaml", "model.safetensors"}
    assert files["model.safetensors"] == (run / "model.safetensors").read_bytes()
    assert all(b"secret place" not in files[name] for name in ("README.md", "config.yaml"))

    script = (
        "import depict, sys, torch\n"
        "model = depict.load('hf-hub:anna/scenes-tiny')\n"
        "torch.save(model(torch.linspace(-1, 1, 4608).view(1, 3, 48, 32)).detach(), sys.argv[1])\n"
    )
    loaded = python(hub, tmp_path / "home", "-c", script, tmp_path / "logits.pt", token=None)
    assert loaded.returncode == 0, loaded.stderr
    expected = depict.load(run)(torch.linspace(-1, 1, 4608).view(1, 3, 48, 32)).detach()
    assert torch.equal(torch.load(tmp_path / "logits.pt", weights_only=True), expected)


def test_findings_about_a_run_of_the_hub_go_to_the_current_folder(tmp_path):
    from depict.io.hub import output_folder

    assert output_folder("hf-hub:anna/model") == Path()
    assert output_folder(tmp_path) == tmp_path


def test_the_card_tells_what_the_model_is(run):
    from depict.interchange.hub import model_card

    card = model_card(run, depict.load(run), "anna/scenes-tiny")
    _, front, text = card.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert facts["pipeline_tag"] == "image-segmentation"
    assert facts["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.4321
    decoder = sum(parameter.numel() for parameter in depict.load(run).decoder.parameters())
    for told in (
        "| mIoU, scenes val | 43.21 % |",
        "| mIoU, scenes val, multiscale, side64 | 45.00 % |",
        "| mIoU, folder test photos val | 46.00 % |",
        "`depict_sa` (layers 1, heads 3, head_dim 100, dropout 0.0, ",
        f"{decoder / 1e6:.3f} M parameters",
        "| 0 | sky | `#",
        "87.6 %",
        "| 7 | car |",
        'depict.load("hf-hub:anna/scenes-tiny")',
        "| data | scenes |",
    ):
        assert told in text


def test_a_card_without_an_evaluation_says_no_score(run):
    from depict.interchange.hub import model_card

    for other in run.glob("evaluation_*.json"):
        other.unlink()
    for content in (None, "{", '{"miou": null}', "[]"):
        (run / "evaluation.json").unlink(missing_ok=True)
        if content:
            (run / "evaluation.json").write_text(content)
        card = model_card(run, depict.load(run), "anna/scenes-tiny")
        assert "mIoU" not in card
        assert "model-index" not in card


def test_mistakes_with_the_hub_are_told_in_one_line(tmp_path, run, hub):
    cases = (
        (("push", run, "anna/model"), None, "cannot push to 'anna/model'"),
        (("evaluate", "hf-hub:anna/absent"), TOKEN, "cannot get 'anna/absent' from the hub"),
    )
    for arguments, token, message in cases:
        answer = python(hub, tmp_path / "home", "-m", "depict.cli", *arguments, token=token)
        assert answer.returncode == 2
        assert message in answer.stderr
        assert answer.stderr.count("\n") == 1, answer.stderr
    assert hub.repositories == {}


def test_names_and_runs_are_checked_before_anything_is_sent(tmp_path, run, capsys):
    for arguments, message in (
        ([str(run), "model"], "must read user/name"),
        ([str(run), "a/b/c"], "must read user/name"),
        ([str(run), "../etc"], "must read user/name"),
        ([str(tmp_path), "anna/model"], "is not a run folder"),
    ):
        assert main(["push", *arguments]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(depict.UserError, match="must read user/name"):
        depict.load("hf-hub:model")


def test_offline_it_says_so(run):
    with pytest.raises(depict.UserError, match="cannot get 'anna/nowhere' from the hub") as raised:
        depict.load("hf-hub:anna/nowhere")
    assert "\n" not in str(raised.value)
