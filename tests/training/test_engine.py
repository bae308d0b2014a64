"""Devices, precisions and trackers that Accelerate is started with."""

import pytest

from depict import UserError
from depict.config.schema import TrainConfig
from depict.training import engine
from depict.training.engine import global_sum, is_sharded, running_engine, start_engine


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "tpu"}, "--device must be cpu, cuda or mps, not 'tpu'."),
        ({"device": "cuda"}, "this machine has no device 'cuda': leave --device out to use 'cpu'."),
        ({"precision": "fp16"}, "fp16 needs a GPU: use --precision fp32 or bf16 on a CPU."),
        ({"tracker": "wandb"}, "--tracker wandb needs the package 'wandb': pip install wandb."),
    ],
)
def test_what_this_machine_cannot_do_is_refused(tmp_path, monkeypatch, settings, message):
    monkeypatch.setattr(engine, "best_device", lambda: "cpu")
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        start_engine(TrainConfig(**settings), tmp_path)
    assert str(caught.value) == message


def test_processes_that_accelerate_did_not_join_are_noticed(tmp_path, monkeypatch):
    with running_engine(TrainConfig(device="cpu"), tmp_path):
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(UserError, match="2 processes were started but Accelerate formed 1"):
            start_engine(TrainConfig(device="cpu"), tmp_path)


def test_trainings_of_one_process_may_differ_in_precision(tmp_path):
    for precision, expected in (("fp32", "no"), ("bf16", "bf16"), ("auto", "no")):
        with running_engine(TrainConfig(device="cpu", precision=precision), tmp_path) as accelerator:
            assert accelerator.mixed_precision == expected
            assert global_sum(accelerator, 3) == 3.0


def test_fsdp_that_does_not_shard_is_refused(tmp_path, monkeypatch):
    with running_engine(TrainConfig(device="cpu"), tmp_path) as accelerator:
        assert not is_sharded(accelerator, averaged=True)
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        with pytest.raises(UserError, match="FSDP was requested, but Accelerate did not shard the model"):
            is_sharded(accelerator, averaged=False)
