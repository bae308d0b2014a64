import pytest

from depict.devices import find_device
from depict.errors import UserError


@pytest.mark.parametrize("name", ["meta", "gpu", "CPU", "xla", "privateuseone", "", " cpu"])
def test_a_device_that_computes_nothing_is_refused_with_those_that_may(name):
    with pytest.raises(UserError) as caught:
        find_device(name, 0)
    assert str(caught.value) == f"the device '{name}' cannot be used here: choose cpu, cuda, cuda:N or mps."


@pytest.mark.parametrize("name", ["cuda:99", "cuda:x", "cpu:x"])
def test_a_device_that_is_not_there_is_refused_in_one_line(name):
    with pytest.raises(UserError, match=f"the device '{name}' cannot be used here: .*Leave --device out") as caught:
        find_device(name, 0)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_the_cpu_is_taken_as_it_is_named():
    assert find_device("cpu", 0) == "cpu"
