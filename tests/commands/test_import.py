"""`depict import` from the command line."""

import torch

import depict
from depict.cli import main
from support.official_model import official_state, variant, write_checkpoint


def test_a_checkpoint_becomes_a_run(tmp_path, capsys):
    checkpoint = write_checkpoint(tmp_path, official_state("depict_sa"), variant())
    assert main(["import", str(checkpoint), str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "decoder depict_sa (layers 2, heads 3, head_dim 4" in printed
    assert "not needed (classifier of the pretraining): encoder.head.weight, encoder.head.bias" in printed
    assert depict.load(tmp_path / "run").predict(torch.zeros(3, 70, 50, dtype=torch.uint8)).labels.shape == (70, 50)


def test_unknown_tensors_are_named_and_give_exit_code_1(tmp_path, capsys):
    state = official_state("linear") | {"decoder.mystery": torch.zeros(2)}
    assert main(["import", str(write_checkpoint(tmp_path, state, None)), str(tmp_path / "run")]) == 1
    assert "not imported, since the model has no such tensors: 'decoder.mystery'" in capsys.readouterr().err


def test_errors_are_one_line_and_leave_no_run(tmp_path, capsys):
    checkpoint = write_checkpoint(tmp_path, official_state("depict_sa"), None)
    run = tmp_path / "run"
    for arguments, message in (
        ([str(tmp_path / "absent.pth"), str(run)], "there is no weight file"),
        ([str(checkpoint), str(run)], "give --heads"),
        ([str(checkpoint), str(tmp_path)], "is not an empty folder"),
        ([str(checkpoint), str(run), "--heads", "3", "--data", "ade"], "unknown data set 'ade'"),
        ([str(checkpoint), str(run), "--variant", str(tmp_path / "absent.yml")], "absent.yml': No such file"),
    ):
        assert main(["import", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not run.exists()
