"""Cached features: what the encoder gives, for the labels that fit, never half of it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict import UserError
from depict.config.schema import Config, DecoderConfig, EncoderConfig
from depict.data import create_dataset
from depict.data.dataset import random_subset
from depict.data.loading import Schedule
from depict.data.scenes.dataset import Scenes
from depict.data.transforms import resize_image, resize_labels
from depict.model import SegmentationModel
from depict.training.feature_cache import View, cache_key, default_folder, feature_batches, fitted_size, open_cache
from support.layouts import picture, save


class FewScenes(Scenes):
    images = {"train": 5, "val": 3}  # noqa: RUF012

    def __init__(self, root, split, size=32):
        super().__init__(root, split, size)


def small(image_size=(32, 48), seed=0, **encoder):
    torch.manual_seed(seed)
    shape = {"pretrained": False, "patch_size": 8, "dim": 64, "depth": 1, "freeze": True}
    config = Config(
        encoder=EncoderConfig("vit_tiny_patch16_224", **shape | encoder),
        decoder=DecoderConfig("linear"),
        image_size=image_size,
    )
    return SegmentationModel(config, ("a", "b", "c"))


def photographs(root, sizes=((40, 30), (20, 60), (25, 37), (90, 91))):
    """A data set of noise, wide and tall, whose classes are noise too."""
    for index, size in enumerate(sizes):
        save(root / "images" / "train" / f"{index}.png", picture(*size, seed=index))
        save(root / "masks" / "train" / f"{index}.png", picture(*size, seed=100 + index)[..., 0] % 3)
    return create_dataset("folder", root, "train")


def opened(model, dataset, folder, **options):
    return open_cache(model, dataset, folder, progress=False, **options)


def by_hand(model, dataset, index, mirror):
    """What the cache must hold: the sample in the window, mirrored before it is padded, through the encoder."""
    image, labels = dataset.read(index)
    size = fitted_size(*labels.shape, model.image_size)
    image, labels = resize_image(image, size), resize_labels(labels, size)
    if mirror:
        image, labels = image.flip(-1), labels.flip(-1)
    padding = (0, model.image_size[1] - size[1], 0, model.image_size[0] - size[0])
    pad = torch.nn.functional.pad
    with torch.no_grad():
        tokens, grid = model.eval().tokens(pad(model.normalize(image), padding)[None])
    return tokens[0], pad(labels, padding, value=255), grid


@pytest.mark.parametrize("image_size", [(32, 48), (30, 45)])
def test_the_cache_holds_what_the_encoder_gives_for_every_image_and_its_mirror_image(tmp_path, image_size):
    model, dataset = small(image_size), photographs(tmp_path / "data")
    cache = opened(model, dataset, tmp_path / "cache", batch=3)
    assert len(cache) == len(dataset) == 4
    for index in range(4):
        for mirror in (False, True):
            tokens, labels, grid = by_hand(model, dataset, index, mirror)
            batch = cache.batch([index], [View(mirror)])
            assert cache.grid == grid
            assert (batch.tokens.dtype, batch.labels.dtype) == (torch.float32, torch.uint8)
            torch.testing.assert_close(batch.tokens[0], tokens, rtol=2e-3, atol=2e-3)
            assert torch.equal(batch.labels[0], labels)


def test_a_decoder_gives_the_same_masks_from_the_cache_as_from_the_image(tmp_path):
    model, dataset = small((32, 32)), FewScenes(None, "train")
    cache = opened(model, dataset, tmp_path)
    images = torch.stack([model.normalize(dataset.read(index)[0]) for index in range(5)])
    tokens, labels, _, grid = cache.batch([0, 1, 2, 3, 4], [View()] * 5)
    torch.testing.assert_close(model.decoder(tokens, grid), model.masks(images), rtol=5e-3, atol=5e-3)
    assert all(torch.equal(labels[index], dataset.read(index)[1]) for index in range(5))


@pytest.mark.parametrize("image_size", [(32, 48), (30, 45)])
def test_a_part_of_the_grid_comes_with_the_labels_of_its_cells(tmp_path, image_size):
    model, dataset = small(image_size), photographs(tmp_path / "data")
    cache = opened(model, dataset, tmp_path / "cache")
    assert (cache.grid, cache.patch_size) == ((4, 6), (8, 8))
    for view in (View(), View(True), View(False, 1, 2), View(True, 2, 3)):
        whole = cache.batch([0, 1, 2, 3], [View(view.mirrored)] * 4)
        part = cache.batch([0, 1, 2, 3], [view] * 4, (2, 3))
        cells = whole.tokens.view(4, 4, 6, -1)[:, view.top : view.top + 2, view.left : view.left + 3]
        assert torch.equal(part.tokens, cells.flatten(1, 2))
        padding = (0, 48 - image_size[1], 0, 32 - image_size[0])
        pixels = torch.nn.functional.pad(whole.labels, padding, value=255)
        top, left = 8 * view.top, 8 * view.left
        assert torch.equal(part.labels, pixels[:, top : top + 16, left : left + 24])
        assert part.grid == (2, 3)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 800), st.integers(1, 800))
def test_a_fitted_image_touches_the_window_and_never_leaves_it(height, width, box_height, box_width):
    fitted = fitted_size(height, width, (box_height, box_width))
    assert 1 <= fitted[0] <= box_height and 1 <= fitted[1] <= box_width
    assert fitted[0] == box_height or fitted[1] == box_width


def test_an_encoder_that_trains_is_evaluated_and_left_as_it_was(tmp_path):
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


def test_what_is_written_into_a_mapped_cache_never_reaches_the_disk(tmp_path):
    cache = opened(small(), FewScenes(None, "train"), tmp_path)
    before = (cache.folder / "tokens.npy").read_bytes()
    cache.tokens.zero_()
    assert (cache.folder / "tokens.npy").read_bytes() == before


def test_the_key_changes_with_all_that_matters_and_with_nothing_else(tmp_path):
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


def test_a_part_of_a_data_set_is_taken_from_the_cache_of_the_whole(tmp_path):
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


def test_one_changed_weight_builds_another_cache_beside_the_old_one(tmp_path):
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


DAMAGES = [
    *((name, damage) for name in ("tokens", "labels", "sizes") for damage in (_cut, _lengthen, _garble, _reshape)),
    *((name, Path.unlink) for name in ("tokens", "meta")),
    *((name, _empty) for name in ("labels", "meta")),
    ("meta", _garble),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_cache_is_noticed_and_built_anew(tmp_path, capfd, name, damage):
    model, dataset = small(), FewScenes(None, "train")
    cache = opened(model, dataset, tmp_path)
    tokens = cache.tokens.clone()
    damage(next(cache.folder.glob(f"{name}.*")))
    again = open_cache(model, dataset, tmp_path)
    assert "is damaged and built anew" in capfd.readouterr().err
    assert torch.equal(again.tokens, tokens)
    assert sorted(path.name for path in again.folder.iterdir()) == [
        "labels.npy",
        "meta.json",
        "sizes.npy",
        "tokens.npy",
    ]


def test_the_cache_says_what_it_is_where_it_lies_and_how_large_it_is(tmp_path, capfd):
    cache = open_cache(small(), FewScenes(None, "train"), tmp_path)
    told = capfd.readouterr().err
    assert "encoding" in told
    assert f"features of 5 images: 0.00 GB in '{cache.folder}'" in told
    meta = json.loads((cache.folder / "meta.json").read_text())
    assert (meta["encoder"], meta["data"], meta["split"]) == ("vit_tiny_patch16_224", "scenes", "train")
    assert (meta["images"], meta["grid"]) == (5, [4, 6])
    open_cache(small(), FewScenes(None, "train"), tmp_path)
    assert capfd.readouterr().err == ""


def test_caches_lie_where_the_user_wants_them(monkeypatch):
    monkeypatch.delenv("DEPICT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_folder() == Path.home() / ".cache/depict/features"
    monkeypatch.setenv("XDG_CACHE_HOME", "/large/cache")
    assert default_folder() == Path("/large/cache/depict/features")
    monkeypatch.setenv("DEPICT_CACHE", "~/here")
    assert default_folder() == Path.home() / "here/features"


def only_locks(folder):
    return all(path.suffix == ".lock" for path in folder.iterdir())


@pytest.mark.parametrize("error", [UserError("no picture"), KeyboardInterrupt()])
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


def test_features_that_are_no_numbers_are_told_with_the_samples(tmp_path):
    model = small()
    torch.nn.init.constant_(model.encoder.vit.norm.bias, torch.nan)
    with pytest.raises(UserError, match="undefined features for 'train_00000' to 'train_00001'"):
        opened(model, FewScenes(None, "train"), tmp_path, batch=2)
    assert only_locks(tmp_path)


def test_too_little_room_is_told_before_anything_is_written(tmp_path):
    class Endless(Scenes):
        images = {"train": 10**12}  # noqa: RUF012

        def read(self, index):
            raise AssertionError("begun all the same")

    with pytest.raises(UserError, match=r"needs \d+\.\d\d GB, but only .* free at '.*': set DEPICT_CACHE") as caught:
        opened(small(), Endless(None, "train"), tmp_path)
    assert "\n" not in str(caught.value)
    assert only_locks(tmp_path)


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot keep features in '.*file/below': Not a directory") as caught:
        opened(small(), FewScenes(None, "train"), tmp_path / "file/below")
    assert "\n" not in str(caught.value)


@pytest.fixture
def start(tmp_path):
    """Starts another Python that has the names of this file, and `folder`; what still runs in the end is killed."""
    header = f"import sys, time; from test_features import *; folder = Path({str(tmp_path)!r})\n"
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
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


def test_a_build_that_was_killed_is_begun_anew_and_leaves_nothing_behind(tmp_path, start):
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


def test_what_a_living_process_builds_is_left_alone(tmp_path, start):
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
    assert sum("waiting for another process" in told for _, told in answers) == 1
    assert sum("features of 5 images" in told for _, told in answers) == 1


@pytest.mark.parametrize("limit", [20_000, 100])
def test_a_full_disk_is_told_in_one_line_and_keeps_nothing(tmp_path, start, limit):
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try: opened(small(), FewScenes(None, "train"), folder)
except UserError as error: print(error)
"""
    told, _ = start(program).communicate()
    assert told.startswith(f"cannot keep features in '{tmp_path}': File too large: set DEPICT_CACHE")
    assert told.count("\n") == 1
    assert only_locks(tmp_path)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return opened(small(), FewScenes(None, "train"), tmp_path_factory.mktemp("cache"))


