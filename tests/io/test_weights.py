"""Weight files: what can be read, and what is refused without running it."""

import pickle

import pytest
import torch
from safetensors.torch import save_file

from depict import UserError
from depict.io.weights import read_weights


@pytest.mark.parametrize("key", [None, "state_dict", "model", "teacher"])
def test_tensors_are_found_where_training_scripts_keep_them(tmp_path, key):
    weights = {"a": torch.ones(2), "b": torch.zeros(3)}
    torch.save(weights if key is None else {key: weights, "epoch": 3}, tmp_path / "weights.pth")
    save_file(weights, tmp_path / "weights.safetensors")
    for name in ("weights.pth", "weights.safetensors"):
        read = read_weights(tmp_path / name)
        assert read.keys() == weights.keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in weights.items())


class Malicious:
    def __reduce__(self):
        return (print, ("this must never run",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    (folder / "corrupt.safetensors").write_bytes(b"not a header")
    (folder / "empty.pth").write_bytes(b"")
    torch.save([1, 2], folder / "list.pth")
    (folder / "malicious.pth").write_bytes(pickle.dumps(Malicious()))
    torch.save(torch.nn.Linear(2, 2), folder / "module.pth")
    (folder / "cut.pth").write_bytes((folder / "module.pth").read_bytes()[:500])
    (folder / "text.pth").write_text("hello world\n")
    (folder / "page.pth").write_text("<!DOCTYPE html>")
    return folder


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("missing.safetensors", "there is no weight file '.*missing.safetensors'"),
        ("corrupt.safetensors", "is not a readable weight file"),
        ("empty.pth", "is not a readable weight file"),
        ("list.pth", "holds no tensors by name"),
        ("cut.pth", "is not a readable weight file: it is damaged or has another format"),
        ("text.pth", "is not a readable weight file: it is damaged or has another format"),
        ("page.pth", "is refused: it holds objects other than tensors, or is damaged; .* could run code"),
        ("malicious.pth", "is refused: it holds objects other than tensors, or is damaged; .* could run code"),
        ("module.pth", r"is refused: it holds objects other than tensors \(torch.nn.modules.linear.Linear\); "),
    ],
)
def test_unreadable_or_unsafe_files_are_refused_in_one_line(folder, file, message, capsys):
    with pytest.raises(UserError, match=message) as caught:
        read_weights(folder / file)
    assert "\n" not in str(caught.value)
    assert "must never run" not in capsys.readouterr().out
