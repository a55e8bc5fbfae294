"""Words for how hard a model is to think, and the tokens that they stand for."""

import pytest

from sluicegate.core.efforts import Effort, both, effort_for


def test_words_are_compared_by_what_they_mean() -> None:
    """Not by their letters; each equals its own text."""
    assert sorted(reversed(Effort)) == ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
    assert Effort.HIGH < "max" and Effort.HIGH >= "high" and Effort.XHIGH > Effort.MEDIUM and not Effort.LOW <= "minimal"
    assert min(Effort.MAX, Effort.LOW, Effort.NONE) is Effort.NONE


@pytest.mark.parametrize(("budget", "effort"), [(-1, "none"), (0, "none"), (1023, "none"), (1024, "low"), (8192, "medium"), (10**6, "xhigh")])
def test_what_a_budget_is_enough_for(budget: int, effort: str) -> None:
    """The most of it."""
    assert effort_for(budget) == effort


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"n": 2}, {"n": 2}),
        ({"reasoning_effort": Effort.LOW}, {"reasoning_effort": "low", "thinking_budget": 1024}),
        ({"reasoning_effort": Effort.MAX}, {"reasoning_effort": "max"}),
        ({"thinking_budget": 9000}, {"reasoning_effort": "medium", "thinking_budget": 9000}),
        ({"thinking_budget": 0}, {"reasoning_effort": "none", "thinking_budget": 0}),
        ({"thinking_budget": 9000, "reasoning_effort": Effort.LOW}, {"reasoning_effort": "low", "thinking_budget": 1024}),
        ({"thinking_budget": 2000, "reasoning_effort": Effort.HIGH}, {"reasoning_effort": "low", "thinking_budget": 2000}),
    ],
)
def test_a_ceiling_in_one_way_is_one_in_the_other(said: dict[str, object], told: dict[str, object]) -> None:
    """Where both are given, both count."""
    assert both(said) == told
