"""Weight files: what can be read, and what is refused without running it."""

import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from depict import UserError
from depict.io.weights import read_weights
from support.hostile_files import write_compressed


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
    torch.save({1: torch.ones(2), ("a",): torch.ones(2)}, folder / "numbers.pth")
    torch.save({"model": {"a": torch.ones(2), None: torch.ones(2)}}, folder / "mixed.pth")
    torch.save({"a": torch.zeros(1).expand(1 << 20)}, folder / "repeated.pth")
    torch.save({"a": torch.sparse_coo_tensor(size=(1 << 20, 1 << 20), check_invariants=True)}, folder / "sparse.pth")
    write_compressed(folder / "inflated.pth", 3 << 20)
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
        ("numbers.pth", "holds no tensors by name"),
        ("mixed.pth", "holds no tensors by name"),
        ("repeated.pth", "is refused: the tensor 'a' is larger than the file"),
        ("sparse.pth", "is refused: the tensor 'a' is larger than the file"),
        ("inflated.pth", "is refused: it is compressed, which torch.save never does"),
        ("malicious.pth", "is refused: it holds objects other than tensors, or is damaged; .* could run code"),
        ("module.pth", r"is refused: it holds objects other than tensors \(torch.nn.modules.linear.Linear\); "),
    ],
)
def test_unreadable_or_unsafe_files_are_refused_in_one_line(folder, file, message, capsys):
    with pytest.raises(UserError, match=message) as caught:
        read_weights(folder / file)
    assert "\n" not in str(caught.value)
    assert "must never run" not in capsys.readouterr().out


def test_a_path_that_is_not_utf8_is_read(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "weights.safetensors")
    (tmp_path / "weights.safetensors").rename(folder / "weights.safetensors")
    assert read_weights(folder / "weights.safetensors")["a"].equal(torch.ones(2))
