"""Content rules of a scope, from the configuration: what it says, put below what the scopes above it say."""

from collections.abc import Callable
from typing import Any

from sluicegate.config import schema_rules
from sluicegate.config.fields import Path
from sluicegate.core import content_rules, efforts
from sluicegate.core.content_rules import ContentRules, Rules
from sluicegate.core.patterns import BadPattern, parse
from sluicegate.core.phrases import Phrases

Note = Callable[[Path, str], None]


def compiled(above: ContentRules | None, written: schema_rules.Rules, scope: str, path: Path, problem: Note) -> ContentRules | None:
    """The rules that bind in a scope; those above where its own cannot be used. problem: is told what is wrong, with the path of the field."""
    wrong: list[tuple[Path, str]] = []
    names: set[str] = set()
    for i, banned in enumerate(written.banned):
        try:
            parse(banned.pattern, banned.words)
        except BadPattern as error:
            wrong.append((("banned", i, "pattern"), str(error)))
        if banned.name in names:
            wrong.append((("banned", i, "name"), f"{banned.name!r} is already the name of another"))
        names.add(banned.name)
    for section, given in (("force", written.force), ("ceilings", written.ceilings)):
        if len(given.caps) > 1:
            wrong.append(((section, given.caps[1]), f"and {given.caps[0]} are two names of the same; give one"))
    force = written.force.given
    for name, value in force.items():
        if content_rules.conflict(above, name, value):
            wrong.append((("force", name), f"is forced to be {above.force[name] if above is not None else ''!r} above; it cannot be anything else"))
    ceilings = efforts.both(written.ceilings.given)
    for name, value in force.items():
        most = min([of[name] for of in (ceilings, above.ceilings if above is not None else {}) if name in of], default=value)
        if value > most:
            wrong.append((("force", name), f"is above its ceiling, {most}"))
    wrong = wrong or _said_by_rules(above, written, scope)
    for at, message in wrong:
        problem((*path, *at), message)
    if wrong:
        return above
    own = Rules(
        scope,
        written.system_prompt.strip(),
        written.disclaimer.strip(),
        tuple([banned.phrase(scope) for banned in written.banned]),
        written.max_input_tokens,
        written.max_input,
        _values(force),
        _values(ceilings),
    )
    try:
        return content_rules.below(above, own)
    except BadPattern as error:  # of all together
        problem((*path, "banned"), str(error))
        return above


def _said_by_rules(above: ContentRules | None, written: schema_rules.Rules, scope: str) -> list[tuple[Path, str]]:
    """What rules put into answers and is banned by them: a client that sends it back would be refused, or get it masked again."""
    wrong: list[tuple[Path, str]] = []
    chain = above.chain if above is not None else ()
    over = [(f"the mask of {phrase.name!r}", phrase.mask) for rules in chain for phrase in rules.banned if phrase.action == "mask"]
    over += [("the disclaimer", rules.disclaimer) for rules in chain]
    own: list[tuple[Path, str]] = [(("banned", i, "mask"), banned.mask) for i, banned in enumerate(written.banned) if banned.action == "mask"]
    own.append((("disclaimer",), written.disclaimer))
    for i, banned in enumerate(written.banned):
        if banned.action != "report":
            phrase = Phrases([banned.phrase(scope)])
            wrong += [(path, f"is banned itself, by {banned.name!r}") for path, text in own if phrase.find(text)]
            wrong += [(("banned", i, "pattern"), f"is in {name} above") for name, text in over if phrase.find(text)]
    for ban in [phrase for rules in chain for phrase in rules.banned if phrase.action != "report"]:
        phrase = Phrases([ban])
        wrong += [(path, f"is banned above, by {ban.name!r}") for path, text in own if phrase.find(text)]
    return wrong


def _values(given: dict[str, Any]) -> content_rules.Values:
    return tuple([(name, tuple(value) if isinstance(value, list) else value) for name, value in given.items()])
