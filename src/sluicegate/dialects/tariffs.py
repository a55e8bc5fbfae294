"""Fields by which a client would be served at another price than the deployment's: refused, since nothing would hold the difference.

What is taken of each costs at most what the deployment's price is for. `auto`, and no tier at all, is what the account there says: where a project of
OpenAI's is set to priority, the price to configure is that (docs/dialects.md). OpenRouter's `provider` chooses among hosts of different prices, also
where it only rules some out; `max_price` alone can but make it cheaper.

https://platform.openai.com/docs/api-reference/chat/create, https://console.groq.com/docs/service-tiers,
https://docs.anthropic.com/en/api/service-tiers, https://openrouter.ai/docs/features/provider-routing
"""

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
_decode_names = msgspec.json.Decoder(dict[str, Raw]).decode


def refuse_dearer(fields: Mapping[str, Raw]) -> None:
    """Raises BadRequest for a field by which a request may cost more than the deployment's price."""
    for name, raw in fields.items():
        plain = name.casefold()
        if plain in PRICED:
            value = bytes(raw)
            if value != b"null" and value not in _TAKEN[plain] and not (name == "provider" and _lowers(value)):
                what = "other hosts have" if plain == "provider" else "it may have"
                raise BadRequest(f"This {name!r} is not supported: {what} another price than the model's.", name)


def _lowers(value: bytes) -> bool:
    return value[:1] == b"{" and _decode_names(value).keys() <= _LOWERING
