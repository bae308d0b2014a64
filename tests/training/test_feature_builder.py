"""Building caches of features: once, by one process, completely or not at all."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from depict import UserError
from depict.data import create_dataset
from depict.data.dataset import random_subset
from depict.data.scenes.dataset import Scenes
from depict.training import feature_builder
from depict.training.feature_builder import cache_key, default_folder, fitted_size, open_cache
from depict.training.feature_cache import View
from support.features import FewScenes, by_hand, opened, photographs, small

TESTS = Path(__file__).parents[1]


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 800), st.integers(1, 800))
def test_a_fitted_image_touches_the_edge_of_the_window_and_never_exceeds_it(height, width, box_height, box_width):
    fitted = fitted_size(height, width, (box_height, box_width))
    assert 1 <= fitted[0] <= box_height and 1 <= fitted[1] <= box_width
    assert fitted[0] == box_height or fitted[1] == box_width


def test_an_encoder_in_training_mode_is_evaluated_and_put_back(tmp_path):
    model = small(freeze=False, drop_path=0.9, depth=3).train()
    dataset = FewScenes(None, "train")
    cache = opened(model, dataset, tmp_path)
    assert model.training and model.encoder.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    model.masks(torch.randn(1, 3, 32, 48)).sum().backward()
    torch.testing.assert_close(cache.tokens[4, 1].float(), by_hand(model, dataset, 4, True)[0], rtol=2e-3, atol=2e-3)


def test_a_second_opening_encodes_nothing(tmp_path):
    model = small()
    first = opened(model, FewScenes(None, "train"), tmp_path)

    class Unreadable(FewScenes):
        def read(self, index):
            raise AssertionError("read again")

    second = opened(small(), Unreadable(None, "train"), tmp_path)
    assert second.folder == first.folder
    assert torch.equal(second.tokens, first.tokens)


def test_the_key_changes_with_everything_that_matters_and_with_nothing_else(tmp_path):
    scenes, photos = FewScenes(None, "train"), photographs(tmp_path)
    keys = {
        "base": cache_key(small(), scenes),
        "weights": cache_key(small(seed=1), scenes),
        "size": cache_key(small((48, 32)), scenes),
        "split": cache_key(small(), FewScenes(None, "val")),
        "resolution": cache_key(small(), FewScenes(None, "train", 64)),
        "count": cache_key(small(), Scenes(None, "train", 32)),
        "subset": cache_key(small(), random_subset(Scenes(None, "train", 32), 5, seed=0)),
        "other subset": cache_key(small(), random_subset(Scenes(None, "train", 32), 5, seed=1)),
        "data": cache_key(small(), photos),
        "no mirror images": cache_key(small(), scenes, mirrored=False),
    }
    os.utime(tmp_path / "masks/train/2.png", (0, 0))
    keys["file"] = cache_key(small(), photos)
    (tmp_path / "classes.yaml").write_text("names: [x, y, z]\n")
    keys["classes"] = cache_key(small(), create_dataset("folder", tmp_path, "train"))
    (tmp_path / "classes.yaml").write_text("names: [x, y, z]\nignore: 9\n")
    keys["meaning"] = cache_key(small(), create_dataset("folder", tmp_path, "train"))
    assert len(set(keys.values())) == len(keys)
    other_decoder = small(freeze=False, drop_path=0.3).train()
    torch.nn.init.ones_(other_decoder.decoder.head.weight)
    assert cache_key(other_decoder, FewScenes(None, "train")) == keys["base"]


def test_a_subset_is_read_from_the_cache_of_the_full_data_set(tmp_path):
    whole = FewScenes(None, "train")
    everything = opened(small(), whole, tmp_path)
    part = random_subset(random_subset(whole, 3, seed=1), 2, seed=0)
    cache = opened(small(), part, tmp_path)
    assert cache.folder == everything.folder
    assert len(cache) == 2
    for index in range(2):
        name = part.name_of(index)
        number = next(i for i in range(len(whole)) if whole.name_of(i) == name)
        got, expected = cache.batch([index], [View(True)]), everything.batch([number], [View(True)])
        assert torch.equal(got.tokens, expected.tokens)
        assert torch.equal(got.labels, expected.labels)


def test_without_mirror_images_a_cache_is_half_as_large_and_one_with_them_serves_both(tmp_path):
    dataset = FewScenes(None, "train")
    plain = opened(small(), dataset, tmp_path, mirrored=False)
    both = opened(small(), dataset, tmp_path)
    assert (plain.tokens.shape[1], both.tokens.shape[1]) == (1, 2)
    assert torch.equal(plain.tokens[:, 0], both.tokens[:, 0])
    assert opened(small(), dataset, tmp_path, mirrored=False).folder == both.folder


def test_one_changed_weight_builds_another_cache_next_to_the_old_one(tmp_path):
    model, dataset = small(), FewScenes(None, "train")
    old = opened(model, dataset, tmp_path)
    with torch.no_grad():
        next(model.encoder.parameters()).view(-1)[0] += 1
    new = opened(model, dataset, tmp_path)
    assert new.folder != old.folder
    assert not torch.equal(new.tokens, old.tokens)
    assert torch.equal(opened(small(), dataset, tmp_path).tokens, old.tokens)


def _cut(path: Path):
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen(path: Path):
    path.write_bytes(path.read_bytes() + b"\0")


def _garble(path: Path):
    path.write_bytes(b"\0" * path.stat().st_size)


def _empty(path: Path):
    path.write_bytes(b"")


def _reshape(path: Path):
    array = np.load(path)
    np.save(path, array.reshape(array.shape[::-1]))


def _flip_one_bit(path: Path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


DAMAGES = [
    *(
        (name, damage)
        for name in ("tokens", "labels", "sizes")
        for damage in (_cut, _lengthen, _garble, _reshape, _flip_one_bit)
    ),
    *((name, Path.unlink) for name in ("tokens", "meta")),
    *((name, _empty) for name in ("labels", "meta")),
    ("meta", _garble),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_cache_is_noticed_and_built_again(tmp_path, capfd, name, damage):
    model, dataset = small(), FewScenes(None, "train")
    cache = opened(model, dataset, tmp_path)
    tokens = cache.tokens.clone()
    damage(next(cache.folder.glob(f"{name}.*")))
    again = open_cache(model, dataset, tmp_path)
    assert "is damaged and is built again" in capfd.readouterr().err
    assert torch.equal(again.tokens, tokens)
    assert sorted(path.name for path in again.folder.iterdir()) == [
        "labels.npy",
        "meta.json",
        "sizes.npy",
        "tokens.npy",
    ]


def test_an_error_of_reading_is_one_line_and_removes_no_cache(tmp_path):
    model, dataset = small(), FewScenes(None, "train")
    folder = opened(model, dataset, tmp_path).folder
    (folder / "sizes.npy").unlink()
    (folder / "sizes.npy").mkdir()
    with pytest.raises(UserError, match=f"cannot read the features in '{folder}': Is a directory"):
        open_cache(model, dataset, tmp_path)
    assert (folder / "tokens.npy").is_file()


def test_the_cache_reports_its_content_its_folder_and_its_size(tmp_path, capfd):
    cache = open_cache(small(), FewScenes(None, "train"), tmp_path)
    printed = capfd.readouterr().err
    assert "encoding" in printed
    assert f"features of 5 images: 0.00 GB in '{cache.folder}'" in printed
    meta = json.loads((cache.folder / "meta.json").read_text())
    assert (meta["encoder"], meta["data"], meta["split"]) == ("vit_tiny_patch16_224", "scenes", "train")
    assert (meta["images"], meta["grid"]) == (5, [4, 6])
    open_cache(small(), FewScenes(None, "train"), tmp_path)
    assert capfd.readouterr().err == ""


def test_the_user_chooses_the_folder_of_caches(monkeypatch):
    monkeypatch.delenv("DEPICT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_folder() == Path.home() / ".cache/depict/features"
    monkeypatch.setenv("XDG_CACHE_HOME", "/large/cache")
    assert default_folder() == Path("/large/cache/depict/features")
    monkeypatch.setenv("DEPICT_CACHE", "~/here")
    assert default_folder() == Path.home() / "here/features"


def only_locks(folder):
    return all(path.suffix == ".lock" for path in folder.iterdir())


@pytest.mark.parametrize("error", [UserError("no image"), KeyboardInterrupt()])
def test_an_interrupted_build_leaves_nothing_behind(tmp_path, error):
    class Interrupted(FewScenes):
        def read(self, index):
            if index == 3:
                raise error
            return super().read(index)

    model = small()
    with pytest.raises(type(error)):
        opened(model, Interrupted(None, "train"), tmp_path, batch=2)
    assert only_locks(tmp_path)
    assert len(opened(model, FewScenes(None, "train"), tmp_path)) == 5


def test_undefined_features_are_reported_with_the_samples(tmp_path):
    model = small()
    torch.nn.init.constant_(model.encoder.vit.norm.bias, torch.nan)
    with pytest.raises(UserError, match="undefined features for 'train_00000' to 'train_00001'"):
        opened(model, FewScenes(None, "train"), tmp_path, batch=2)
    assert only_locks(tmp_path)


def test_too_little_room_is_reported_before_anything_is_written(tmp_path):
    class Endless(Scenes):
        def __len__(self):
            return 10**12

        def read(self, index):
            raise AssertionError("started anyway")

    with pytest.raises(UserError, match=r"needs \d+\.\d\d GB, but only .* free at '.*': set DEPICT_CACHE") as caught:
        opened(small(), Endless(None, "train"), tmp_path)
    assert "\n" not in str(caught.value)
    assert only_locks(tmp_path)


def test_a_folder_that_cannot_be_created_is_reported_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot keep features in '.*file/below': Not a directory") as caught:
        opened(small(), FewScenes(None, "train"), tmp_path / "file/below")
    assert "\n" not in str(caught.value)


def test_unfinished_caches_are_removed_unless_their_lock_is_held(tmp_path):
    old, current = (tmp_path / f"{letter * 32}.1234.part" for letter in "ab")
    old.mkdir()
    current.mkdir()
    with FileLock(tmp_path / f"{'b' * 32}.lock"):
        opened(small(), FewScenes(None, "train"), tmp_path)
    assert list(tmp_path.glob("*.part")) == [current]


def test_an_error_of_the_disk_is_one_line_and_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(feature_builder, "_npy", full)
    with pytest.raises(UserError, match="cannot keep features in '.*': No space left on device: set DEPICT_CACHE"):
        opened(small(), FewScenes(None, "train"), tmp_path)
    assert only_locks(tmp_path)


@pytest.fixture
def start(tmp_path):
    """Starts other Python processes with the names of support/features.py, and `folder`; kills them at the end."""
    header = f"import sys, time; from support.features import *; folder = Path({str(tmp_path)!r})\n"
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    processes = []

    def start(program, **options):
        process = subprocess.Popen(
            [sys.executable, "-c", header + program],
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **options,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        with process:
            process.kill()


STUCK = """
class Stuck(FewScenes):
    def read(self, index):
        if index == 3:
            print("halfway", flush=True)
            time.sleep(600)
        return super().read(index)
