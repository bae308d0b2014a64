"""States are checked when they are read, and the one before the last is kept."""

import pytest
import torch

from depict import UserError
from depict.training.state import load_state, recover_state, save_state


def flipped(content, bit):
    """Bytes in which one bit has changed."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def two_states(folder):
    """Save two states; returns the files of the last and of the one before it."""
    assert load_state(folder) is None
    for iteration in (1, 2):
        save_state(folder, {"iteration": iteration, "network": {"w": torch.arange(4.0)}})
        assert recover_state(folder) is None
        assert load_state(folder)["iteration"] == iteration
    return folder / "state" / "last.pt", folder / "state" / "previous.pt"


def test_a_flipped_bit_of_a_state_is_noticed_and_the_one_before_it_taken(tmp_path):
    last, previous = two_states(tmp_path)
    content, before = last.read_bytes(), previous.read_bytes()
    for bit in range(0, 8 * len(content), 211):
        last.write_bytes(flipped(content, bit))
        previous.write_bytes(before)
        assert recover_state(tmp_path) == f"'{last}' was damaged: the training resumes from the state before it."
        assert load_state(tmp_path)["iteration"] == 1
        assert not previous.exists()


@pytest.mark.parametrize("content", [b"", b"half", b"x" * 200])
def test_two_damaged_states_are_one_line_and_stay(tmp_path, content):
    last, previous = two_states(tmp_path)
    last.write_bytes(content)
    previous.write_bytes(content)
    with pytest.raises(UserError, match="last.pt' is damaged, and there is no state before it: remove '.*state' to"):
        recover_state(tmp_path)
    assert last.read_bytes() == previous.read_bytes() == content


def test_a_save_that_was_killed_between_its_renames_leaves_the_state_before_it(tmp_path):
    last, previous = two_states(tmp_path)
    last.unlink()
    assert recover_state(tmp_path) is None
    assert load_state(tmp_path)["iteration"] == 1
    assert not previous.exists()
