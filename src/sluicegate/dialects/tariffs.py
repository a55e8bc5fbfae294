"""Fields by which a client would be served at another price than the deployment's: told as the request's tariff, or refused.

What is taken of each as it is costs at most what the deployment's price is for. Anything dearer that can be named (a service tier, a speed, a place)
is the request's `tariff`, such as `service_tier=priority`: only a deployment that has a price for it is called, and it is held and charged at that
price (core/prices.py). `auto`, and no tier at all, is what the account there says: where a project of OpenAI's is set to priority, the price to
configure is that (docs/prices.md). OpenRouter's `provider` chooses among hosts of different prices, also where it only rules some out; `max_price`
alone can but make it cheaper; all else in it is refused.

https://platform.openai.com/docs/api-reference/chat/create, https://console.groq.com/docs/service-tiers,
https://docs.anthropic.com/en/api/service-tiers, https://openrouter.ai/docs/features/provider-routing
"""

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from sluicegate.dialects.form import BadRequest

_TAKEN = {
    "service_tier": frozenset((b'"auto"', b'"default"', b'"flex"', b'"on_demand"', b'"standard"', b'"standard_only"')),
    "speed": frozenset((b'"standard"',)),
    "inference_geo": frozenset((b'"global"',)),
    "provider": frozenset((b"{}",)),
}
PRICED = frozenset(_TAKEN)
_LOWERING = frozenset(("max_price",))
_NAMED = re.compile(rb'"[A-Za-z0-9_.-]{1,40}"')
_decode_names = msgspec.json.Decoder(dict[str, Raw]).decode


def tariff(fields: Mapping[str, Raw]) -> str:
    """What a request asks for that may cost more than the deployment's price; "": nothing. Raises BadRequest where that cannot have a price."""
    asked = ""
    for name in sorted(PRICED.intersection(fields)) if not PRICED.isdisjoint(fields) else ():
        value = bytes(fields[name])
        if value == b"null" or value in _TAKEN[name]:
            continue
        if name == "provider":
            if not _lowers(value):
                raise BadRequest("This 'provider' is not supported: other hosts have another price than the model's.", name)
            continue
        if not _NAMED.fullmatch(value):
            raise dearer(name)
        asked += ("," if asked else "") + f"{name}={value[1:-1].decode()}"
    for name in fields:
        if name not in PRICED and name.casefold() in PRICED:
            raise dearer(name)
    return asked


def tariff_of(when: Mapping[str, str]) -> str | None:
    """The tariff of requests that have these fields; None if they are none that cost more."""
    fields = {name: Raw(msgspec.json.encode(value)) for name, value in when.items() if name != "provider"}
    try:
        found = tariff(fields)
    except BadRequest:
        return None
    return found if found.count("=") == len(when) else None


def dearer(name: str) -> BadRequest:
    """What is told of a field that would cost more than is held."""
    return BadRequest(f"This {name!r} is not supported: it may have another price than the model's.", name)


def _lowers(value: bytes) -> bool:
    try:
        return value[:1] == b"{" and _decode_names(value).keys() <= _LOWERING
    except RecursionError:
        return False
