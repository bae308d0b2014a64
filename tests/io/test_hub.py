"""Runs and weights from a hub that cannot be reached: reported at once, unless they are cached on this machine."""

import socket
import time
from pathlib import Path

import pytest
import timm
from safetensors.torch import save_file

import depict
from depict.encoders import create_encoder
from depict.errors import UserError
from depict.io import hub
from depict.io.hub import short_names
from depict.runs import save
from support.fake_hub import fake_hub, use_hub
from support.tiny_model import tiny_model

VIT = "vit_tiny_patch16_224"


@pytest.fixture(params=["refused", "silent"])
def unreachable(request, tmp_path, monkeypatch):
    """A hub that refuses every connection, or accepts it and never answers; its cache is in `tmp_path`."""

    def sleep(seconds, own=time.sleep):
        assert seconds < 0.5, "it waits to try again"
        own(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(hub, "TIMEOUT", 0.2)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "silent":
            server.listen()
        use_hub(monkeypatch, f"http://127.0.0.1:{server.getsockname()[1]}", tmp_path)
        yield


def cache_folder(home, repository):
    """A folder for the files of a repository, as the hub's client caches them."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("1" * 40)
    (folder / "snapshots" / ("1" * 40)).mkdir(parents=True)
    return folder / "snapshots" / ("1" * 40)


def test_what_is_cached_is_used(unreachable, tmp_path):
    weights = cache_folder(tmp_path, timm.get_pretrained_cfg_value(VIT, "hf_hub_id")) / "model.safetensors"
    save_file(timm.create_model(VIT).state_dict(), weights)
    assert create_encoder(VIT, (32, 32), pretrained=True).dim == 192
    save(tiny_model("linear"), cache_folder(tmp_path, "anna/cached"))
    assert depict.load("hf-hub:anna/cached").config.decoder.name == "linear"


@pytest.mark.usefixtures("unreachable")
def test_what_is_not_cached_is_reported_at_once():
    with pytest.raises(UserError, match=r"cannot get the weights of 'vit_small_patch16_384' from the hub: "):
        create_encoder("vit_small_patch16_384", (32, 32), pretrained=True)
    with pytest.raises(UserError, match="cannot get 'anna/streets' from the hub: .* not in the local cache either.$"):
        depict.load("hf-hub:anna/streets")


def test_offline_mode_is_reported_in_one_line():
    with pytest.raises(UserError, match="cannot get 'anna/nowhere' from the hub") as raised:
        depict.load("hf-hub:anna/nowhere")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["model", "a/b/c", "../etc", "a/.."])
def test_a_name_that_is_not_one_of_the_hub_is_refused(name):
    with pytest.raises(UserError, match="must have the form user/name"):
        depict.load(f"hf-hub:{name}")


@pytest.fixture
def hub_with_model(tmp_path, monkeypatch):
    """A hub on this machine that has anna/model; the client's cache is in tmp_path/home."""
    save(tiny_model("linear"), tmp_path / "run")
    with fake_hub() as server:
        use_hub(monkeypatch, server.url, tmp_path / "home")
        server.repositories["anna/model"] = {
            name: (tmp_path / "run" / name).read_bytes() for name in (hub.CONFIG, hub.WEIGHTS)
        }
        yield server


def files_outside(home):
    return [
        path for path in home.parent.rglob("*") if path.is_file() and not {home, home.parent / "run"} & {*path.parents}
    ]


@pytest.mark.parametrize("revision", ["", "@main", f"@{'1' * 40}"])
def test_a_run_is_downloaded_once_and_then_comes_from_the_cache(hub_with_model, tmp_path, monkeypatch, revision):
    assert depict.load(f"hf-hub:anna/model{revision}").config.decoder.name == "linear"
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "home")
    assert depict.load(f"hf-hub:anna/model{revision}").config.decoder.name == "linear"


@pytest.mark.parametrize("header", ["ETag", "X-Linked-Etag", "X-Repo-Commit"])
@pytest.mark.parametrize("value", ["../../../../escaped/file", "/{root}/escaped", "..", 'W/"../../../../escaped/file"'])
def test_a_hostile_server_cannot_write_outside_the_cache(hub_with_model, tmp_path, header, value):
    hub_with_model.headers[header] = value.format(root=tmp_path)
    with pytest.raises(UserError, match="cannot get 'anna/model' from the hub: the server sent '.*' as the ") as caught:
        depict.load("hf-hub:anna/model")
    assert header.lower() in str(caught.value)
    assert files_outside(tmp_path / "home") == []


def test_the_weights_of_an_encoder_are_fetched_with_the_same_care(hub_with_model, tmp_path):
    name = timm.get_pretrained_cfg_value(VIT, "hf_hub_id")
    hub_with_model.repositories[name] = {"model.safetensors": b"weights"}
    hub_with_model.headers["ETag"] = "../../../../escaped/file"
    with pytest.raises(UserError, match="cannot get the weights of .* the server sent '"):
        create_encoder(VIT, (32, 32), pretrained=True)
    assert files_outside(tmp_path / "home") == []


def test_a_revision_is_not_a_path():
    with pytest.raises(UserError, match="is not a revision on the hub"):
        depict.load("hf-hub:anna/model@../../x")


def test_results_about_a_run_on_the_hub_go_to_the_current_folder(tmp_path):
    assert hub.output_folder("hf-hub:anna/model") == Path()
    assert hub.output_folder(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/a", "runs/b/"], ["a", "b"]),
        (
            ["one/cells/seed0", "two/cells/seed0", "two/cells/seed1"],
            ["one-cells-seed0", "two-cells-seed0", "two-cells-seed1"],
        ),
        (["hf-hub:user/name@v2", "runs/name"], ["name-v2", "name"]),
        (["runs/A", "runs/x/a"], ["runs-A", "x-a"]),
    ],
)
def test_runs_get_the_shortest_distinct_names(paths, names):
    assert short_names(paths) == names


def test_a_run_given_twice_is_refused():
    with pytest.raises(UserError, match="given twice"):
        short_names(["runs/a", "runs/../runs/a"])
