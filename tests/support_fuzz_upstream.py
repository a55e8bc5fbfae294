"""What no upstream should answer, in bytes: streams and whole answers, errors of any shape, and what may happen to them on the way: other types and
names, order, cuts, compression, framing, the connection's end. All of it is made with a Random: one seed, one answer. (Hypothesis's own choices
lean towards what is simple, and an answer in which three things are wrong at once is seldom simple.)

Each answer knows what must be charged for it: `usage` exactly, where it is whole and says so; otherwise at least `least` output tokens, which
are in what a reader has got, and something for the input where it was `billed`.
"""

import contextlib
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Literal, NamedTuple

End = Literal["keep", "close", "reset", "hang"]
SECRET = "sk-provider-secret"


class Answer:
    """One answer on the wire, in the pieces in which it is written, and what the upstream does then."""

    def __init__(self, pieces: list[bytes], end: End, least: int = 0, told: Sequence[str] = ()) -> None:
        self.pieces = pieces
        self.end = end
        self.least = least  # output tokens that are charged at least
        self.told = told  # what was done to it
        self.usage: tuple[int, int] | None = None  # what is charged, exactly
        self.billed = False  # input is charged, too

    def __repr__(self) -> str:
        return f"Answer({self.told}, {self.end}, usage={self.usage}, least={self.least}, billed={self.billed},\n  {b''.join(self.pieces)[:2000]!r})"


# -- what is said -------------------------------------------------------------------------------------------------------------------------

WORDS = ("word ", "a", "é", "日本", " ", "\n", "🙂", "x" * 60, "data: [DONE]", '"}]}', "\u2028\u0085", "\\", "\x00")
DONE = "data: [DONE]\n\n"


def event(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def chunk(index: int, delta: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **fields, "choices": [choice(index, delta, finish)]}


def choice(index: int, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def deltas(r: Random) -> dict[str, Any]:
    """A delta with output."""
    text, kind = r.choice(WORDS), r.choice(("content", "content", "content", "reasoning", "reasoning_content", "refusal", "tool"))
    if kind == "tool":
        return {"tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": text}}]}
    return {kind: text}


def usages(r: Random) -> dict[str, Any]:
    """A whole report."""
    read, written = (r.choice((1, r.randint(1, 1000), r.randint(1, 10**6))) for _ in range(2))
    usage: dict[str, Any] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    if r.random() < 0.3:
        usage["prompt_tokens_details"] = {"cached_tokens": r.randint(0, read)}
    if r.random() < 0.3:
        usage["completion_tokens_details"] = {"reasoning_tokens": r.randint(0, written)}
    return usage


def streams(r: Random, choices: int) -> tuple[list[str], dict[str, Any] | None]:
    """Events of a stream that is right, and its usage if it has any: as a chunk of its own, with the last finish, or cumulative."""
    usage, where = r.choice((None, usages(r), usages(r))), r.choice(("own", "own", "finish", "each"))
    told = [chunk(index, {"role": "assistant", "content": ""}) for index in range(choices)]
    told += [chunk(r.randrange(choices), deltas(r)) for _ in range(r.randint(0, 12))]
    if usage is not None and where == "each":
        read = usage["prompt_tokens"]
        told = [
            one | {"usage": {"prompt_tokens": read, "completion_tokens": n, "total_tokens": read + n}}
            for n, one in zip((min(n, usage["completion_tokens"]) for n in range(len(told))), told, strict=True)
        ]
    told += [chunk(index, {}, "stop") for index in range(choices)]
    if usage is not None and where == "own":
        told.append(chunk(0, {}) | {"choices": [], "usage": usage})
    elif usage is not None:
        told[-1]["usage"] = usage
    return [event(one) for one in told] + [DONE], usage


