"""What organizations ask of the content of requests and answers, put together for one key: its own rules and those of every scope above it.

A scope below adds to those above and never takes away: system prompts and disclaimers come one after the other, the highest scope's first and none
twice; whatever anybody bans is banned; of limits and ceilings the lowest counts; a parameter that is forced above cannot be forced to be anything
else below, which is a fault of the configuration (`conflict`). Compiled once for each scope that says anything, and shared by all that say nothing
more.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from sluicegate.core.phrases import Phrase, Phrases

BETWEEN = "\n\n"  # two system prompts, or a text and a disclaimer

Values = tuple[tuple[str, Any], ...]

_encode = msgspec.json.Encoder(order="deterministic").encode


class Rules(Struct, frozen=True):
    """What one scope says. Empty: nothing."""

    scope: str  # its id; `*` for everybody
    system_prompt: str = ""
    disclaimer: str = ""
    banned: tuple[Phrase, ...] = ()
    max_input_tokens: int = 0
    max_input_bytes: int = 0
    force: Values = ()  # parameters by their common names (dialects/parameters.py)
    ceilings: Values = ()


class ContentRules:
    """The rules of a key, as they are applied. Two that say the same are equal."""

    __slots__ = (
        *("any_out", "banned_in", "banned_out", "ceilings", "chain", "digest", "disclaimer", "force", "max_input_bytes", "max_input_tokens"),
        *("noted_out", "prompts", "shapes_answers"),
    )

    def __init__(self, chain: tuple[Rules, ...]) -> None:
        """chain: from the highest scope down. Raises BadPattern."""
        self.chain = chain
        self.prompts = _once([rules.system_prompt for rules in chain])
        self.disclaimer = BETWEEN.join(_once([rules.disclaimer for rules in chain]))
        phrases = [phrase for rules in chain for phrase in rules.banned]
        self.banned_in = _phrases([phrase for phrase in phrases if phrase.input])
        out = [phrase for phrase in phrases if phrase.output]
        self.banned_out = _phrases([phrase for phrase in out if phrase.action != "report"])
        self.noted_out = _phrases([phrase for phrase in out if phrase.action == "report"])
        self.any_out = _phrases(out) if self.banned_out is not None and self.noted_out is not None else self.banned_out or self.noted_out
        self.max_input_tokens = _least([rules.max_input_tokens for rules in chain])
        self.max_input_bytes = _least([rules.max_input_bytes for rules in chain])
        self.force: dict[str, Any] = {name: value for rules in reversed(chain) for name, value in rules.force}
        self.ceilings: dict[str, Any] = {}
        for name, value in [pair for rules in chain for pair in rules.ceilings]:
            self.ceilings[name] = min(value, self.ceilings.get(name, value))
        self.shapes_answers = bool(self.disclaimer or out)
        self.digest = _digest(self.disclaimer, out) if self.shapes_answers else b""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContentRules) and self.chain == other.chain

    def __hash__(self) -> int:
        return hash((self.digest, self.prompts))


def below(above: ContentRules | None, own: Rules) -> ContentRules | None:
    """What binds in a scope that says `own`. Raises BadPattern."""
    if own == Rules(own.scope):
        return above
    return ContentRules((*(above.chain if above is not None else ()), own))


def conflict(above: ContentRules | None, name: str, value: Any) -> bool:
    """A parameter is forced to be something else above."""
    return above is not None and above.force.get(name, value) != value


def _once(texts: Sequence[str]) -> tuple[str, ...]:
    """Those that say something, each where it stands first."""
    return tuple(dict.fromkeys(text for text in texts if text))


def _phrases(phrases: list[Phrase]) -> Phrases | None:
    return Phrases(phrases) if phrases else None


def _least(sizes: Sequence[int]) -> int:
    return min([size for size in sizes if size], default=0)


def _digest(disclaimer: str, out: list[Phrase]) -> bytes:
    """Of all that decides what becomes of an answer."""
    return hashlib.sha256(_encode([disclaimer, [(each.pattern, each.action, each.words, each.mask) for each in out]])).digest()
