"""Rates over two processes, by the ledger's own clock: the small version of bench/rate_accuracy.py."""

import uvloop

import rate_accuracy
from rate_accuracy import Outcome, Run, Stand, warm

REQUESTS, SPREAD_S = 400, 1.0


def test_what_is_admitted_is_the_burst_and_what_is_refilled() -> None:
    """A priority alone has the part of the burst that is not kept from it; together they have the whole, and each no more than its own."""
    outcomes: list[Outcome] = []
    with Stand(rate_accuracy.shape()) as stand:
        uvloop.run(warm(stand))
        for unit, who in (("requests", ("low",)), ("tokens", ("normal",)), ("requests", rate_accuracy.TOGETHER)):
            outcomes.append(uvloop.run(Run(stand, unit, who, REQUESTS, SPREAD_S).run()))
    for outcome in outcomes:
        assert outcome.allowed <= outcome.most, outcome
        assert outcome.over == [], outcome
        assert outcome.void or outcome.allowed > outcome.least, outcome
