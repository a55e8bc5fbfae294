"""Which requests the exact-match cache has an answer for: whether one is looked up at all (`decide`), and under which key (docs/cache.md).

The key is a SHA-256 over all that shapes an answer: the canonical body (every name sorted, escapes read, no spaces) without TRANSPORT, the dialect,
the headers that go on to a provider, the model as it is defined at present, the content rules, and the scope whose requests share answers. What is
not known to be without effect is in it. Numbers differ if they are written as different kinds (1 and 1.0), but for SAMPLING, where no provider can
tell them apart.

Pure. Nothing here raises.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from sluicegate.core.route import STAY_HEADER
from sluicegate.core.tenants import Caching, Key, Model, Provider
from sluicegate.dialects.form import Request

BODY_MAX = 1 << 20  # bytes: to write more of them anew would keep everybody else waiting
TRANSPORT = frozenset(("stream", "stream_options"))  # fields that say how an answer is sent, not which
SAMPLING = frozenset(("temperature", "top_p", "frequency_penalty", "presence_penalty"))  # numbers in any notation
SEEDED = frozenset(("openai_chat", "openai_completions"))  # dialects that have a seed
_DETERMINISTIC = frozenset(("openai_embeddings",))  # dialects whose answers are drawn by no chance
_TRACING = frozenset((b"traceparent", b"tracestate"))  # headers that go on and shape no answer
_CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key"))
# In a canonical body: an address of something that the provider reads as it is at the time, whatever the scheme. A text's own quotes are escaped.
_FETCHED = b'url":"'
_FETCHING = re.compile(rb'["_]' + _FETCHED + rb"(?!(?i:data):)")

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def decide(caching: Caching, dialect: str, request: Request, cache_control: bytes = b"") -> tuple[str, bytes]:
    """Why a request is not answered from the cache, "" if it may be; and its canonical body, b"" if its answer is not kept either.

    no-store, no-cache: the client says so (the answer to the latter is kept). choices: it asks for several answers. unbounded: what the provider
    reads, or runs, is not in the request. sampling: the mode only has answers that are drawn by no chance. body: it cannot be written canonically, or
    is too large for that.
    """
    told = cache_control.lower() if cache_control else b""
    if told and b"no-store" in told:
        return "no-store", b""
    if request.choices != 1:
        return "choices", b""
    if not request.unbounded and _is_drawn(caching, dialect, request.fields):
        return "sampling", b""
    body = canonical(request.fields)
    if request.unbounded or (body.find(_FETCHED) >= 0 and _FETCHING.search(body)):
        return "unbounded", b""
    if not body:
        return "body", b""
    return "no-cache" if told and b"no-cache" in told else "", body


def _is_drawn(caching: Caching, dialect: str, fields: Mapping[str, Any]) -> bool:
    """Whether the mode leaves a request out because its answer is drawn by chance. A temperature that is not given is not 0."""
    if caching.mode == "all" or dialect in _DETERMINISTIC or (caching.mode == "seeded" and dialect in SEEDED):
        return False
    try:
        temperature = _decode(_encode(fields.get("temperature")))
    except (ValueError, RecursionError):
        return True
    return isinstance(temperature, bool) or not isinstance(temperature, int | float) or temperature != 0


def canonical(fields: Mapping[str, Any]) -> bytes:
    """A body in the one way in which all that mean the same are written; b"" if it cannot be. fields: as they came, a name twice already resolved."""
    try:
        data = _encode(fields)
        if len(data) > BODY_MAX:
            return b""
        body: dict[str, Any] = _decode(data)
        for name in TRANSPORT:
            body.pop(name, None)
        if not SAMPLING.isdisjoint(body):
            for name in SAMPLING:
                if type(value := body.get(name)) is int:
                    body[name] = float(value)
        return _encode_sorted(body)
    except (ValueError, RecursionError, OverflowError):  # a number beyond all doubles, or nested as deeply as can just be read
        return b""


def shaping_headers(model: Model) -> frozenset[bytes]:
    """The headers of a client that shape an answer of this model: those that go on to one of its providers, and what keeps a request at the first."""
    forwarded = frozenset[bytes]().union(*(one.provider.forwards for one in model.deployments))
    return forwarded - _TRACING | {STAY_HEADER}


def scope_of(key: Key, caching: Caching) -> str:
    """The id of the scope whose requests share answers. A key that is below no team or organization shares with nobody."""
    if caching.scope == "global":
        return "*"
    return next((scope.id for scope in reversed(key.path) if scope.kind == caching.scope), key.id)


def prefix(key: Key, model: Model, caching: Caching, rules: bytes) -> bytes:
    """What of a cache key depends on who asks for which model. rules: what tells the content rules that bind the answer from others."""
    route = [(one.id, one.model, one.cap_field, one.paths, _called(one.provider)) for one in model.deployments]
    said = {"scope": [caching.scope, scope_of(key, caching)], "model": model.name, "most": model.max_output, "route": route, "rules": rules}
    return hashlib.sha256(_encode_sorted(said)).digest()


def _called(provider: Provider) -> tuple[Any, ...]:
    """How a provider is called. Its credential shapes no answer: another one has those of before."""
    headers = [[name, value] for name, value in provider.headers if name not in _CREDENTIALS]
    return provider.dialect, provider.base_url, headers, provider.rejects, provider.renames, provider.thoughts


def digest(prefix: bytes, dialect: str, headers: Mapping[bytes, bytes], shaping: frozenset[bytes], body: bytes) -> bytes:
    """The key of a request. body: canonical."""
    told = b"[]" if shaping.isdisjoint(headers) else _encode(sorted((name, headers[name]) for name in shaping & headers.keys()))
    return hashlib.sha256(b"".join((prefix, dialect.encode(), b"\n", told, b"\n", body))).digest()


def has_seed(fields: Mapping[str, Any]) -> bool:
    """Whether a request says a seed of its own."""
    return "seed" in fields and bytes(_encode(fields["seed"])) != b"null"


def seed(key: bytes) -> int:
    """For a request that has none: always the same for the same request, and hardly that of another one."""
    return int.from_bytes(key[:4]) >> 1