def test_batches_follow_the_schedule_and_mirror_half_of_the_samples(cache):
    schedule = Schedule(images=5, batch=2, epochs=40, seed=3)
    batches = list(feature_batches(cache, schedule))
    assert [batch.indices.tolist() for batch in batches] == [[index for _, index in step] for step in schedule]
    mirrored = 0
    for batch in batches:
        for tokens, index in zip(batch.tokens, batch.indices, strict=True):
            plain, mirror = (torch.equal(tokens, cache.tokens[index, side].float()) for side in (0, 1))
            assert plain != mirror
            mirrored += mirror
    assert 70 < mirrored < 130


def test_nothing_is_mirrored_where_left_and_right_differ(cache):
    for batch in feature_batches(cache, Schedule(images=5, batch=2, epochs=10), flip=False):
        assert torch.equal(batch.tokens, cache.tokens[batch.indices, 0].float())


def test_crops_lie_anywhere_on_the_image_and_never_on_its_padding_alone(tmp_path):
    cache = opened(small(), photographs(tmp_path / "data"), tmp_path / "cache")
    generator, seen = np.random.default_rng(0), set()
    for _ in range(200):
        seen.add(cache.view(1, (2, 3), True, generator))  # 16 x 48 of 32 x 48 pixels: half of the rows
    assert seen == {View(mirrored, 0, left) for mirrored in (False, True) for left in range(4)}
    shapes = {(batch.grid, batch.tokens.shape[1]) for batch in feature_batches(cache, Schedule(4, 2, 3), crop=0.5)}
    assert shapes == {((2, 3), 6)}


