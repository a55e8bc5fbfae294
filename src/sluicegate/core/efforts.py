"""How hard a model is to think: the words for it, in their order, and about how many tokens each stands for.

A ceiling in words or in tokens binds requests that say it in either: so where one of the two is given, there is one of the other kind. The tokens are
those that Google puts behind the words (https://ai.google.dev/gemini-api/docs/openai#thinking), and that translations use, too. How many tokens a
model really takes for a word its vendor decides.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Effort(StrEnum):
    """From the least to the most, and compared by that. https://platform.openai.com/docs/api-reference/chat/create (`reasoning_effort`) has all,
    https://docs.anthropic.com/en/docs/build-with-claude/effort those from `low` on."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"

    @property
    def rank(self) -> int:
        return _RANKS[self.value]

    def __lt__(self, other: str) -> bool:
        return self.rank < Effort(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > Effort(other).rank

    def __le__(self, other: str) -> bool:
        return not self > other

    def __ge__(self, other: str) -> bool:
        return not self < other


_RANKS = {effort.value: rank for rank, effort in enumerate(Effort)}
LEAST = 1_024  # tokens of a budget that Anthropic takes
BUDGETS = {  # tokens; of `max` there is no number
    Effort.NONE: 0, Effort.MINIMAL: LEAST, Effort.LOW: LEAST, Effort.MEDIUM: 8_192, Effort.HIGH: 24_576, Effort.XHIGH: 32_768,
}  # fmt: skip
UNSAID = (
    Effort.HIGH
)  # as which thinking counts that is turned on without a word of how much: https://docs.anthropic.com/en/docs/build-with-claude/effort


def effort_for(budget: int) -> Effort:
    """The most that a number of tokens is enough for."""
    return max(effort for effort, tokens in BUDGETS.items() if tokens <= max(budget, 0))


def both(ceilings: Mapping[str, Any]) -> dict[str, Any]:
    """Ceilings in which what is said of thinking in one way is also said in the other."""
    told = dict(ceilings)
    effort, budget = told.get("reasoning_effort"), told.get("thinking_budget")
    if budget is not None:
        told["reasoning_effort"] = min(effort_for(budget), effort or Effort.MAX)
    if effort in BUDGETS:
        told["thinking_budget"] = min(BUDGETS[effort], BUDGETS[effort] if budget is None else budget)
    return told
