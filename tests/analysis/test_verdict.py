"""Answers follow from shares, and several claims agree or hold partly."""

from __future__ import annotations

import pytest

from depict.analysis.verdict import by_share, together


@pytest.mark.parametrize(
    ("share", "answer"),
    [(1.0, "holds"), (0.95, "holds"), (0.94, "partly"), (0.51, "partly"), (0.5, "does not hold"), (0, "does not hold")],
)
def test_a_claim_holds_in_nearly_all_cases_partly_in_most_and_else_not(share, answer):
    assert by_share(share) == answer


def test_several_claims_hold_partly_unless_they_agree():
    assert together("holds", "holds") == "holds"
    assert together("does not hold") == "does not hold"
    assert together("holds", "does not hold") == "partly"
    assert together("holds", "partly") == "partly"
