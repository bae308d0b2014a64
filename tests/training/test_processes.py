"""Trainings in processes of their own: killed, interrupted, on a full disk, several at once, started by launchers."""

import os
import pty
import resource
import signal
import subprocess
import sys

import pytest
from PIL import Image

import depict
from depict.evaluation import evaluate, sliding_window_for
from depict.runs import dataset_of, read_metrics
from support.several_processes import ENVIRONMENT, start_processes, torchrun
from support.trainings import assert_same_run, losses, saved_state, scores, small_command

pytestmark = pytest.mark.slow

# Runs `depict` with the arguments, and ends itself by a signal before or during step NUMBER of the training.
ENDS_ITSELF = """
import os, signal, sys
import torch
from depict import cli
from depict.training.loop import Trainer

moment, number, name = sys.argv[1], int(sys.argv[2]), getattr(signal, sys.argv[3])
step, save = Trainer._step, torch.save
iteration = 0

def watched(trainer, *arguments):
    global iteration
    iteration = trainer.progress.iteration + 1
    if moment == "step" and iteration == number:
        os.kill(os.getpid(), name)
    return step(trainer, *arguments)

def half(values, file):
    if moment == "save" and iteration >= number:
        file.write(b"half")
        file.flush()
        os.kill(os.getpid(), name)
    save(values, file)

Trainer._step, torch.save = watched, half
sys.exit(cli.main(sys.argv[4:]))
"""


def run(*words, **options):
    """Run Python with these words."""
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=300, env=ENVIRONMENT, **options
    )


def long_command(pictures, out):
    """The arguments of `depict` for twelve steps with saves between epochs."""
    return small_command(pictures, out, "--epochs", "4", "--save-every", "2", workers=2)


@pytest.fixture(scope="module")
def uninterrupted(pictures, tmp_path_factory):
    """A run of `long_command` that nothing interrupted."""
    out = tmp_path_factory.mktemp("uninterrupted")
    result = run("-m", "depict.cli", *long_command(pictures, out))
    assert result.returncode == 0, result.stderr
    return out


def assert_resumes(pictures, out, uninterrupted):
    result = run("-m", "depict.cli", *long_command(pictures, out))
    assert result.returncode == 0, result.stderr
    assert_same_run(out, uninterrupted)


@pytest.mark.parametrize("moments", [[("step", 2), ("step", 8)], [("save", 1), ("save", 6)]], ids=["steps", "saves"])
def test_killed_twice_it_resumes_and_ends_with_the_same_weights(pictures, tmp_path, uninterrupted, moments):
    for moment, number in moments:
        result = run("-c", ENDS_ITSELF, moment, str(number), "SIGKILL", *long_command(pictures, tmp_path))
        assert result.returncode == -signal.SIGKILL
    assert_resumes(pictures, tmp_path, uninterrupted)


def test_ctrl_c_saves_everything_and_the_same_command_resumes(pictures, tmp_path, uninterrupted):
    result = run("-c", ENDS_ITSELF, "step", "5", "SIGINT", *long_command(pictures, tmp_path))
    assert result.returncode == 130
    assert result.stderr.splitlines()[-1] == "depict: stopped after step 5 of 12; the same command resumes."
    assert "Traceback" not in result.stderr
    assert saved_state(tmp_path)["iteration"] == 5
    assert_resumes(pictures, tmp_path, uninterrupted)


