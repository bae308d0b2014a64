"""The order of images in a training, and the batches made of it."""

import multiprocessing
import pickle
import subprocess
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depict.data import create_dataset
from depict.data.loading import Schedule, training_batches
from depict.data.transforms import Augmentation, sample_generator
from depict.errors import UserError
from support.layouts import camvid

AUGMENTATION = Augmentation(short_edge=12, max_aspect=2, crop=(8, 10), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
schedules = {"images": st.integers(1, 30), "batch": st.integers(1, 9), "epochs": st.integers(1, 3)}


@given(**schedules, seed=st.integers(0, 99))
def test_every_epoch_shows_every_image_once(images, batch, epochs, seed):
    schedule = Schedule(images, batch, epochs, seed)
    steps = list(schedule)
    assert len(steps) == len(schedule) == epochs * -(-images // batch)
    assert [len(step) for step in steps] == [schedule.batch_size(iteration) for iteration in range(len(steps))]
    for epoch in range(epochs):
        shown = [index for e, index in chain(*steps) if e == epoch]
        assert sorted(shown) == list(range(images))


@given(**schedules, world=st.integers(1, 5))
def test_the_shares_of_all_processes_are_the_batch(images, batch, epochs, world):
    whole = list(Schedule(images, batch, epochs))
    shares = [list(Schedule(images, batch, epochs, rank=rank, world=world)) for rank in range(world)]
    for step, expected in enumerate(whole):
        assert sorted(chain(*(share[step] for share in shares))) == sorted(expected)


@given(**schedules, start=st.integers(0, 100))
def test_a_training_can_start_at_any_step(images, batch, epochs, start):
    assert list(Schedule(images, batch, epochs, start=start)) == list(Schedule(images, batch, epochs))[start:]


def test_the_order_changes_with_epoch_and_seed():
    steps = list(Schedule(50, 50, 2))
    assert [index for _, index in steps[0]] != [index for _, index in steps[1]]
    assert steps[0] != next(iter(Schedule(50, 50, 2, seed=1)))


def batches(root, workers, **options):
    dataset = create_dataset("camvid", camvid(root, [0, 1, 2, 11], count=5), "train")
    return list(training_batches(dataset, AUGMENTATION, Schedule(5, 2, 2, seed=3, **options), workers))


def test_batches_do_not_depend_on_the_number_of_workers(tmp_path):
    alone, parallel = batches(tmp_path, 0), batches(tmp_path, 2)
    assert [tuple(batch.images.shape) for batch in alone] == [(n, 3, 8, 10) for n in (2, 2, 1, 2, 2, 1)]
    assert (alone[0].images.dtype, alone[0].labels.dtype) == (torch.float32, torch.uint8)
    for mine, theirs in zip(alone, parallel, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_worker_s_data_set_and_augmentation_can_be_pickled(tmp_path):
    dataset = create_dataset("camvid", camvid(tmp_path, [0, 1, 2, 11]), "train")
    sent_dataset, sent = pickle.loads(pickle.dumps((dataset, AUGMENTATION)))
    mine = AUGMENTATION(*dataset.read(1), sample_generator(0, 0, 1))
    theirs = sent(*sent_dataset.read(1), sample_generator(0, 0, 1))
    assert torch.equal(mine[0], theirs[0])


def test_the_batches_of_two_processes_make_up_those_of_one(tmp_path):
    whole = batches(tmp_path, 0)
    first, second = (batches(tmp_path, 0, rank=rank, world=2) for rank in (0, 1))
    assert len(second[2].images) == 0 and second[2].images.shape[1:] == (3, 8, 10)
    for step, batch in enumerate(whole):
        images = torch.cat([first[step].images, second[step].images])
        indices = torch.cat([first[step].indices, second[step].indices])
        assert torch.equal(images[indices.argsort()], batch.images[batch.indices.argsort()])
        assert torch.equal(indices.sort().values, batch.indices.sort().values)


def test_loading_leaves_the_model_s_random_numbers_alone(tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    batches(tmp_path, 0)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_file_stops_the_batches_with_its_one_line(tmp_path, workers):
    camvid(tmp_path, [0, 1], count=2)
    broken = tmp_path / "trainannot" / "0001TP_000001.png"
    broken.write_bytes(b"")
    dataset = create_dataset("camvid", tmp_path, "train")
    with pytest.raises(UserError) as caught:
        list(training_batches(dataset, AUGMENTATION, Schedule(2, 1, 1), workers))
    assert str(caught.value) == f"'{broken}' is empty (0 bytes)."


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_a_signal_to_all_processes_leaves_the_workers_to_the_training(tmp_path, name):
    """As Ctrl-C, a closed terminal, Slurm and `timeout` send it: the training still needs its batches to stop well."""
    loaded = many_batches(tmp_path)
    next(loaded)
    [worker] = multiprocessing.active_children()
    subprocess.run(["kill", f"-{name}", str(worker.pid)], check=True)  # the sender must not be this process
    assert len(list(loaded)) == 59


def test_the_training_itself_can_end_its_workers(tmp_path):
    loaded = many_batches(tmp_path)
    next(loaded)
    [worker] = multiprocessing.active_children()
    worker.terminate()
    worker.join(20)
    assert worker.exitcode == 0


def many_batches(root):
    """60 batches of one worker, which is only a few of them ahead."""
    dataset = create_dataset("camvid", camvid(root, [0, 1, 2, 11], count=5), "train")
    return training_batches(dataset, AUGMENTATION, Schedule(5, 2, 20), workers=1)
