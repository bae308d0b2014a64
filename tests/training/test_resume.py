"""Trainings that were ended in the middle resume; foreign states and changed data are refused."""

import errno
import shutil
import signal

import pytest
import torch

from depict import UserError
from depict.training.loop import Trainer, train
from depict.training.state import save_state
from depict.training.stopping import InterruptedTraining
from support.trainings import assert_same_run, saved_state, small_config


class Killed(BaseException):
    """Ends a training at once, as a signal that cannot be caught would."""


def resumable(pictures):
    """Everything that has a state: drop-path, a moving average, and saves that fall between epochs."""
    return small_config(pictures, epochs=3, drop_path=0.2, ema=0.9, save_every=2, validate_every=1)


@pytest.fixture(scope="module")
def uninterrupted(pictures, tmp_path_factory):
    """The run of `resumable` without an interruption."""
    out = tmp_path_factory.mktemp("uninterrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("depict.training.log.LOG_EVERY", 1)
        train(resumable(pictures), out)
    return out


def at_step(monkeypatch, number, act):
    """Call `act` before the step of this number, counted from 1 over the whole training."""
    step = Trainer._step

    def watched(trainer, *arguments):
        if trainer.progress.iteration + 1 == number:
            act()
        return step(trainer, *arguments)

    monkeypatch.setattr(Trainer, "_step", watched)


@pytest.mark.parametrize("number", [1, 2, 3, 6, 9])
def test_a_killed_training_resumes_and_ends_with_the_same_weights(
    pictures, tmp_path, monkeypatch, uninterrupted, number
):
    def kill():
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, number, kill)
        train(resumable(pictures), tmp_path)
    train(resumable(pictures), tmp_path)
    assert_same_run(tmp_path, uninterrupted)


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_everything_and_the_training_resumes(pictures, tmp_path, monkeypatch, uninterrupted, name):
    with (
        monkeypatch.context() as patch,
        pytest.raises(InterruptedTraining, match="stopped after step 5 of 9; the same command resumes"),
    ):
        at_step(patch, 5, lambda: signal.raise_signal(name))
        train(resumable(pictures), tmp_path)
    assert saved_state(tmp_path)["iteration"] == 5
    train(resumable(pictures), tmp_path)
    assert_same_run(tmp_path, uninterrupted)


def test_a_full_disk_is_one_line_and_the_last_good_state_stays(pictures, tmp_path, monkeypatch, uninterrupted):
    save, saves = torch.save, []

    def full(values, file):
        saves.append(values["iteration"])
        if len(saves) == 2:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(values, file)

    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"cannot write '.*last.pt': No space left"):
        patch.setattr(torch, "save", full)
        train(resumable(pictures), tmp_path)
    assert saves == [2, 4]
    assert saved_state(tmp_path)["iteration"] == 2
    train(resumable(pictures), tmp_path)
    assert_same_run(tmp_path, uninterrupted)


@pytest.fixture(scope="module")
def interrupted(pictures, tmp_path_factory):
    """A run of `resumable` that stopped after step 4, with the states of steps 2 and 4."""
    out = tmp_path_factory.mktemp("interrupted")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedTraining):
        patch.setattr("depict.training.log.LOG_EVERY", 1)
        patch.setattr(Trainer, "_stop_requested", lambda trainer: trainer.progress.iteration == 4)
        train(resumable(pictures), out)
    return out


def test_after_a_flipped_bit_a_training_resumes_from_the_state_before_it_and_says_so(
    pictures, tmp_path, capsys, interrupted, uninterrupted
):
    out = shutil.copytree(interrupted, tmp_path / "run")
    last = out / "state" / "last.pt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    train(resumable(pictures), out)
    assert f"'{last}' was damaged: the training resumes from the state before it." in capsys.readouterr().err
    assert_same_run(out, uninterrupted)


def changed_data(pictures, folder, change):
    """A copy of the pictures with the classes a, b and c, changed."""
    root = shutil.copytree(pictures, folder)
    (root / "classes.yaml").write_text("names: [a, b, c]")
    change(root)
    return root


