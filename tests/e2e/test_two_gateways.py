"""The cap over several processes, with the mock provider's own count as the truth: the small version of bench/budget_two_gateways.py."""

import pytest

import budget_two_gateways


@pytest.mark.parametrize("mode", ["capped", "growing"])
@pytest.mark.parametrize("ledger", ["redis", "sqlite"])
def test_a_budget_holds_over_two_processes_and_is_used_up(ledger: str, mode: str) -> None:
    """Twelve clients of two gateways cannot get more than the budget out of the provider, and get nearly all of it."""
    options = ("--ttft", "5ms", "--tpot", "5ms", "--chunk", "4", "--median", "150", "--sigma", "0.8", "--tokenizer", budget_two_gateways.TOKENIZER)
    outcome = budget_two_gateways.run(ledger, mode, budget=6_000, clients=12, mock_options=options)
    assert outcome.tokens <= 6_000
    assert outcome.tokens >= 5_400
    assert outcome.answers["budget_exceeded"] == 12
