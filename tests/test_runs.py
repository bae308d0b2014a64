"""What a run's folder says when it cannot be written."""

from pathlib import Path

import pytest

from depict import UserError
from depict.runs import Metrics


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_metrics_that_cannot_be_written_are_named(tmp_path):
    metrics = Metrics(tmp_path, 0)
    metrics.path.unlink()
    metrics.path.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"^cannot write '.*metrics\.jsonl': No space left on device$"):
        metrics.write(iteration=1, loss=0.5)
