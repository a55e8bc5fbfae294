"""Ledgers apart and one ledger behind HTTP, over processes: the small version of bench/shared_vs_split.py."""

import pytest

import shared_vs_split


@pytest.mark.parametrize(("way", "least", "most"), [("split", 0.6, 0.9), ("service", 0.9, 1.0)])
def test_one_ledger_is_used_up_where_shares_are_not(monkeypatch: pytest.MonkeyPatch, way: str, least: float, most: float) -> None:
    """Half as much again as the limit is asked for, most of it at one replica: shares waste a part, a ledger for all does not; neither is passed."""
    monkeypatch.setattr(shared_vs_split, "LIMIT", 6_000)
    with shared_vs_split.stand(way) as place:
        admitted = shared_vs_split.admitted(way, place, "uneven")
    assert least < admitted.limits <= most, admitted
    assert admitted.refused, admitted
