"""The commands of docs/training.md run, with fewer images and steps; those that cannot run are at least parsed."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
from accelerate.state import AcceleratorState
from PIL import Image
from safetensors.torch import save_file

from conftest import REPOSITORY
from depict import cli
from depict.commands import train
from depict.data.scenes.dataset import Scenes, render
from depict.runs import read_metrics
from depict.training import loop as training

GUIDE = (REPOSITORY / "docs" / "training.md").read_text()
SECTIONS = {text.splitlines()[0]: text for text in GUIDE.split("\n## ")[1:]}
BLOCK = re.compile(r"(?:<!-- (not run|file): ([^\n]*) -->\n)?```(bash|yaml)\n(.*?)```", re.DOTALL)
SMALL = shlex.split("--epochs 1 --batch 4 --image-size 64 --data.short-edge 64 --data.limit 4 --data.workers 0")


def blocks(section):
    """Marker, its text, language and content of every block of a section."""
    return BLOCK.findall(SECTIONS[section])


def commands(content):
    """The commands of a bash block as lists of words."""
    lines = content.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def is_training(words):
    return words[:2] == ["depict", "train"] or ("depict.cli" in words and "train" in words)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """What the guide assumes: a folder `photos`, and weights of a ViT-T with timm's names."""
    root = tmp_path_factory.mktemp("material")
    for part in ("images", "masks"):
        (root / "photos" / part).mkdir(parents=True)
    for index in range(10):
        image, labels = render(0, index, (60, 80))
        Image.fromarray(image).save(root / "photos" / "images" / f"street{index}.jpg")
        Image.fromarray(labels.astype(np.uint8)).save(root / "photos" / "masks" / f"street{index}.png")
    (root / "photos" / "classes.yaml").write_text(f"names: [{', '.join(Scenes.classes)}]\n")
    save_file(timm.create_model("vit_tiny_patch16_224", num_classes=0).state_dict(), root / "weights.safetensors")
    return root


@pytest.fixture
def folder(material, tmp_path, monkeypatch):
    """A working folder with that material, few scenes, and a cache of its own."""
    for name in ("photos", "weights.safetensors"):
        (tmp_path / name).symlink_to(material / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Scenes, "images", {"train": 8, "val": 2})
    monkeypatch.setenv("DEPICT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    yield tmp_path
    AcceleratorState._reset_state(reset_partial_state=True)


def run(words):
    """Run one command; depict itself in this process, because importing torch takes longer than the training."""
    words = [*words, *SMALL] if is_training(words) else words
    if words[0] == "depict":
        AcceleratorState._reset_state(reset_partial_state=True)
        return cli.main(words[1:])
    return subprocess.run(words, timeout=300).returncode


@pytest.mark.slow
@pytest.mark.parametrize("section", [name for name in SECTIONS if "```bash" in SECTIONS[name]])
def test_the_commands_of_a_section_run_one_after_the_other(section, folder):
    for marker, text, language, content in blocks(section):
        if marker == "file":
            (folder / text).write_text(content)
        elif language == "bash" and marker != "not run":
            for words in commands(content):
                assert run(words) == 0, shlex.join(words)
                if is_training(words):
                    assert (folder / words[words.index("--out") + 1] / "model.safetensors").exists()


def test_the_settings_of_commands_that_are_not_run_are_parsed(monkeypatch):
    seen = []
    monkeypatch.setattr(training, "train", lambda config, out, _: seen.append((config.data.name, str(out))))
    for section in SECTIONS:
        for marker, _, _, content in blocks(section):
            for words in commands(content) if marker == "not run" else ():
                if is_training(words):
                    assert train.run(words[words.index("train") + 1 :]) == 0
    assert ("ade20k", "runs/ade") in seen
    assert ("folder", "runs/photos") in seen
    assert len(seen) == 6


@pytest.mark.slow
def test_the_line_for_two_machines_joins_two_launchers(folder):
    contents = (content for _, _, _, content in blocks("Several GPUs and machines"))
    (line,) = (words for content in contents for words in commands(content) if "node1:29500" in words)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    launcher = line[: line.index("train") + 1]
    launcher[launcher.index("node1:29500")] = f"127.0.0.1:{port}"
    launcher[launcher.index("--nproc-per-node") + 1] = "1"
    settings = "--out runs/two --data folder --root photos --encoder vit_tiny_patch16_224 --encoder.pretrained False"
    settings += " --encoder.dim 64 --encoder.depth 1 --device cpu"
    processes = [subprocess.Popen([*launcher, *settings.split(), *SMALL]) for _ in range(2)]
    try:
        assert [process.wait(timeout=300) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    assert {line["processes"] for line in read_metrics(folder / "runs" / "two")} == {2}


def test_links_within_the_guide_lead_to_headings():
    headings = {re.sub(r"[^a-z0-9 -]", "", name.lower()).replace(" ", "-") for name in SECTIONS}
    links = set(re.findall(r"\]\(#([^)]*)\)", GUIDE))
    assert links <= headings
    assert len(links) >= 10