opened(small(), Stuck(None, "train"), folder, batch=1)
"""


@pytest.mark.slow
def test_a_killed_build_is_started_again_and_leaves_nothing_behind(tmp_path, start):
    process = start(STUCK)
    assert process.stdout.readline() == "halfway\n"
    parts = list(tmp_path.glob("*.part"))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(parts) == 1 and parts[0].is_dir()
    model, dataset = small(), FewScenes(None, "train")
    cache = opened(model, dataset, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == [cache.folder.name]
    assert parts[0].name.startswith(cache.folder.name)
    torch.testing.assert_close(cache.tokens[4, 1].float(), by_hand(model, dataset, 4, True)[0], rtol=2e-3, atol=2e-3)


@pytest.mark.slow
def test_the_unfinished_cache_of_a_running_process_is_left_alone(tmp_path, start):
    process = start(STUCK)
    assert process.stdout.readline() == "halfway\n"
    opened(small(seed=1), FewScenes(None, "train"), tmp_path)
    assert len(list(tmp_path.glob("*.part"))) == 1


COUNTED = """
class Counted(FewScenes):
    def read(self, index):
        with (folder / "reads").open("a") as file: file.write(f"{index}\\n")
        time.sleep(0.1)
        return super().read(index)
model = small()
print("ready", flush=True); sys.stdin.readline()
cache = open_cache(model, Counted(None, "train"), folder)
print(cache.folder.name, cache.tokens.double().sum().item())
"""


@pytest.mark.slow
def test_of_two_processes_one_builds_and_the_other_waits(tmp_path, start):
    processes = [start(COUNTED, stderr=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate() for process in processes]
    assert answers[0][0] == answers[1][0] != ""
    assert sorted((tmp_path / "reads").read_text().split()) == ["0", "1", "2", "3", "4"]
    assert sum("waiting for another process" in printed for _, printed in answers) == 1
    assert sum("features of 5 images" in printed for _, printed in answers) == 1


@pytest.mark.slow
@pytest.mark.parametrize("limit", [20_000, 100])
def test_a_full_disk_is_one_line_and_leaves_nothing_behind(tmp_path, start, limit):
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try: opened(small(), FewScenes(None, "train"), folder)
except UserError as error: print(error)
"""
    printed, _ = start(program).communicate()
    assert printed.startswith(f"cannot keep features in '{tmp_path}': File too large: set DEPICT_CACHE")
    assert printed.count("\n") == 1
    assert only_locks(tmp_path)