WAITS_FOR_A_HANGUP = """
import sys, time
from depict import cli
from depict.training.loop import Trainer

step = Trainer._step

def watched(trainer, *arguments):
    if trainer.progress.iteration + 1 == 3:  # a step of an epoch's end, which prints the validation
        print("close the terminal", flush=True)
        while not trainer.stop_signals.requested:
            time.sleep(0.01)
    return step(trainer, *arguments)

Trainer._step = watched
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_closed_terminal_saves_everything_and_the_same_command_resumes(pictures, tmp_path, uninterrupted):
    words = [*long_command(pictures, tmp_path), "--validate-every", "1"]
    child, terminal = pty.fork()  # the new process has a terminal of its own
    if not child:
        os.execve(sys.executable, [sys.executable, "-c", WAITS_FOR_A_HANGUP, *words], ENVIRONMENT)
    printed = b""
    while b"close the terminal" not in printed:
        printed += os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert saved_state(tmp_path)["iteration"] == 3
    assert_resumes(pictures, tmp_path, uninterrupted)


def test_a_full_disk_is_one_line_and_the_last_good_state_stays(pictures, tmp_path, uninterrupted):
    run("-c", ENDS_ITSELF, "step", "4", "SIGKILL", *long_command(pictures, tmp_path))
    good = (tmp_path / "state" / "last.pt").read_bytes()

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) // 2, len(good) // 2))

    result = run("-m", "depict.cli", *long_command(pictures, tmp_path), preexec_fn=limit)
    assert result.returncode == 2
    assert "cannot write" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert (tmp_path / "state" / "last.pt").read_bytes() == good
    assert_resumes(pictures, tmp_path, uninterrupted)


@pytest.mark.parametrize("more", [[], ["--grad-accum", "2"], ["--batch", "10", "--grad-accum", "4"]], ids=str)
def test_two_processes_give_the_losses_of_one(pictures, tmp_path, more):
    """Ten images in batches of 3: shares are uneven, and in the last step of an epoch one process has none."""
    settings = ["--encoder.drop-path", "0", "--epochs", "3", "--batch", "3"]
    several = torchrun(*small_command(pictures, tmp_path / "two", *settings, *more), cwd=tmp_path)
    assert several.returncode == 0, several.stderr[-3000:]
    alone = [*settings, *more[:2]] if "--batch" in more else settings
    one = run("-m", "depict.cli", *small_command(pictures, tmp_path / "one", *alone))
    assert one.returncode == 0, one.stderr
    assert {line["processes"] for line in read_metrics(tmp_path / "two")} == {2}
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    assert scores(tmp_path / "two") == pytest.approx(scores(tmp_path / "one"), abs=1e-3)
    sizes = {Image.open(tmp_path / out / "preview.png").size for out in ("one", "two")}
    assert len(sizes) == 1  # images of all processes


def test_two_processes_stop_together_at_an_update_that_overflows(pictures, tmp_path):
    program = tmp_path / "any_rate.py"  # such a rate is refused otherwise
    program.write_text(
        "import sys\nfrom depict.cli import main\nfrom depict.config.ranges import RANGES, Range\n"
        'RANGES["train.lr"] = Range(0, 1e39)\nsys.exit(main())\n'
    )
    words = small_command(pictures, tmp_path / "two", "--optimizer", "sgd", "--save-every", "1", "--lr", "3.4e38")
    result = torchrun(*words, program=[program], cwd=tmp_path)
    assert result.returncode != 0
    reported = [line for line in result.stderr.splitlines() if line.startswith("depict: ")]
    assert "the weights became inf or nan at step 1, with the images" in reported[0]
    assert reported[0].count("train") >= 4  # of both processes
    assert not (tmp_path / "two" / "state").exists()


def test_three_processes_resume_bit_for_bit(pictures, tmp_path):
    """Sums of three numbers are rounded by their order, those of two are not."""
    (tmp_path / "depict_until.py").write_text(ENDS_ITSELF)
    for out, moments in (("whole", []), ("broken", ["2"])):
        words = small_command(pictures, tmp_path / out, "--epochs", "3", "--batch", "6", "--save-every", "1")
        for number in moments:
            program = (tmp_path / "depict_until.py", "step", number, "SIGTERM")
            assert torchrun(*words, processes=3, program=program).returncode != 0
            assert saved_state(tmp_path / out)["iteration"] == int(number)
        result = torchrun(*words, processes=3)
        assert result.returncode == 0, result.stderr[-3000:]
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


def neck_command(pictures, out, *more):
    """The words after `depict` that train a neck and a decoder on an encoder with BatchNorms."""
    words = f"""train --out {out} --data folder --root {pictures} --data.short-edge 64 --data.max-aspect 2
        --data.workers 0 --image-size 64 --encoder test_efficientnet --encoder.pretrained False --stride 4 --neck.dim 16
        --decoder depict_sa --decoder.layers 1 --decoder.heads 2 --decoder.head-dim 8 --decoder.operator exact
        --epochs 2 --batch 4 --lr 1e-2 --device cpu --validate-every 1 --save-every 1"""
    return [*words.split(), *more]


@pytest.mark.parametrize("more", [[], ["--ema", "0.5"]], ids=["plain", "averaged"])
def test_two_processes_resume_a_model_with_batch_norms_and_validate_what_they_save(pictures, tmp_path, more):
    """Each process has statistics of its own images; all must validate with those that are saved, the first's."""
    (tmp_path / "depict_until.py").write_text(ENDS_ITSELF)
    broken = neck_command(pictures, tmp_path / "broken", *more)
    assert torchrun(*broken, program=(tmp_path / "depict_until.py", "step", "2", "SIGTERM")).returncode != 0
    for words in (broken, neck_command(pictures, tmp_path / "whole", *more)):
        result = torchrun(*words)
        assert result.returncode == 0, result.stderr[-3000:]
    assert_same_run(tmp_path / "whole", tmp_path / "broken")
    assert scores(tmp_path / "whole") == scores(tmp_path / "broken")
    model = depict.load(tmp_path / "whole", last=True)
    dataset = dataset_of(model, None, None)
    assert evaluate(model.predictor(sliding_window_for(model, dataset)), dataset).miou == scores(tmp_path / "whole")[-1]


def test_a_process_that_is_killed_ends_the_others_with_one_line(pictures, tmp_path):
    words = long_command(pictures, tmp_path)
    started = start_processes(["-m", "depict.cli", *words], ["-c", ENDS_ITSELF, "step", "4", "SIGKILL", *words])
    error = started[0].communicate(timeout=300)[1]
    assert started[1].wait() == -signal.SIGKILL
    assert started[0].returncode == 2
    assert error.splitlines()[-1].startswith("depict: another process has ended, so this one cannot continue")
    assert "Traceback" not in error
    assert saved_state(tmp_path)["iteration"] == 2


def test_accelerate_launch_starts_it_unchanged(pictures, tmp_path):
    """One process: on CPUs Accelerate's own launcher needs MPI for more, torchrun does not."""
    launcher = ["accelerate.commands.launch", "--cpu", "--num-processes", "1", "--num-machines", "1"]
    launcher += ["--mixed-precision", "no", "--dynamo-backend", "no"]
    words = small_command(pictures, tmp_path / "run", "--epochs", "1")
    result = run("-m", *launcher, "-m", "depict.cli", *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    depict.load(tmp_path / "run")
