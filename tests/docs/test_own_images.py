"""docs/own-images.md: its files are written and its commands run, in an empty folder.

Two things differ from the page: `SMALLER` is appended to trainings, so that they need no weights and take seconds, and
the installation runs separately, without dependencies. Commands run in this process, because importing torch would
take longer than most of them.
"""

import contextlib
import io
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from accelerate.state import AcceleratorState
from PIL import Image

from conftest import REPOSITORY
from depict import cli

GUIDE = (REPOSITORY / "docs" / "own-images.md").read_text()
SECTIONS = {text.splitlines()[0]: text for text in GUIDE.split("\n## ")[1:]}
BLOCK = re.compile(r"(?:<!-- (apart|file): ([^\n]*) -->\n)?```(bash|yaml|python|text)\n(.*?)```", re.DOTALL)
SMALLER = shlex.split("--encoder.pretrained False --encoder.dim 64 --encoder.depth 1 --epochs 1")
pytestmark = pytest.mark.slow


def commands(content):
    """The commands of a block as lists of words."""
    return [shlex.split(line) for line in content.replace("\\\n", " ").splitlines()]


def run(words):
    """Exit code and everything that one command prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
            return 0, printed.getvalue()
        assert words[0] == "depict"
        AcceleratorState._reset_state(reset_partial_state=True)
        return cli.main(words[1:]), printed.getvalue()


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The folder after all commands of the page, and what each of them printed."""
    folder, printed = tmp_path_factory.mktemp("followed"), {}
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        torch.set_num_threads(1)
        patch.chdir(folder)
        patch.setenv("DEPICT_CACHE", str(folder / "cache"))
        for marker, name, language, content in BLOCK.findall(GUIDE):
            if marker == "file":
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_text(content)
            elif language == "bash" and marker != "apart":
                for words in commands(content):
                    code, output = run(words + SMALLER if words[1] == "train" else words)
                    assert code == 0, f"{shlex.join(words)}\n{output}"
                    printed[shlex.join(words)] = output
    torch.set_num_threads(threads)
    AcceleratorState._reset_state(reset_partial_state=True)
    return folder, printed


def output(printed, start):
    """What the command that starts with `start` printed."""
    (found,) = (text for command, text in printed.items() if command.startswith(start))
    return found


def shown(section):
    """The first output that a section shows."""
    return next(content for _, _, language, content in BLOCK.findall(SECTIONS[section]) if language == "text")


def as_pattern(text):
    """The text that the page shows as a pattern, with anything for `…`."""
    return re.escape(text.strip()).replace("…", ".*")


def test_the_page_goes_from_two_folders_to_onnx(followed):
    _, printed = followed
    steps = ["depict check", "depict train", "depict evaluate", "depict segment runs", "depict export"]
    steps += ["depict segment photos.onnx"]
    order = [next(i for i, command in enumerate(printed) if command.startswith(step)) for step in steps]
    assert order == sorted(order)


def test_the_check_counts_what_the_page_shows_in_gray_and_in_color(followed):
    folder, printed = followed
    in_gray = output(printed, "depict check --data folder --root photos")
    in_color = output(printed, "depict check --data folder --root colored")
    assert shown("Check") in in_gray
    assert shown("Check") in in_color
    assert in_gray.count("ready for training") == 2
    with Image.open(folder / "samples.png") as sheet:
        assert sheet.width > 1000


def test_training_writes_a_run_and_caches_features(followed):
    folder, printed = followed
    assert "run: runs/photos" in output(printed, "depict train --out runs/photos ")
    assert {"config.yaml", "model.safetensors", "metrics.jsonl"} < {p.name for p in (folder / "runs/photos").iterdir()}
    assert any((folder / "cache").rglob("tokens.npy"))


def test_the_evaluation_prints_the_table_of_the_page_and_shows_errors(followed):
    folder, printed = followed
    words = re.compile(r"[A-Za-z.]{2,}")
    text = output(printed, "depict evaluate runs/photos --save")
    assert words.findall(text[text.index("class ") :]) == words.findall(shown("Evaluate"))
    found = json.loads((folder / "runs/photos/evaluation.json").read_text())
    errors = {path.stem for path in (folder / "seen/val/errors").iterdir()}
    assert errors == {picture["name"] for picture in found["images"]}
    assert len(errors) == 12
    worst = min(found["images"], key=lambda picture: picture["aacc"])
    assert output(printed, "python worst.py").splitlines()[0] == f"{worst['name']} {worst['aacc']}"


def test_the_test_pictures_are_measured_separately(followed):
    folder, printed = followed
    assert "(5 images)" in output(printed, "depict evaluate runs/photos --split test")
    assert len(json.loads((folder / "runs/photos/evaluation_test.json").read_text())["images"]) == 5
    assert len(json.loads((folder / "runs/photos/evaluation.json").read_text())["images"]) == 12


def test_new_pictures_get_labels_overlays_and_shares(followed):
    folder, printed = followed
    assert re.search(as_pattern(shown("Segment new pictures")), output(printed, "depict segment runs/photos"))
    with Image.open(folder / "seen/new/labels/view60.png") as labels:
        assert labels.size == (500, 300)
    assert len(list((folder / "seen/new/overlays").glob("*.png"))) == 6
    summary = json.loads((folder / "seen/new/summary.json").read_text())
    assert sum(summary["pictures"][0]["shares"].values()) == pytest.approx(1, abs=1e-3)
    assert output(printed, "python use.py").startswith("(300, 500)")


