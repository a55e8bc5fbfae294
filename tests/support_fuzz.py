"""What no client should send, as Hypothesis strategies that write text and bytes rather than values: JSON with numbers that no parser agrees on,
names given twice, halves of characters; HTTP whose framing contradicts itself. And the watch that is kept over a gateway while it is sent.

`Watch` stands between the gateway and its ledger and looks at every claim; `settled` looks at the ledger afterwards. It knows nothing of the
gateway's own checks: amounts are whole and not negative, grants are ordered, nothing is held once nothing is in flight, what was used never becomes
less, and neither that nor what the provider really produced is above a limit that does not refill.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from sluicegate.core.claims import Admission, Extension, Settlement
from sluicegate.core.limits import Unit
from support_inloop import INPUT_NANO_USD, MARKERS, OUTPUT_NANO_USD, Bench, Reply

# So many examples of each test, drawn anew each time; without the variable few, and always the same.
EXAMPLES = int(os.environ.get("SLUICEGATE_FUZZ", "0"))


def profile(usual: int) -> settings:
    """The settings of one fuzzer."""
    return settings(
        max_examples=EXAMPLES or usual,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],  # one gateway sees all examples: what fails depends on those before, and is shown as it was drawn
    )


CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict")

# -- JSON as text -------------------------------------------------------------------------------------------------------------------------

NUMBERS = (
    "0", "1", "5", "-1", "-0", "-0.0", "0.0", "5.0", "1.5", "-2.5", "1e2", "1E+2", "1e17", "1e400", "-1e400", "1e-400", "128", "129", "2147483648",
    "4503599627370495", "4503599627370496", "9007199254740991", "9007199254740992", "9007199254740993.0", "18446744073709551616", "1" + "0" * 400,
)  # fmt: skip
NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "01", "+1", ".5", "5.", "0x10", "1_000", "--1", "1e", "undefined", "True", "None", "'x'")
TEXTS = (
    '""', '"x"', '"10"', '"true"', '"null"', '" "', '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\\\ud800"', '"\\ufeff"',
    '"\\u2028\\u0085"', '"日本語"', '"auto"', '"text"', '"function"', '"' + "x" * 300 + '"', '"' + "é" * 5000 + '"', '"' + "[" * 300 + '"',
)  # fmt: skip
CONTAINERS = ("[]", "{}", "[[]]", "[{}]", "[null]", '[""]', '{"":""}', '{"a":1,"a":2}', "[1,2]", "[true]")

PLAIN = ("null", "true", "false", *NUMBERS, *TEXTS, *CONTAINERS)
scalars = st.sampled_from(PLAIN) | st.text(max_size=40).map(json.dumps) | st.integers().map(str)
_names = st.sampled_from(("type", "text", "content", "role", "name", "function", "image_url", "url", "id", "max_tokens", "n", "user")) | st.text(
    max_size=5
)


def _object(fields: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in fields) + "}"


def _list(values: list[str]) -> str:
    return "[" + ",".join(values) + "]"


values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3).map(_list) | st.lists(st.tuples(_names, inner), max_size=4).map(_object),
    max_leaves=8,
)


AMBIGUOUS = object()


def parsed(text: str) -> Any:
    """The value of a JSON text, AMBIGUOUS if a name is given twice in it."""
    twice = False

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        twice = twice or len(dict(pairs)) < len(pairs)
        return dict(pairs)

    value = json.loads(text, object_pairs_hook=fields)
    return AMBIGUOUS if twice else value


# -- the fields of a chat request, and which values each may have: the documentation's word, not the gateway's ----------------------------


def _count(value: Any) -> bool:
    return type(value) is int and 1 <= value < 2**53


def _choices(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 128


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e308


def _integer(value: Any) -> bool:
    return type(value) is int


def _flag(value: Any) -> bool:
    return type(value) is bool


def _text(value: Any) -> bool:
    return type(value) is str


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _named(value: Any) -> bool:
    return isinstance(value, dict) and _text(value.get("name"))


def _tool(value: Any) -> bool:
    if not isinstance(value, dict) or not _text(value.get("type")):
        return False
    function = value.get("function")
    return _named(function) or (function is None and value["type"] != "function")


def _options(value: Any) -> bool:
    return isinstance(value, dict) and (value.get("include_usage") is None or _flag(value["include_usage"]))


# Name: whether a value fits, and some that do. Each may be null, too.
FIELDS: dict[str, tuple[Callable[[Any], bool], tuple[str, ...]]] = {
    **dict.fromkeys(CAPS, (_count, ("1", "5", "64", "100000", "10000000000"))),
    **dict.fromkeys(("n", "best_of", "n_cmpl"), (_choices, ("1", "2", "5", "128"))),
    **dict.fromkeys(("stream", "logprobs", "parallel_tool_calls"), (_flag, ("true", "true", "false"))),
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), (_number, ("0", "1.0", "-0.0", "2"))),
    **dict.fromkeys(("seed", "top_logprobs"), (_integer, ("0", "-1", "18446744073709551616"))),
    "user": (_text, ('""', '"x"')),
    "stop": (lambda value: _text(value) or _list_of(_text)(value), ('""', "[]", '["a","b"]')),
    "modalities": (_list_of(_text), ('["text"]', "[]")),
    "logit_bias": (lambda value: isinstance(value, dict) and all(map(_number, value.values())), ("{}", '{"1":-100}')),
    "stream_options": (_options, ("{}", '{"include_usage":true}', '{"include_usage":false,"x":1}')),
    "response_format": (lambda value: isinstance(value, dict) and _text(value.get("type")), ('{"type":"text"}', '{"type":"json_schema","x":{}}')),
    "tools": (_list_of(_tool), ("[]", '[{"type":"function","function":{"name":"f","parameters":{}}}]', '[{"type":"web_search"}]')),
    "functions": (_list_of(_named), ("[]", '[{"name":"f"}]')),
}
right = st.sampled_from(sorted(FIELDS)).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(("null", *FIELDS[name][1]))))

PARTS = (
    '{"type":"text","text":"Tell"}', '{"type":"text","text":""}', '{"type":"image_url","image_url":{"url":"data:,"}}',
    '{"type":"refusal","refusal":"no"}',
    '{"type":"image_url","image_url":"data:,"}', '{"type":"input_audio","input_audio":{}}', '{"type":"file","file":{"file_id":"f"}}', '{"type":"x"}',
)  # fmt: skip
_CALLS = '[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]'
_parts = st.lists(st.sampled_from(PARTS) | st.lists(st.tuples(_names, values), max_size=3).map(_object), max_size=3).map(_list)
_roles = st.sampled_from(('"user"', '"user"', '"system"', '"assistant"', '"tool"', '"x"'))
_of_message = (
    _parts.map(lambda parts: ("content", parts))
    | st.just(("tool_calls", _CALLS))
    | st.tuples(st.sampled_from(("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "audio", "x")), values)
)
_message = st.tuples(_roles, st.lists(_of_message, max_size=2)).map(lambda drawn: _object([("role", drawn[0]), ("content", '"Tell me"'), *drawn[1]]))
messages = st.lists(_message | _message | _message | values, min_size=1, max_size=3).map(_list)
USUAL_MESSAGES = '[{"role":"user","content":"Tell me"}]'
MESSAGES = (
    USUAL_MESSAGES,
    '[{"role":"user","content":[{"type":"text","text":"Tell"},{"type":"image_url","image_url":{"url":"data:,"}}]}]',
    '[{"role":"user","content":[{"type":"text","text":"%s"}]},{"role":"system","content":"%s"}]' % (" tell" * 400, " me" * 400),  # noqa: UP031
)
OTHER_FIELDS = (
    "background", "models", "extra_body", "prediction", "thinking", "reasoning", "prompt", "previous_response_id", "tool_choice", "metadata", "x",
    "Max_Tokens", "N", "", "mock_", "web_search_options", "service_tier", "reasoning_effort", "function_call", "store",
)  # fmt: skip
MODELS = ('"chat"', '"open"', '"whole"', '"route"')
_wrong = st.tuples(st.sampled_from((*FIELDS, *OTHER_FIELDS)), values) | st.tuples(st.sampled_from((*CAPS, "n", "best_of")), st.sampled_from(NUMBERS))


# What there is to read on the older paths, under the name that it has there.
OLDER = {"/v1/completions": "prompt", "/v1/embeddings": "input"}
INPUTS = (
    '"Tell me"',
    '""',
    '["a","b"]',
    "[1,2,3]",
    "[[1],[2,3]]",
    "null",
    '["a",1]',
    '["' + "x " * 300 + '"]',
    "[" + "7," * 500 + "7]",
    "[" + '"a",' * 130 + '"a"]',
)
OLDER_FIELDS = (
    "echo",
    "suffix",
    "best_of",
    "n",
    "logprobs",
    "prompt",
    "input",
    "dimensions",
    "encoding_format",
    "prompt_embeds",
    "use_beam_search",
    "stream",
)


@st.composite
def older_bodies(draw: st.DrawFn, field: str) -> bytes:
    """A body of one of the older paths, most of whose fields are right."""
    fields = [("model", draw(st.sampled_from(MODELS))), (field, draw(st.sampled_from(INPUTS) | values))]
    fields += draw(st.lists(right, max_size=3))
    fields += draw(st.lists(st.tuples(st.sampled_from(OLDER_FIELDS), st.sampled_from(("true", "1", "2", '"x"', "null")) | scalars), max_size=2))
    return _object(fields).encode("utf-8", "surrogatepass")


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A body in which all is right, or nearly all: fields of any value, given twice, left out, and bytes that are spoilt."""
    fields = [("model", draw(st.sampled_from(MODELS))), ("messages", draw(st.sampled_from(MESSAGES))), *draw(st.lists(right, max_size=4))]
    faults = draw(st.lists(st.sampled_from(("field", "field", "model", "messages", "gone", "bytes")), max_size=2))
    for fault in faults:
        if fault == "field":
            fields.append(draw(_wrong))
        elif fault == "model":
            fields.append(("model", draw(st.just('"none"') | values)))
        elif fault == "messages":
            fields.append(("messages", draw(messages | values)))
        elif fault == "gone":
            fields.pop(draw(st.integers(0, len(fields) - 1)))
    body = _object(draw(st.permutations(fields))).encode("utf-8", "surrogatepass")
    return draw(st.sampled_from(SPOILT))(draw, body) if "bytes" in faults else body


