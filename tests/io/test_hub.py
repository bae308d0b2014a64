"""A hub that does not answer: that is told at once, and what is kept on this machine is used.

In a process of its own, since the hub's client reads its settings once and every other test is offline.
"""

import os
import socket
import subprocess
import sys

import pytest
import timm
from safetensors.torch import save_file

from depict.runs import save
from support.tiny_model import tiny_model

VIT = "vit_tiny_patch16_224"
SCRIPT = f"""
import time
import depict
from depict.encoder import Encoder
from depict.io import hub

def sleep(seconds):
    raise AssertionError("it waits to try again")

time.sleep = sleep
hub.PATIENCE = 0.2
for attempt in (
    lambda: Encoder("{VIT}", (32, 32), pretrained=True),
    lambda: Encoder("vit_small_patch16_384", (32, 32), pretrained=True),
    lambda: depict.load("hf-hub:anna/kept"),
    lambda: depict.load("hf-hub:anna/streets"),
):
    try:
        print(type(attempt()).__name__)
    except depict.UserError as error:
        print(error)
"""


@pytest.fixture(params=["refused", "silent"])
def address(request):
    """A port where every connection is refused, or where nobody says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "silent":
            server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def keep(home, repository):
    """A folder for the files of a repository, as the hub's client keeps them."""
    place = home / "hub" / f"models--{repository.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("1" * 40)
    (place / "snapshots" / ("1" * 40)).mkdir(parents=True)
    return place / "snapshots" / ("1" * 40)


def test_a_hub_that_cannot_be_reached_is_told_at_once_unless_the_files_are_kept(tmp_path, address):
    weights = keep(tmp_path, timm.get_pretrained_cfg_value(VIT, "hf_hub_id")) / "model.safetensors"
    save_file(timm.create_model(VIT).state_dict(), weights)
    save(tiny_model("linear"), keep(tmp_path, "anna/kept"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_HUB_ETAG_TIMEOUT": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=300
    )
    assert answer.returncode == 0, answer.stderr
    kept, encoder, kept_run, run = answer.stdout.splitlines()
    assert (kept, kept_run) == ("Encoder", "SegmentationModel")
    assert encoder.startswith("cannot get the weights of 'vit_small_patch16_384' from the hub (")
    assert encoder.endswith("Give a local file (--encoder.pretrained FILE.safetensors), or False for random weights.")
    assert run.startswith("cannot get 'anna/streets' from the hub: ")
    assert run.endswith("It is not kept here either.")
    assert "waits" not in answer.stdout
    assert answer.stderr == ""
