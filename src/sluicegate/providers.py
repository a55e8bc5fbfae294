"""Providers: a table of what is known of each kind of upstream. A new OpenAI-compatible vendor is a row.

A row states facts on which the cap depends: `extend` and `stops_on_close` say that every billed token is visible in the stream and that generation
stops when the connection closes; `token_per_event` that a stream has an event for each token. They are False unless that is known.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import msgspec

from sluicegate.core.tenants import Provider
from sluicegate.dialects.registry import DIALECTS


class Row(msgspec.Struct, frozen=True):
    """One kind of upstream. Pairs are (prefix of the model's name, value), the longer prefix first."""

    dialect: str  # name of a module in dialects/: what requests of any other are translated to
    also: tuple[str, ...] = ()  # dialects that it speaks beside that one
    base_url: str = ""  # "": the operator must say
    auth_header: str = "authorization"
    auth_scheme: str = "Bearer "
    path: str = "{path}"  # of a call, below the base URL; {path}: the dialect's own; {model}: the deployment's model
    headers: tuple[tuple[str, str], ...] = ()  # sent with every call
    forwards: tuple[str, ...] = ()  # headers of the client that concern this provider
    cap_field: str = "max_tokens"
    cap_fields: tuple[tuple[str, str], ...] = ()  # models that want another one
    stream_usage: bool = True  # accepts stream_options.include_usage
    rejects: tuple[str, ...] = ()  # fields that it answers with an error
    renames: tuple[tuple[str, str], ...] = ()  # fields that it knows by another name
    extend: bool = False
    stops_on_close: bool = False
    token_per_event: bool = False
    cap_overrun: int = 0  # tokens per choice that may come beyond the cap that was sent
    own_prompt: int = 0  # tokens, at most, of a text of its own on the use of tools or the shape of the answer
    tokenizers: tuple[tuple[str, str], ...] = ()


# https://github.com/openai/tiktoken/blob/main/tiktoken/model.py has the same assignment.
_OPENAI_TOKENIZERS = (
    ("chatgpt-4o", "o200k_base"),
    ("gpt-3.5", "cl100k_base"),
    ("gpt-4.1", "o200k_base"),
    ("gpt-4.5", "o200k_base"),
    ("gpt-4o", "o200k_base"),
    ("gpt-4", "cl100k_base"),
    ("gpt-5", "o200k_base"),
    ("o1", "o200k_base"),
    ("o3", "o200k_base"),
    ("o4", "o200k_base"),
)
# Reasoning models refuse max_tokens: https://platform.openai.com/docs/api-reference/chat/create#chat_create-max_tokens
_OPENAI_CAP_FIELDS = tuple((prefix, "max_completion_tokens") for prefix in ("gpt-5", "o1", "o3", "o4"))

FORWARDED = ("traceparent", "tracestate")  # to every provider: https://www.w3.org/TR/trace-context/

_OPENAI_ALSO = ("openai_completions", "openai_embeddings")

ROWS = {
    "openai": Row(
        "openai_chat",
        also=_OPENAI_ALSO,
        base_url="https://api.openai.com/v1",
        cap_fields=_OPENAI_CAP_FIELDS,
        tokenizers=_OPENAI_TOKENIZERS,
    ),
    "openai_compatible": Row("openai_chat", _OPENAI_ALSO),
    # llama-cpp-python looks at the cap only where no character has begun: of four tokens that make one, three may come after it.
    "llama_cpp": Row(
        "openai_chat",
        _OPENAI_ALSO,
        base_url="http://127.0.0.1:8081/v1",
        extend=True,
        stops_on_close=True,
        token_per_event=True,
        cap_overrun=3,
    ),
    "vllm": Row("openai_chat", _OPENAI_ALSO, base_url="http://127.0.0.1:8000/v1", extend=True, stops_on_close=True),
    "mock": Row("openai_chat", _OPENAI_ALSO, base_url="http://127.0.0.1:8089/v1", extend=True, stops_on_close=True),
}


def paths(row: Row, model: str, base_url: str = "") -> tuple[tuple[str, bytes], ...]:
    """Where a model of this row is called, below the base URL, by the dialects that the row speaks. A version that the base URL ends with is not said
    again."""
    quoted, found = quote(model, safe=""), []
    for name in (row.dialect, *row.also):
        path = DIALECTS[name].PATH.decode()
        if base_url.endswith("/v1"):
            path = path.removeprefix("/v1")
        found.append((name, row.path.format(path=path, model=quoted).encode()))
    return tuple(found)


def forwarded(provider: Provider, headers: Mapping[bytes, bytes]) -> Sequence[tuple[bytes, bytes]]:
    """The headers of a call: the provider's own, and those of the client that concern it. Never a credential of the client."""
    if provider.forwards.isdisjoint(headers):
        return provider.headers
    own = {name for name, _ in provider.headers}
    names = [name for name in headers if name in provider.forwards and name not in own and headers[name].decode("latin-1").isprintable()]
    return [*provider.headers, *((name, headers[name]) for name in names)]


def tokenizer(row: Row, model: str) -> str:
    """The vocabulary that a model of this row counts in; "" if it is not known."""
    return _by_prefix(row.tokenizers, model, "")


def cap_field(row: Row, model: str) -> str:
    """The request field in which a model of this row takes its output cap."""
    return _by_prefix(row.cap_fields, model, row.cap_field)


def _by_prefix(pairs: tuple[tuple[str, str], ...], model: str, default: str) -> str:
    """A prefix ends where a part of the name does: `o1` is for `o1-mini`, not for `o1x`. Fine-tuned models (`ft:`) are like their base."""
    base = model.removeprefix("ft:")
    for prefix, value in pairs:
        if base.startswith(prefix) and base[len(prefix) : len(prefix) + 1] in ("", "-", ".", ":"):
            return value
    return default