def _at(draw: st.DrawFn, body: bytes, inserted: bytes) -> bytes:
    at = draw(st.integers(0, len(body)))
    return body[:at] + inserted + body[at:]


SPOILT = (
    lambda draw, body: body[: draw(st.integers(0, len(body)))],
    lambda draw, body: _at(
        draw, body, draw(st.sampled_from((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\n", b'"', b"\\", b",", b"}", b"\xf4\x90\x80\x80")))
    ),
    lambda draw, body: _at(draw, body, draw(st.sampled_from(NO_NUMBERS)).encode()),
    lambda draw, body: b"\xef\xbb\xbf" + body,
    lambda draw, body: body.decode(errors="replace").encode("utf-16"),
    lambda draw, body: body + draw(st.sampled_from((b"x", b"{}", b"\x00", b" ", b"]"))),
    lambda draw, body: b'{"x":' + draw(st.sampled_from((b"[", b'{"a":'))) * draw(st.sampled_from((50, 2000, 100_000))) + b"," + body[1:],
    lambda draw, body: b"[" * 2000 + body + b"]" * 2000,
    lambda draw, body: b'{"x":"' + b"x" * draw(st.sampled_from((70_000, 300_000, 1_000_000))) + b'",' + body[1:],
    lambda draw, body: draw(st.binary(max_size=200)),
)


# -- HTTP as bytes ------------------------------------------------------------------------------------------------------------------------

OK_BODY = b'{"model":"chat","max_tokens":5,"messages":%b}' % USUAL_MESSAGES.encode()
SMUGGLED = b'{"model":"chat","user":"smuggled","max_tokens":5,"messages":%b}' % USUAL_MESSAGES.encode()
_junk = st.binary(max_size=30) | st.sampled_from(
    (b"", b" ", b"\t", b"\x00", b"\xff\xfe", "日本".encode(), b"x" * 9000, b"a" * 70_000, b"a\rb", b"a\nb", b"\x7f")
)


def request_inside(body: bytes) -> bytes:
    """A whole request, put where it must never be taken for one."""
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-key\r\ncontent-length: %d\r\n\r\n" % len(body) + body


METHODS = (b"POST", b"GET", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"PATCH", b"TRACE", b"CONNECT", b"post", b"PRI", b"BREW", b"P OST", b"\xff", b"")
PATHS = (
    b"/v1/chat/completions", b"/v1/chat/completions/", b"/v1/chat/completions?x=%ff", b"/v1/chat%2fcompletions", b"/v1//chat/completions",
    b"/v1/usage",
    b"/v1/models", b"/v1/responses", b"/", b"*", b"", b"/%", b"/%zz", b"/\xff\xfe", b"/\xe6\x97\xa5", b"/../v1/chat/completions",
    b"/v1/chat/completions#x",
    b"http://other/v1/chat/completions", b"http://[::1/x", b"//x", b"/\x00", b"/ x", b"/" + b"x" * 3000, b"/" + b"x" * 70_000, b"/%0d%0ax: y",
    b"/healthz",
)  # fmt: skip
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"http/1.1", b"HTTP/11", b"ICY/1.1", b"")
CREDENTIALS = (
    b"Bearer sk-key", b"Bearer sk-key", b"Bearer sk-key", b"bearer sk-key", b"Bearer  sk-key ", b"Bearer", b"Bearer ", b"sk-key", b"Basic c2s6",
    b"Bearer sk-no",
    b"Bearer sk-key, Bearer sk-key", b"Bearer sk-key\x00", b"Bearer \xff\xfe", b"BEARER\tsk-key",
)  # fmt: skip
_header = st.tuples(
    st.sampled_from((
        b"authorization", b"x-request-id", b"content-type", b"accept", b"x-sluicegate-include", b"cookie", b"connection", b"upgrade", b"host", b"x",
        b"expect",
        b"X-Request-Id", b"te", b"trailer", b"content-encoding", b"accept-encoding", b"x-mock", b"date", b"proxy-connection", b"keep-alive",
        b"http2-settings",
    )) | st.binary(min_size=1, max_size=8),
    _junk | st.sampled_from((
        b"application/json", b"text/plain", b"multipart/form-data; boundary=x", b"gzip", b"close", b"keep-alive", b"upgrade", b"websocket", b"h2c",
        b"100-continue",
        b"200-ok", b"chunked", b"Bearer sk-key", b"req-1", b"trailers", b'{"completion":5}',
    )),
)  # fmt: skip


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """A good body behind an odd head."""
    method = draw(st.sampled_from((b"POST",) * len(METHODS) + METHODS))
    path = draw(st.sampled_from((PATHS[0],) * len(PATHS) + PATHS) | _junk)
    version = draw(st.sampled_from((b"HTTP/1.1",) * len(VERSIONS) + VERSIONS))
    lines = [b"host: g"] if draw(st.integers(0, 9)) else []
    lines += [b"authorization: " + draw(st.sampled_from(CREDENTIALS))] if draw(st.integers(0, 9)) else []
    for name, value in draw(st.lists(_header, max_size=2)):
        lines.append(name + draw(st.sampled_from((b": ", b": ", b": ", b":", b" : ", b"\t:", b""))) + value)
    if draw(st.integers(0, 30)) == 0:
        lines += [b"x-%d: y" % i for i in range(150)]
    return (
        b"%b %b %b\r\n" % (method, path, version)
        + b"\r\n".join([*draw(st.permutations(lines)), b"content-length: %d" % len(OK_BODY), b"", b""])
        + OK_BODY
    )


LENGTHS = (
    b"0", b"5", b"-1", b"+5", b"0x10", b"1e3", b"5, 5", b"5,6", b"", b" ", b"99999999999999999999999", b"4294967295", b"18446744073709551617",
    b"5 5", b"\xb2",
)  # fmt: skip
CODINGS = (
    b"chunked", b"chunked", b"identity", b"gzip, chunked", b"chunked, gzip", b"chunked, chunked", b"xchunked", b"Chunked", b"chunked\x0b", b"",
    b'"chunked"',
)  # fmt: skip
SIZES = (
    b"0", b"5", b"05", b"-5", b"g", b"0x5", b"5 ", b" 5", b"5;x=y", b'5;x="\r\n"', b"5;" + b"x" * 20_000, b"fffffffffffffffff", b"", b"5\t",
    b"\xff", b"ffffffff",
)  # fmt: skip
ENDS = (b"\n", b"\r", b"", b"\r\n\r\n", b"x\r\n", b"\r\n \r\n", b";x\r\n")
LASTS = (b"0\r\ncontent-length: 5\r\n\r\n", b"0\r\nauthorization: x\r\n\r\n", b"00\r\n\r\n", b"0\r\n", b"", b"0;x\r\n\r\n", b"0\r\nx\r\n\r\n")


@st.composite
def framings(draw: st.DrawFn) -> bytes:
    """A body in good framing, or nearly: lengths and codings that contradict each other, chunks that are none, a whole request inside or behind."""
    chunked = draw(st.booleans())
    inside = draw(st.sampled_from((OK_BODY, request_inside(SMUGGLED))))
    faults = draw(st.lists(st.sampled_from(("length", "coding", "size", "end", "last", "expect")), max_size=2))
    lines = [b"transfer-encoding: chunked"] if chunked else [b"content-length: %d" % len(inside)]
    if "length" in faults:
        lines[draw(st.integers(0, 1)) :] = [b"content-length: " + draw(st.sampled_from(LENGTHS))]
    if "coding" in faults:
        lines[draw(st.integers(0, 1)) :] = [b"transfer-encoding: " + draw(st.sampled_from(CODINGS))]
    if "expect" in faults:
        lines.append(b"expect: 100-continue")
    if chunked:
        size = draw(st.sampled_from(SIZES)) if "size" in faults else b"%x" % len(inside)
        end = draw(st.sampled_from(ENDS)) if "end" in faults else b"\r\n"
        last = draw(st.sampled_from(LASTS)) if "last" in faults else b"0\r\n\r\n"
        inside = b"%b%b%b\r\n%b" % (size, end, inside, last)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-key\r\n"
    behind = draw(st.sampled_from((b"", request_inside(SMUGGLED))))
    return head + b"".join(line + b"\r\n" for line in draw(st.permutations(lines))) + b"\r\n" + inside + behind


def bodies_read_strictly(data: bytes) -> list[bytes]:
    """The bodies of the requests in `data`, up to where RFC 9112 read to the letter leaves any doubt. Nothing else may be acted on."""
    found = []
    while (head := re.match(rb"[\r\n]*POST \S+ HTTP/1\.1\r\n((?:[!-9;-~]+:[^\r\n\0]*\r\n)*)\r\n", data)) is not None:
        lines = [line.partition(b":") for line in head[1].split(b"\r\n")]
        lengths = [value.strip(b" \t") for name, _, value in lines if name.lower() == b"content-length"]
        codings = [value.strip(b" \t").lower() for name, _, value in lines if name.lower() == b"transfer-encoding"]
        rest = data[head.end() :]
        if codings == [b"chunked"] and not lengths:
            body, rest = _chunks(rest)
        elif len(lengths) == 1 and lengths[0].isdigit() and not codings and len(rest) >= int(lengths[0]):
            body, rest = rest[: int(lengths[0])], rest[int(lengths[0]) :]
        elif lengths or codings:
            return found
        else:
            body = b""
        if body is None:
            return found
        found.append(body)
        data = rest
    return found


def _chunks(rest: bytes) -> tuple[bytes | None, bytes]:
    """The body in chunks, and what comes after it; None: it is not what it should be, or not complete."""
    body = b""
    while (line := re.match(rb"([0-9a-fA-F]{1,8})(?:;[!-~\t ]*)?\r\n", rest)) is not None:
        size, rest = int(line[1], 16), rest[line.end() :]
        if not size:
            trailers = re.match(rb"(?:[!-9;-~]+:[^\r\n\0]*\r\n)*\r\n", rest)
            if trailers is None or re.search(rb"(?i)(content-length|transfer-encoding):", trailers[0]):
                break
            return body, rest[trailers.end() :]
        if rest[size : size + 2] != b"\r\n":
            break
        body += rest[:size]
        rest = rest[size + 2 :]
    return None, b""


# -- the watch ----------------------------------------------------------------------------------------------------------------------------

PER_TOKEN = {Unit.INPUT_TOKENS: (1, 0), Unit.OUTPUT_TOKENS: (0, 1), Unit.TOKENS: (1, 1), Unit.USD: (INPUT_NANO_USD, OUTPUT_NANO_USD)}


class Watch:
    """What is claimed, what is left, what was produced."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.granted = 0
        self._produced: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))  # prompt and completion tokens, by the key that was used
        self._used: dict[str, int] = defaultdict(int)
        self._before = (0, 0)
        ledger: Any = bench.ledger
        self._admit, self._extend, self._settle = ledger.admit, ledger.extend, ledger.settle
        ledger.admit, ledger.extend, ledger.settle = self.admit, self.extend, self.settle

    def admit(self, admission: Admission) -> Any:
        fixed, rates = admission.amounts[::2], admission.amounts[1::2]
        assert len(fixed) == len(rates) == len(admission.refs.refs)
        assert all(type(amount) is int and 0 <= amount < 2**53 for amount in admission.amounts), admission.amounts
        assert all(rate * admission.want < 2**53 for rate in rates), admission
        assert min(1, admission.want) <= admission.need <= admission.aim <= admission.want, admission  # embeddings want no output
        self.granted += 1
        return self._admit(admission)

    def extend(self, extension: Extension) -> Any:
        assert 1 <= extension.need <= extension.want < 2**53 and extension.seen >= 0, extension
        return self._extend(extension)

    def settle(self, settlement: Settlement) -> Any:
        assert all(type(amount) is int and 0 <= amount < 2**53 for amount in settlement.actual), settlement.actual
        return self._settle(settlement)

    async def settled(self, secret: str) -> None:
        """What is left of the requests that were sent with a key, once nothing is in flight any more."""
        bench = self.bench
        await bench.quiet()
        total = bench.mock.truth.stats().total
        prompt, completion = self._produced[secret]
        prompt, completion = prompt + total.prompt_tokens - self._before[0], completion + total.completion_tokens - self._before[1]
        self._produced[secret], self._before = (prompt, completion), (total.prompt_tokens, total.completion_tokens)
        counters, holds = await bench.ledger.show()
        assert [hold for hold in holds if hold.state not in MARKERS] == []
        for shown in counters:
            assert shown.held == 0 and shown.used >= (self._used[shown.key] if shown.kind == "w" else 0), shown
            self._used[shown.key] = shown.used
        key = bench.keys[secret]
        for counter, ref in zip(key.counters, bench._refs(key), strict=True):
            if ref.kind == "w" and counter.unit in PER_TOKEN:
                each = PER_TOKEN[counter.unit]
                truth = prompt * each[0] + completion * each[1]
                assert truth <= self._used[ref.key] <= counter.ceiling, (secret, counter.unit, truth, self._used[ref.key], counter.ceiling)


# -- answers ------------------------------------------------------------------------------------------------------------------------------

TYPES = {"invalid_request_error", "budget_error", "rate_limit_error"}
STATUSES = {200, 400, 401, 402, 404, 405, 413, 429, 431}
_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [ -~]*\r\n(?:[a-z0-9-]+: [ -~]*\r\n)*\r\n")


def answers(data: bytes, bodiless: int = -1) -> list[Reply]:
    """All that came over one connection, as answers that a client can read: framed as they say. bodiless: which is that to a HEAD."""
    found: list[Reply] = []
    while data:
        head = _HEAD.match(data)
        assert head is not None, data[:300]
        if head[1] == b"100":
            data = data[head.end() :]
            continue
        length = re.search(rb"\r\ncontent-length: (\d+)\r\n", head[0])
        end = head.end() + (int(length[1]) if length else 0)
        if len(found) == bodiless:
            end = head.end()
        elif length is None and b"\r\ntransfer-encoding: chunked\r\n" in head[0]:
            end = data.index(b"\r\n0\r\n\r\n", head.end() - 2) + 7
        elif length is None:
            end = len(data)  # to an HTTP/1.0 client, until the close
        assert end <= len(data), data[-300:]
        found.append(Reply(data[:end]))
        data = data[end:]
    return found


def good(reply: Reply) -> Reply:
    """It is an answer, or an error in OpenAI's shape; never a 500."""
    assert reply.status in STATUSES, (reply.status, reply.body[:500])
    if reply.status == 200:
        if reply.headers["content-type"].startswith("text/event-stream"):
            assert reply.done and reply.events, reply.body[-300:]
    elif reply.body:
        error = reply.error
        assert error["type"] in TYPES and error["message"] and isinstance(error["code"], str) and error["code"], error
        assert error["param"] is None or (isinstance(error["param"], str) and error["param"]), error
    return reply