def test_the_onnx_file_gives_the_same_labels(followed):
    folder, _ = followed
    for path in (folder / "seen/new/labels").iterdir():
        ours, theirs = (np.asarray(Image.open(folder / "seen" / way / "labels" / path.name)) for way in ("new", "onnx"))
        assert (ours == theirs).mean() > 0.999


def test_training_the_encoder_writes_a_run(followed):
    folder, printed = followed
    assert "run: runs/photos_tuned" in output(printed, "depict train --out runs/photos_tuned ")
    config = yaml.safe_load((folder / "runs/photos_tuned/config.yaml").read_text())
    assert (config["encoder"]["name"], config["encoder"]["freeze"]) == ("vit_small_patch16_384", False)
    assert (folder / "runs/photos_tuned/model.safetensors").is_file()


def test_the_installation_brings_the_command_and_all_its_files(tmp_path):
    (block,) = (content for marker, _, _, content in BLOCK.findall(GUIDE) if marker == "apart")
    words = commands(block)[-1]
    assert words[:2] == ["pip", "install"]
    copy = tmp_path / "depict"
    shutil.copytree(REPOSITORY / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    what = words[2].replace("FOLDER/OF/depict", str(copy))
    offline = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site")]
    subprocess.run([sys.executable, "-m", *words[:2], what, *offline], check=True, capture_output=True)
    assert (tmp_path / "site/bin/depict").is_file()
    expected, installed = (
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
        for folder in (copy / "src/depict", tmp_path / "site/depict")
    )
    assert installed == expected
    assert "Provides-Extra: onnx" in next((tmp_path / "site").glob("*.dist-info/METADATA")).read_text()


CHECK = "depict check --data folder --root photos"
TRAIN = next(shlex.join(words) for words in commands(BLOCK.findall(SECTIONS["Train"])[0][3]))


def mask(change):
    """Change one mask."""
    path = Path("photos/masks/scene03.png")
    with Image.open(path) as picture:
        changed = change(picture)
    changed.save(path, "JPEG" if changed.info.get("blur") else "PNG")


def with_value(picture):
    labels = np.array(picture)
    labels[:20, :20] = 9
    return Image.fromarray(labels)


def blurred(picture):
    picture.load()
    picture.info["blur"] = True
    return picture


def smoothed():
    path = Path("colored/labels/scene03.png")
    picture = Image.open(path).convert("RGB")
    picture.putpixel((5, 5), (127, 159, 191))
    picture.save(path)


def black_and_white():
    for path in Path("photos/masks").glob("*.png"):
        Image.fromarray(np.where(np.array(Image.open(path)) == 0, 0, 255).astype(np.uint8)).save(path)
    Path("photos/classes.yaml").write_text("names: [background, leaf]\n")


MISTAKES = {
    "cannot list": (lambda: Path("photos/images").rename("photos/pictures"), CHECK),
    "no mask for": (lambda: Path("photos/masks/scene03.png").unlink(), CHECK),
    "is 160x120 but": (lambda: mask(lambda picture: picture.resize((160, 120), 0)), CHECK),
    "holds 9": (lambda: mask(with_value), CHECK),
    "is a JPEG": (lambda: mask(blurred), CHECK),
    "is a color (RGB)": (lambda: mask(lambda picture: picture.convert("RGB")), CHECK),
    "holds the colors": (smoothed, CHECK.replace("photos", "colored")),
    "without a single pixel": (black_and_white, CHECK),
    "cannot get the weights": (lambda: None, f"{TRAIN} --out runs/other"),
    "was trained with": (lambda: None, f"{TRAIN} {shlex.join(SMALLER)} --image-size 480 640"),
}


def quoted():
    return [content for _, _, language, content in BLOCK.findall(SECTIONS["Troubleshooting"]) if language == "text"]


def test_every_error_on_the_page_is_provoked():
    assert [sum(mark in line for line in quoted()) for mark in MISTAKES] == [1] * len(quoted())


@pytest.mark.parametrize("mark", MISTAKES)
def test_a_mistake_prints_the_line_that_the_page_quotes(followed, tmp_path, monkeypatch, mark):
    line = next(line for line in quoted() if mark in line)
    for name in ("photos", "colored", "runs"):
        shutil.copytree(followed[0] / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    spoil, command = MISTAKES[mark]
    spoil()
    _, printed = run(shlex.split(command))
    assert re.search(f"^(depict: | *){as_pattern(line)}$", printed, re.MULTILINE), printed


def test_links_have_targets():
    headings = {re.sub(r"[^a-z0-9 -]", "", name.lower()).replace(" ", "-") for name in SECTIONS}
    links = re.findall(r"\]\(([^)]*)\)", GUIDE)
    assert {link[1:] for link in links if link.startswith("#")} <= headings
    assert all((REPOSITORY / "docs" / link.split("#")[0]).exists() for link in links if not link.startswith("#"))
    assert len(links) > 15
