"""More epochs extend a finished run; the rest of its settings stay."""

import pytest

import depict
from depict import UserError
from depict.runs import read_metrics
from depict.training.loop import Trainer, train
from depict.training.optim import learning_rate
from depict.training.stopping import InterruptedTraining
from support.trainings import assert_same_run, losses, saved_state, small_config


class Killed(BaseException):
    """Ends a training at once, as a signal that cannot be caught would."""


def killed_at(number):
    """A replacement of `Trainer._step` that ends the training before the step of this number."""
    step = Trainer._step

    def watched(trainer, *arguments):
        if trainer.progress.iteration + 1 == number:
            raise Killed
        return step(trainer, *arguments)

    return watched


def test_more_epochs_extend_a_finished_run_at_the_rates_of_the_longer_schedule(pictures, tmp_path, capsys):
    train(small_config(pictures, epochs=2), tmp_path)
    finished, kept = losses(tmp_path), saved_state(tmp_path)
    capsys.readouterr()
    train(small_config(pictures, epochs=5), tmp_path)
    assert f"extending '{tmp_path}' from 2 to 5 epochs: step 7 has the learning rate 6.4e-04" in capsys.readouterr().err
    lines = [line for line in read_metrics(tmp_path) if "lr" in line]
    assert [line["iteration"] for line in lines] == list(range(1, 16))
    assert [line["lr"] for line in lines[6:]] == [learning_rate(step, 15, 1e-3) for step in range(6, 15)]
    assert losses(tmp_path)[:6] == finished
    assert kept["finished"]
    assert saved_state(tmp_path)["best_score"] >= kept["best_score"]
    assert depict.load(tmp_path).config.train.epochs == 5
    assert train(small_config(pictures, epochs=5), tmp_path) is None
    with pytest.raises(UserError, match="was trained with train.epochs = 5, not 2"):
        train(small_config(pictures, epochs=2), tmp_path)


@pytest.mark.slow
def test_an_extension_that_is_killed_resumes_and_ends_with_the_same_weights(pictures, tmp_path, monkeypatch):
    for out in ("whole", "killed"):
        train(small_config(pictures, epochs=2), tmp_path / out)
    train(small_config(pictures, epochs=4), tmp_path / "whole")
    for number in (7, 11):  # before and after the first save of the extension
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Trainer, "_step", killed_at(number))
            train(small_config(pictures, epochs=4), tmp_path / "killed")
    train(small_config(pictures, epochs=4), tmp_path / "killed")
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_a_run_that_is_not_finished_is_not_extended(pictures, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(InterruptedTraining):
        patch.setattr(Trainer, "_stop_requested", lambda trainer: trainer.progress.iteration == 4)
        train(small_config(pictures, epochs=2), tmp_path)
    with pytest.raises(UserError, match="is not finished: resume it with --epochs 2, then extend it to 3"):
        train(small_config(pictures, epochs=3), tmp_path)
    train(small_config(pictures, epochs=2), tmp_path)


@pytest.mark.slow
def test_a_run_that_patience_ended_is_extended_from_its_last_step(pictures, tmp_path):
    settings = {"lr": 1e-9, "validate_every": 1, "patience": 2}
    train(small_config(pictures, epochs=30, **settings), tmp_path)
    assert saved_state(tmp_path)["iteration"] == 9
    train(small_config(pictures, epochs=31, **settings), tmp_path)
    assert [line["epoch"] for line in read_metrics(tmp_path) if "miou" in line] == [1, 2, 3, 4, 5]