def unaries(r: Random, choices: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A whole answer that is right, and its usage if it has any."""
    usage = r.choice((None, usages(r), usages(r)))
    told = []
    for index in range(choices):
        message = {"role": "assistant", "content": "".join(r.choices(WORDS, k=r.randint(0, 12)))} | r.choice(({}, deltas(r)))
        told.append({"index": index, "message": message, "finish_reason": "stop"})
    return {"id": "c", "object": "chat.completion", "choices": told} | ({"usage": usage} if usage else {}), usage


MESSAGES = ("no", "", "x" * 5000, f"wrong key {SECRET} given", "insufficient_quota", "credit balance too low", "\x00\ud800", None, 5, ["a"], {"b": 1})
ERRORS: tuple[Callable[[Any], Any], ...] = (
    lambda message: {"error": {"message": message, "type": "t", "code": "c", "param": None}},
    lambda message: {"error": {"message": message, "code": 429}},
    lambda message: {"error": {"message": message, "code": "503", "status": 10**30, "type": 7, "param": {}}},
    lambda message: {"error": message},
    lambda message: [{"error": {"message": message}}],
    lambda message: {"object": "error", "message": message},
    lambda message: {"detail": message},
    lambda message: {"choices": [{"index": 0, "error": {"message": message}, "delta": {"content": "x"}}]},
    lambda message: {"error": {"message": message}, "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
)


def errors(r: Random) -> Any:
    """An error as vendors write them, or nearly."""
    return r.choice(ERRORS)(r.choice(MESSAGES))


# -- what is done to it -------------------------------------------------------------------------------------------------------------------

EXTREMES = (
    *(
        "null",
        "true",
        "false",
        "-1",
        "0",
        "1.0",
        "1.5",
        "-0.0",
        "1e3",
        "1e400",
        "-1e400",
        "NaN",
        "Infinity",
        "9007199254740993",
        "-9223372036854775809",
    ),
    *(
        "18446744073709551616",
        "1" + "0" * 400,
        '"5"',
        '"x"',
        '""',
        "[]",
        "{}",
        "[1]",
        '{"a":1}',
        '"\\ud800"',
        "[[[[[[]]]]]]",
        "1000000000",
        "1000000001",
    ),
)
FIELDS = (
    "usage",
    "choices",
    "delta",
    "message",
    "content",
    "index",
    "finish_reason",
    "error",
    "tool_calls",
    "prompt_tokens",
    "completion_tokens",
    "cost",
)
FIELDS += ("total_tokens", "prompt_tokens_details", "x_groq", "reasoning_details", "audio", "function_call", "id", "object", "model", "created")


def anything(r: Random, depth: int = 3) -> str:
    """Any JSON, and a little that is none."""
    kind = r.choice(("plain", "plain", "plain", "plain", "list", "object")) if depth else "plain"
    if kind == "plain":
        return r.choice(EXTREMES)
    inner = [anything(r, depth - 1) for _ in range(r.randint(0, 3))]
    return "[" + ",".join(inner) + "]" if kind == "list" else "{" + ",".join(f"{json.dumps(r.choice(FIELDS))}:{one}" for one in inner) + "}"


def spoilt(r: Random, value: Any) -> str:
    """The JSON of a value in which one thing is another one, is not there, is there twice, or is new; often something of the usage."""
    places = list(_places(value, ()))
    of_usage = [place for place in places if place[:1] == ("usage",)]
    place = r.choice(of_usage if of_usage and r.random() < 0.5 else places)
    return _written(value, place, r.choice(("other", "other", "other", "gone", "twice", "new")), anything(r), r.choice(FIELDS))


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from _places(inner, (*path, name))


def _written(value: Any, place: tuple[Any, ...] | None, what: str, put: str, named: str) -> str:
    """JSON with the change at a place; None: it is elsewhere."""
    if place == () and what in ("other", "gone"):
        return put
    if isinstance(value, dict):
        fields = []
        for name, inner in value.items():
            below = place[1:] if place and place[0] == name else None
            if below == () and what == "gone":
                continue
            fields.append(f"{json.dumps(name)}:{_written(inner, below, what, put, named)}")
            if below == () and what == "twice":
                fields.append(f"{json.dumps(name)}:{put}")
        if place == () and what == "new":
            fields.append(f"{json.dumps(named)}:{put}")
        return "{" + ",".join(fields) + "}"
    if isinstance(value, list):
        inner_texts = [_written(inner, place[1:] if place and place[0] == i else None, what, put, named) for i, inner in enumerate(value)]
        return "[" + ",".join(inner_texts + ([put] if place == () else [])) + "]"
    return json.dumps(value)


HARMLESS = (
    ": ping\n\n",
    ": ping\n",
    "\n",
    "\n\n",
    "data: null\n\n",
    "data:\n\n",
    "id: 7\n\n",
    "retry: 5\n\n",
    "foo: bar\n\n",
    "event: x\n\n",
    "foo\n\n",
)
HARMFUL = (
    *("data: {bro\n\n", "data: [\n\n", "data: 5\n\n", 'data: "x"\n\n', "data: []\n\n", "data: {}\n\n", "{}\n\n", 'error: {"message": "m"}\n\n', DONE),
    *("event: error\ndata: {}\n\n", "event: error\n", "\x00", "data: \ud800\n\n", "data: {", "data: " + "x" * 70_000 + "\n\n"),
    "data: " + "[" * 3000 + "\n\n",
    event({"choices": [{"index": 10**30, "delta": {"content": "x"}}]}),
    event({"choices": [{"index": -1, "delta": {"content": "x"}, "finish_reason": "x" * 3000}]}),
    event({"choices": [{"index": i, "delta": {"content": "x"}} for i in range(300)]}),
)  # fmt: skip


def damaged(r: Random, events: list[str], told: list[str]) -> list[str]:
    """Events in another order, once more, left out, changed, with others between them."""
    events = list(events)
    for _ in range(r.randint(1, 3)):
        of_usage = [i for i, one in enumerate(events) if '"usage"' in one]
        at = r.choice(of_usage) if of_usage and r.random() < 0.3 else r.randrange(len(events))
        what = r.choice(("drop", "again", "swap", "insert", "insert", "change", "change", "change", "change", "error"))
        told.append(f"{what} at {at}")
        match what:
            case "drop" if len(events) > 1:
                del events[at]
            case "again":
                events.insert(r.randint(0, len(events)), events[at])
            case "swap":
                other = r.randrange(len(events))
                events[at], events[other] = events[other], events[at]
            case "insert":
                events.insert(at, r.choice(HARMFUL))
            case "error":
                events.insert(at, event(errors(r)))
            case _ if events[at].startswith("data: {") and (value := _value(events[at])) is not None:
                events[at] = f"data: {spoilt(r, value)}\n\n"
    return events


def _value(text: str) -> Any:
    try:
        return json.loads(text[6:])
    except ValueError:
        return None


# -- on the wire --------------------------------------------------------------------------------------------------------------------------

KINDS = (*(b"text/event-stream",) * 3, b"text/event-stream; charset=utf-8", b"application/json", b"text/html", b"", b"TEXT/EVENT-STREAM")
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"


CODINGS = (b"gzip", b"gzip", b"x-gzip", b"deflate", b"raw")


def encoded(r: Random, body: bytes, corrupt: bool) -> tuple[bytes, bytes]:
    """A body, perhaps compressed, and the header that says so."""
    coding = r.choice(CODINGS[:-1]) if corrupt else b"" if r.random() < 0.6 else r.choice(CODINGS)
    if not coding:
        return body, b""
    compressor = zlib.compressobj(r.randint(0, 9), wbits={b"deflate": 15, b"raw": -15}.get(coding, 31))
    flushed = [compressor.compress(piece) + compressor.flush(zlib.Z_SYNC_FLUSH) for piece in cut(r, body)]
    data = b"".join(flushed) + compressor.flush()
    if coding == b"gzip" and r.random() < 0.5:
        data += gzip.compress(b"")
    if corrupt:
        at = r.randint(0, len(data))
        flipped = bytes([data[at] ^ (1 << r.randint(0, 7))]) if at < len(data) else b"x"
        data = data[:at] + r.choice((flipped + data[at + 1 :], b""))
    return data, b"content-encoding: %b\r\n" % coding.replace(b"raw", b"deflate")


def cut(r: Random, data: bytes) -> list[bytes]:
    """The same bytes in some pieces."""
    cuts = sorted(r.randint(0, len(data)) for _ in range(r.randint(0, 6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def _chunks(body: bytes, size: int) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[i : i + size] for i in range(0, len(body), size)))


CHUNKED = b"transfer-encoding: chunked\r\n"
SIZED = b"content-length: %d\r\n"
# By status line and headers (h), body (b) and the body in chunks (c).
FRAMINGS: dict[str, Callable[[bytes, bytes, bytes], bytes]] = {
    "chunked": lambda h, b, c: h + CHUNKED + b"\r\n" + c + b"0\r\n\r\n",
    "length": lambda h, b, c: h + SIZED % len(b) + b"\r\n" + b,
    "close": lambda h, b, c: h + b"\r\n" + b,
    "longer": lambda h, b, c: h + SIZED % (len(b) + 9) + b"\r\n" + b,
    "shorter": lambda h, b, c: h + SIZED % (len(b) // 2) + b"\r\n" + b,
    "no last chunk": lambda h, b, c: h + CHUNKED + b"\r\n" + c,
    "bad size": lambda h, b, c: h + CHUNKED + b"\r\n" + c + b"zz\r\n",
    "huge size": lambda h, b, c: h + CHUNKED + b"\r\n" + c + b"f" * 19 + b"\r\nx",
    "no line end": lambda h, b, c: h + CHUNKED + b"\r\n" + c.replace(b"\r\n", b"", 2) + b"0\r\n\r\n",
    "both": lambda h, b, c: h + CHUNKED + SIZED % len(b) + b"\r\n" + b,
    "two lengths": lambda h, b, c: h + SIZED % len(b) + SIZED % (len(b) + 1) + b"\r\n" + b,
    "bad length": lambda h, b, c: h + b"content-length: -5\r\n\r\n" + b,
    "behind": lambda h, b, c: h + SIZED % len(b) + b"\r\n" + b + b"HTTP/1.1 200 OK\r\n\r\nx",
    "trailers": lambda h, b, c: h + CHUNKED + b"\r\n" + c + b"0\r\n" + b"x: y\r\n" * 20_000,
    "flood": lambda h, b, c: INTERIM * 40 + h + SIZED % len(b) + b"\r\n" + b,
    "headers": lambda h, b, c: h + b"x: y\r\n" * 300 + SIZED % len(b) + b"\r\n" + b,
    "a long header": lambda h, b, c: h + b"x: " + b"y" * 100_000 + b"\r\n" + SIZED % len(b) + b"\r\n" + b,
    "1.0": lambda h, b, c: h.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNKED + b"\r\n" + c + b"0\r\n\r\n",
    "status": lambda h, b, c: h.replace(b"HTTP/1.1 200", b"HTTP/1.1 abc") + SIZED % len(b) + b"\r\n" + b,
    "another coding": lambda h, b, c: h + b"transfer-encoding: gzip\r\n\r\n" + b,
    "bare line feeds": lambda h, b, c: (h + SIZED % len(b)).replace(b"\r\n", b"\n") + b"\n" + b,
    "br": lambda h, b, c: h + b"content-encoding: br\r\n" + SIZED % len(b) + b"\r\n" + b,
    "gzip": lambda h, b, c: h + b"content-encoding: gzip\r\n" + SIZED % len(b) + b"\r\n" + b,
}


def readable(data: bytes, coding: bytes) -> bytes:
    """What compressed bytes give up to the first that is wrong."""
    inflate, plain = zlib.decompressobj(15 if b"deflate" in coding else 31), b""
    with contextlib.suppress(zlib.error):
        for byte in data:
            if inflate.eof:
                inflate = zlib.decompressobj(31)
            plain += inflate.decompress(bytes([byte]))
    return plain


RIGHT = (*("chunked",) * 4, *("length",) * 3, "close")
WRONG = tuple(name for name in FRAMINGS if name not in RIGHT)


def outputs(body: bytes) -> int:
    """Deltas with output in the events of a stream, of those that can be read."""
    found = 0
    for line in body.replace(b"\r", b"\n").split(b"\n"):
        with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError, RecursionError):
            for one in json.loads(line.removeprefix(b"data: "))["choices"]:
                found += any(isinstance(one["delta"].get(name), str) and one["delta"][name] for name in ("content", "reasoning", "refusal"))
    return found


class Format(NamedTuple):
    """How a provider says things: right streams and whole answers with their usage, and how many outputs can be read in a stream."""

    streams: Callable[[Random, int], tuple[list[str], dict[str, Any] | None]]
    unaries: Callable[[Random, int], tuple[dict[str, Any], dict[str, Any] | None]]
    outputs: Callable[[bytes], int]


CHAT = Format(streams, unaries, outputs)
DAMAGES = ("none", "none", "said", "said", "said", "cut", "frame", "frame", "wire", "wire", "error", "corrupt")


def answers(r: Random, stream: bool, choices: int, format: Format = CHAT) -> Answer:
    """Any answer at all to a request for a stream or a whole answer, more often nearly right than not."""
    damage = r.choice(DAMAGES)
    told = [damage]
    if damage == "error":
        return _failing(r, told)
    streamed = stream is (r.random() > 0.05)  # now and then the other of the two
    kind = b"text/event-stream" if streamed else b"application/json"
    if damage == "said":
        kind = r.choice((kind, kind, kind, r.choice(KINDS)))
        wrong = "".join(damaged(r, format.streams(r, choices)[0], told)) if streamed else spoilt(r, format.unaries(r, choices)[0])
        return _on_the_wire(r, _encoded(wrong), damage, 200, kind, told)
    if streamed:
        body, usage = _harmless_streams(r, *format.streams(r, choices))
    else:
        answer, usage = format.unaries(r, choices)
        body = json.dumps(answer).encode()
    sent = _on_the_wire(r, body, damage, 200, kind, told, format.outputs)
    sent.billed = True
    if usage is not None and (streamed or not stream):
        sent.least = min(sent.least, usage["completion_tokens"])
    if usage is not None and damage == "none" and (stream or not streamed):
        sent.usage = usage["prompt_tokens"], usage["completion_tokens"]
    return sent


def _harmless_streams(r: Random, events: list[str], usage: dict[str, Any] | None) -> tuple[bytes, dict[str, Any] | None]:
    """A stream with what streams may have beside their events, in lines that end in one of several ways."""
    for _ in range(r.choice((0, 0, 1, 3))):
        events.insert(r.randint(0, len(events)), r.choice(HARMLESS))
    body = _encoded("".join(events))
    return r.choice((body, body, b"\xef\xbb\xbf" + body, body.replace(b"\n", b"\r\n"))), usage


def _failing(r: Random, told: list[str]) -> Answer:
    """An error status, or a 200 that means one."""
    status = r.choice((200, 400, 401, 404, 407, 408, 429, 500, 502, 503, 504, 529, r.randint(200, 599)))
    plain = r.choice((b"", b"null", b"<html>no</html>", b"\xff\xfe", b"{", b"[" * 5000))
    body = r.choice((plain, _encoded(json.dumps(errors(r))), _encoded(json.dumps(errors(r))), _encoded(anything(r))))
    return _on_the_wire(r, body, "error", status, r.choice(KINDS), told)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _on_the_wire(r: Random, body: bytes, damage: str, status: int, kind: bytes, told: list[str], count: Callable[[bytes], int] = outputs) -> Answer:
    if damage == "cut":
        body = body[: r.randint(0, len(body))]
    data, coding = encoded(r, body, damage == "corrupt")
    how = r.choice(WRONG if damage == "frame" else RIGHT)
    told += [how, coding.decode()]
    head = b"HTTP/1.1 %d X\r\n" % status + coding + b"content-type: %b\r\n" % kind
    wire = INTERIM * r.choice((0, 0, 0, 1, 5))
    wire += FRAMINGS[how](head, data, _chunks(data, r.choice((1, 7, 100, 100_000))))
    end: End = "close" if how == "close" else r.choice(("keep", "keep", "close"))
    if damage == "wire":
        wire = wire[: r.randrange(len(wire))]
    if damage in ("wire", "frame") and how != "behind":
        end = r.choice((*("close",) * 6, *("reset",) * 3, "hang"))
    least = 0
    if kind == b"text/event-stream" and end != "reset" and (damage in ("none", "cut", "corrupt") or (damage == "wire" and not coding)):
        least = count(wire if damage == "wire" else readable(data, coding) if damage == "corrupt" else body)
    pieces = [wire[i : i + 1] for i in range(len(wire))] if len(wire) < 1500 and r.random() < 0.1 else cut(r, wire)
    return Answer(pieces, end, least, told)
