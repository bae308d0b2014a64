"""Choosing a device, and its memory."""

import subprocess
import sys

import pytest

from depict.devices import find_device
from depict.errors import UserError


@pytest.mark.parametrize("name", ["meta", "gpu", "CPU", "xla", "privateuseone", "", " cpu"])
def test_a_name_that_is_not_a_device_is_refused_with_those_that_are(name):
    with pytest.raises(UserError) as caught:
        find_device(name, 0)
    assert str(caught.value) == f"the device '{name}' cannot be used here: choose cpu, cuda, cuda:N or mps."


@pytest.mark.parametrize("name", ["cuda:99", "cuda:x", "cpu:x"])
def test_a_device_that_this_machine_lacks_is_refused_in_one_line(name):
    with pytest.raises(UserError, match=f"the device '{name}' cannot be used here: .*Leave --device out") as caught:
        find_device(name, 0)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_the_cpu_is_a_device():
    assert find_device("cpu", 0) == "cpu"


FAULTS = """
import resource
import numpy as np
from depict.devices import kept_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(64 << 20, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with kept_memory():
    faults()
    print(faults())
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc's allocator is told to keep memory")
def test_freed_memory_is_kept_for_the_next_tensor_until_the_block_ends():
    command = [sys.executable, "-c", FAULTS]
    kept, given_back = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert kept <= 8 < given_back  # 16384 pages, or 32 huge ones