@pytest.mark.parametrize(
    ("crop", "shapes"), [(None, ((0, 24, 64), (0, 32, 48))), (0.7, ((0, 12, 64), (0, 24, 32)))], ids=["whole", "crop"]
)
@pytest.mark.parametrize("world", [2, 3])
def test_the_batches_of_several_processes_make_up_those_of_one_and_can_start_anywhere(cache, world, crop, shapes):
    whole = list(feature_batches(cache, Schedule(5, 2, 3, seed=1), crop=crop))
    again = [
        list(feature_batches(cache, Schedule(5, 2, 3, seed=1, rank=rank, world=world, start=4), crop=crop))
        for rank in range(world)
    ]
    for step, batch in enumerate(whole[4:]):
        order = batch.indices.argsort()
        shares = [torch.cat(parts) for parts in zip(*(share[step][:3] for share in again), strict=True)]
        assert torch.equal(shares[2].sort().values, batch.indices[order])
        for mine, theirs in zip(shares, batch[:3], strict=True):
            assert torch.equal(mine[shares[2].argsort()], theirs[order])
    empty = again[-1][1]
    assert (empty.tokens.shape, empty.labels.shape) == shapes


def test_another_seed_mirrors_other_samples(cache):
    first, second = (next(feature_batches(cache, Schedule(5, 5, 1, seed=seed))) for seed in (0, 1))
    first, second = (batch.tokens[batch.indices.argsort()] for batch in (first, second))
    assert not torch.equal(first, second)


def test_a_schedule_for_another_number_of_images_is_refused(cache):
    with pytest.raises(UserError, match="a schedule of 6 images does not fit the 5"):
        next(feature_batches(cache, Schedule(6, 2, 1)))
