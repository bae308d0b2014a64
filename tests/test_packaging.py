"""The wheel works without the repository: it has all files, and a clean environment trains and segments with it."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from PIL import Image

import depict
from conftest import REPOSITORY
from depict.data.scenes.dataset import render

pytestmark = pytest.mark.slow


def run(*words, **options):
    """What a command prints; its errors are shown if it fails."""
    # Without PYTHONPATH: nothing of the repository may be found.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | options.pop("env", {})
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=env, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the source distribution, as `python -m build` does."""
    copy = tmp_path_factory.mktemp("build") / "depict"
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(REPOSITORY / "src", copy / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    run(sys.executable, "-m", "build", "--no-isolation", cwd=copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    """The programs of a new environment with the wheel; its libraries are those of this environment."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    run(sys.executable, "-m", "uv", "venv", "--offline", "--python", sys.executable, folder)
    (site,) = folder.glob("lib/python*/site-packages")
    # Files named *.pth there, such as the link to the repository, are not read: only a path is added.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(
        sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", folder / "bin/python", wheel
    )
    return folder / "bin"


def test_the_wheel_has_every_file_of_the_package_and_its_version(wheel):
    package = REPOSITORY / "src/depict"
    expected = {path.relative_to(package.parent).as_posix() for path in package.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    assert {name for name in packed if name.startswith("depict/")} == {n for n in expected if not n.endswith(".pyc")}
    assert f"depict-{depict.__version__}.dist-info/METADATA" in packed
    assert {"depict/configs/ade20k/base.yaml", "depict/web/page/index.html", "depict/py.typed"} <= packed


def test_a_clean_environment_trains_and_segments_with_the_wheel(clean, tmp_path):
    found = run(clean / "python", "-c", "import depict; print(depict.__file__)", cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(clean.parent)

    printed = run(clean / "depict", "demo", "--quick", cwd=tmp_path)
    assert "DEPICT-SA" in printed
    assert "these numbers mean little" in printed
    Image.fromarray(render(0, 5, (150, 200))[0]).save(tmp_path / "scene.png")
    run(clean / "depict", "segment", "runs/demo_quick/depict_sa", "scene.png", "--out", "out", cwd=tmp_path)
    with Image.open(tmp_path / "out/labels/scene.png") as labels:
        assert labels.size == (200, 150)
    shares = json.loads((tmp_path / "out/summary.json").read_text())["pictures"][0]["shares"]
    assert sum(shares.values()) == pytest.approx(1, abs=1e-3)
