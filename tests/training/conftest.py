"""What the tests of trainings share."""

import pytest

from depict.training import log
from support.layouts import rectangles


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Ten training and four validation pictures of rectangles, 40 x 48, three classes."""
    return rectangles(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(autouse=True)
def _log_every_step(monkeypatch):
    monkeypatch.setattr(log, "LOG_EVERY", 1)