def write_classes(names):
    return lambda root: (root / "classes.yaml").write_text(f"names: {names}")


@pytest.fixture(scope="module")
def trained(pictures, tmp_path_factory):
    """A finished run with the classes a, b and c."""
    folder = tmp_path_factory.mktemp("trained")
    train(small_config(changed_data(pictures, folder / "data", lambda root: None), epochs=1), folder / "run")
    return folder / "run"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (write_classes("[a, b, d]"), "the class 'c', now 'd'"),
        (write_classes("[b, a, c]"), "the same classes, now in another order"),
        (lambda root: (root / "images/train/train1.png").unlink(), "2 training files removed"),
        (
            lambda root: shutil.copy(root / "masks/val/val1.png", root / "masks/val/val0.png"),
            "1 validation file changed",
        ),
    ],
)
def test_changed_data_are_refused_unless_they_are_accepted(pictures, tmp_path, capsys, trained, change, what):
    out = shutil.copytree(trained, tmp_path / "run")
    files = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    changed = small_config(changed_data(pictures, tmp_path / "data", change), epochs=1)
    with pytest.raises(UserError, match="was trained on other data: .*: restore the data, choose another") as caught:
        train(changed, out)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    train(changed, out, accept_data_change=True)
    assert f"continuing with changed data: {what}" in capsys.readouterr().err
    train(changed, out)
    assert "changed data" not in capsys.readouterr().err


def test_another_number_of_classes_is_one_line(pictures, tmp_path, trained):
    out = shutil.copytree(trained, tmp_path / "run")
    more = small_config(changed_data(pictures, tmp_path / "data", write_classes("[a, b, c, d]")), epochs=1)
    for accept in (False, True):
        with pytest.raises(UserError, match="was trained on 3 classes, the data now have 4: choose another --out"):
            train(more, out, accept)


def test_the_same_data_in_another_place_are_accepted(pictures, tmp_path, capsys, trained):
    out = shutil.copytree(trained, tmp_path / "run")
    moved = small_config(changed_data(pictures, tmp_path / "moved", lambda root: None), epochs=1)
    assert train(moved, out) is None
    assert "is finished" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "{}", "[]", "no JSON", '{"classes": 3}'])
def test_a_run_whose_data_are_unknown_is_not_resumed_without_consent(pictures, tmp_path, trained, content):
    out = shutil.copytree(trained, tmp_path / "run")
    (out / "data.json").unlink() if content is None else (out / "data.json").write_text(content)
    same = small_config(changed_data(pictures, tmp_path / "data", lambda root: None), epochs=1)
    with pytest.raises(UserError, match="data.json', which describes them, is missing or damaged: restore the data"):
        train(same, out)
    train(same, out, accept_data_change=True)
    train(same, out)


def smaller(values):
    """Tensors of another shape in place of all that have one."""
    if isinstance(values, dict):
        return {name: smaller(value) for name, value in values.items()}
    return values[..., :1] if torch.is_tensor(values) and values.ndim else values


@pytest.mark.parametrize(
    "change",
    [
        lambda state: [state],
        lambda state: torch.ones(3),
        lambda state: {},
        lambda state: {"iteration": 4},
        lambda state: state | {"iteration": "four"},
        lambda state: state | {"network": {}},
        lambda state: state | {"network": smaller(state["network"])},
        lambda state: state | {"optimizer": {"state": {}, "param_groups": []}},
        lambda state: state | {"optimizer": smaller(state["optimizer"])},
        lambda state: state | {"best_result": {"classes": ["a"]}},
        lambda state: state | {"average": None},
    ],
)
def test_a_state_of_something_else_is_one_line(pictures, tmp_path, interrupted, change):
    out = shutil.copytree(interrupted, tmp_path / "run")
    save_state(out, change(saved_state(out)))
    with pytest.raises(UserError, match=r"last.pt' is not a state of this training: remove '.*state' to train from"):
        train(resumable(pictures), out)
