"""How the mock answers: one set of options, given for the whole process, for one request, or (as faults) for the next calls.

All three are mappings of field names or their short forms (`ttft`, `tpot`, `completion`, ...), read by `from_mapping`. Later ones win:
standing options, then the request's own (`x-mock` header, `mock` field of the body, `[[mock {...}]]` in a message), then a fault.

How it fails: an unknown name or a wrong value raises MockOptionError naming it; over HTTP that is a 400.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from sluicegate.mock.allowance import Style

Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
Usage = Literal["normal", "unasked", "with_choices", "cumulative", "none", "null", "partial", "zero_input", "zero"]


class MockOptionError(ValueError):
    """An option that does not exist or a value that it cannot have. `name` is the name as it was given."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"mock option `{name}`: {message}")
        self.name = name


class ToolOption(msgspec.Struct, frozen=True):
    """A call of a tool. arguments: an object, or any text in place of its JSON."""

    name: str
    arguments: dict[str, Any] | str = {}


class MockOptions(msgspec.Struct, frozen=True):
    """Everything that an answer depends on besides the request. Numbers of chunks count those with output, over all choices."""

    # time
    ttft_ms: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # to the first token
    tpot_ms: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # per token after it; choices run in parallel
    early_headers: bool = False  # status and headers at once, not with the first output

    # how much
    completion_tokens: Count | None = None  # per choice, fixed; None: log-normal
    median_tokens: Annotated[float, msgspec.Meta(ge=1)] = 150.0
    sigma: Annotated[float, msgspec.Meta(ge=0, le=5)] = 0.8
    seed: int = 0
    request_id: str = ""  # what lengths are drawn from besides seed and caller; "": the header x-request-id, else the messages
    prompt_tokens: Count | None = None  # None: counted
    tokenizer: Literal["", "o200k_base", "cl100k_base"] = ""  # counts the prompt; "": a token per four characters, and framing
    cached_tokens: Count = 0  # of the prompt, as reported: read from a cache
    cache_written_tokens: Count = 0  # written to it, to live for minutes
    cache_written_1h_tokens: Count = 0  # and for an hour (Anthropic)

    # what it looks like
    chunk_tokens: Count = 1  # tokens per chunk; 0: the whole answer in one
    dense: bool = False  # CJK: every character is a token
    word: str = ""  # text of each token, instead of words
    reasoning: Literal["none", "visible", "both", "hidden", "redacted"] = "none"  # docs/mock.md says how each dialect shows it
    reasoning_tokens: Count | None = None  # of the completion, before the content; None: half of it
    tools: list[ToolOption] | Literal["", "first"] = ""  # calls these after its content, or the first that is offered; then answers with text
    finish: str = ""  # why it ended, as reported, in the dialect's own words
    dims: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 8  # of an embedding
    usage: Usage = "normal"
    done: bool = True  # a stream ends as its dialect wants ([DONE], message_stop, ...)
    newline: Literal["\n", "\r\n", "\r"] = "\n"
    chunk_fields: dict[str, Any] = {}  # more top-level fields in every chunk
    choice_fields: dict[str, Any] = {}  # more fields in every choice
    pad_bytes: Count = 0  # an unknown field of that length in the first chunk
    insert: dict[int, str] = {}  # raw text after that many chunks (0: before the first)
    write_bytes: Count = 0  # at most so many bytes per write, each in a loop turn of its own; 0: as they come
    headers: dict[str, str] = {}  # more response headers

    # what goes wrong
    api_key: str = ""  # any other credential is a 401
    requests_per_minute: Count = 0  # of one credential; the next is a 429. 0: as many as come
    limit_headers: Style = "openai"  # how answers tell of that limit
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 200
    message: str = ""  # of the error
    code: str = ""  # of the error
    retry_after: str | int = ""  # header: seconds, or a date
    html: bool = False  # an HTML page instead of JSON
    error_in_200: Annotated[int, msgspec.Meta(ge=0, le=599)] = 0  # status 200 around an error that names this status
    cut_after: Count | None = None  # the connection ends after that many chunks; 0: before a byte is answered
    cut: Literal["fin", "rst"] = "fin"
    stall_after: Count | None = None  # silence after that many chunks; 0: no byte is answered
    stops_on_close: bool = True  # False: generation goes on to its end, and is counted, when the client has gone

    # whom it counts for
    caller: str = ""
    window_s: Count = 0  # counts apart what arrives in each window of this length: the caller's name gets `@` and the window's start


SHORT = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "completion": "completion_tokens",
    "median": "median_tokens",
    "prompt": "prompt_tokens",
    "cached": "cached_tokens",
    "cache_written": "cache_written_tokens",
    "cache_written_1h": "cache_written_1h_tokens",
    "chunk": "chunk_tokens",
    "pad": "pad_bytes",
    "id": "request_id",
    "window": "window_s",
    "rpm": "requests_per_minute",
}
_FIELDS = {field.name: field for field in msgspec.structs.fields(MockOptions)}
_DURATION_MS = {"ms": 1.0, "s": 1000.0}


def from_mapping(mapping: Mapping[str, object], base: MockOptions | None = None) -> MockOptions:
    """`base` (or the defaults) with what the mapping says. Durations are milliseconds, or text such as "20ms" and "1.5s"."""
    changes: dict[str, Any] = {}
    for name, value in mapping.items():
        field = _FIELDS.get(SHORT.get(name, name))
        if field is None:
            raise MockOptionError(name, f"does not exist; known: {', '.join(sorted({*_FIELDS, *SHORT}))}")
        plain = duration_ms(name, value) if field.name in ("ttft_ms", "tpot_ms") else value
        try:
            changes[field.name] = msgspec.convert(plain, field.type, strict=False)
        except msgspec.ValidationError as error:
            raise MockOptionError(name, str(error)) from None
    return msgspec.structs.replace(base if base is not None else MockOptions(), **changes)


def duration_ms(name: str, value: object) -> object:
    """Milliseconds of "20ms" or "1.5s"; a number passes as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    unit = "ms" if text.endswith("ms") else "s" if text.endswith("s") else ""
    try:
        return float(text.removesuffix(unit)) * _DURATION_MS.get(unit, 1.0)
    except ValueError:
        raise MockOptionError(name, f"`{value}` is not a duration; write 20ms, 1.5s, or a number of milliseconds") from None
