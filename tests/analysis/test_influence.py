"""One row of the attention is the row of the whole attention."""

import pytest
import torch

from depict.analysis.influence import patch_influence
from depict.decoders import create_decoder

GRID = (5, 7)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("depict_sa", {"heads": 2, "head_dim": 9}),
        ("depict_sa", {"heads": 2, "head_dim": 9, "operator": "exact"}),
        ("depict_ca", {"heads": 3, "head_dim": 8}),
        ("depict_ca", {"heads": 3, "head_dim": 8, "operator": "exact"}),
        ("depict_us", {"heads": 3, "head_dim": 8}),
        ("cbt", {"heads": 3, "head_dim": 8}),
        ("segmenter", {"heads": 4}),
        ("ablation", {"attention": "mhsa"}),
    ],
)
def test_the_influence_on_a_patch_is_its_row_of_the_attention(name, options):
    decoder = create_decoder(name, 64, 6, **options).eval()
    trace = decoder.unroll(torch.randn(1, 35, 64), GRID, attention=True)
    with_rows = 0
    for index, step in enumerate(trace.steps):
        for patch in (0, 17, 34):
            row = patch_influence(decoder, trace, index, patch)
            if step.attention is None or step.operator.startswith("msca"):
                assert row is None
                continue
            with_rows += 1
            assert row.shape == (step.attention.shape[1], 35)
            torch.testing.assert_close(row, step.attention[0, :, patch, :35])
    assert with_rows >= 6


def test_a_decoder_without_steps_has_none_to_ask():
    decoder = create_decoder("linear", 64, 6)
    assert decoder.unroll(torch.randn(1, 35, 64), GRID).steps == []
