"""The section `rules:` of the file, of a tenant or of a key: content rules (docs/content-rules.md)."""

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from sluicegate.config.fields import FromEnv, OnOff, Size, Whole
from sluicegate.config.section import Section
from sluicegate.core.efforts import LEAST, Effort
from sluicegate.core.phrases import Phrase

CAP = "max_output"
CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")  # other names of the same
_WHERE = {"input": (True, False), "output": (False, True), "both": (True, True)}


def _number(value: object) -> object:
    if isinstance(value, FromEnv):
        try:
            return float(value)
        except ValueError:
            return value
    return float(value) if isinstance(value, Decimal) or (isinstance(value, int) and not isinstance(value, bool)) else value


def _at_least_a_byte(value: int) -> int:
    if value < 1:
        raise ValueError("must be at least 1 byte")
    return value


def _nothing_or_enough(value: int) -> int:
    if 0 < value < LEAST:
        raise ValueError(f"must be 0, which is no thinking, or at least {LEAST:,} tokens")
    return value


Words = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]  # of Effort
Number = Annotated[float, BeforeValidator(_number)]


class Banned(Section):
    """One of `banned:`"""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    pattern: str = Field(min_length=1, max_length=2_000)
    action: Literal["refuse", "mask", "report"] = "refuse"
    on: Literal["input", "output", "both"] = "both"
    words: OnOff = False
    mask: str = Field(default="[BANNED]", max_length=100)

    def phrase(self, scope: str) -> Phrase:
        """As it is looked for."""
        on_input, on_output = _WHERE[self.on]
        return Phrase(self.name, self.pattern, self.action, on_input, on_output, self.words, self.mask, scope)


class _Parameters(Section):
    """What both `force:` and `ceilings:` have."""

    max_output: Whole | None = Field(default=None, ge=1, le=10**7)
    max_tokens: Whole | None = Field(default=None, ge=1, le=10**7)
    max_completion_tokens: Whole | None = Field(default=None, ge=1, le=10**7)
    max_output_tokens: Whole | None = Field(default=None, ge=1, le=10**7)
    temperature: Number | None = Field(default=None, ge=0, le=2)
    top_p: Number | None = Field(default=None, ge=0, le=1)
    top_k: Whole | None = Field(default=None, ge=1, le=10**6)
    presence_penalty: Number | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: Number | None = Field(default=None, ge=-2, le=2)
    n: Whole | None = Field(default=None, ge=1, le=128)
    top_logprobs: Whole | None = Field(default=None, ge=0, le=20)
    reasoning_effort: Annotated[Words, AfterValidator(Effort)] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What is said, the cap under its common name."""
        said = {name: value for name, value in self if value is not None}
        cap = [said.pop(name) for name in (CAP, *CAPS) if name in said]
        return said | ({CAP: min(cap)} if cap else {})

    @property
    def caps(self) -> list[str]:
        """The names by which a cap is given."""
        return [name for name in (CAP, *CAPS) if getattr(self, name) is not None]


class Ceilings(_Parameters):
    """`ceilings:`"""

    thinking_budget: Annotated[Whole, AfterValidator(_nothing_or_enough)] | None = Field(default=None, ge=0, le=10**7)


class Force(_Parameters):
    """`force:`"""

    seed: Whole | None = Field(default=None, ge=-(2**53), le=2**53)
    stop: list[str] | None = Field(default=None, min_length=1, max_length=16)
    store: OnOff | None = None
    parallel_tool_calls: OnOff | None = None
    service_tier: str | None = Field(default=None, pattern=r"^[a-z0-9_-]{1,40}$")


class Rules(Section):
    """`rules:`"""

    system_prompt: str = Field(default="", max_length=100_000)
    disclaimer: str = Field(default="", max_length=10_000)
    banned: list[Banned] = []
    max_input_tokens: Whole = Field(default=0, ge=1, le=10**9)
    max_input: Annotated[Size, AfterValidator(_at_least_a_byte)] = 0
    force: Force = Force()
    ceilings: Ceilings = Ceilings()
