import pytest

from depict.operators import MSCA, MSSA


@pytest.fixture(params=["fused", "explicit"])
def path(request, monkeypatch):
    """Run the decoders by one of the two paths of MSSA and MSCA."""
    if request.param == "explicit":
        monkeypatch.setattr(MSSA, "forward", lambda self, Z: self.explicit(Z)[0])
        monkeypatch.setattr(MSCA, "forward", lambda self, Q, Z, mask=None: self.explicit(Q, Z, mask)[0])
    return request.param
