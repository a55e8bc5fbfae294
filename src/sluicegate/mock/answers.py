"""What one call is answered, as steps: bytes to write with the tokens that they produce, and the token position at which they are due.

Pure: a call, options and a caller go in, the same steps come out whenever they are the same. The server knows the time and the socket, a dialect's
module how things are written.

One choice is generated as segments: what the model thinks, what it says, the tools that it calls. The name of a tool is one token, every
four characters of its arguments are another.
"""

import hashlib
import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from sluicegate.mock.calls import OUTPUT_MAX, Call
from sluicegate.mock.options import MockOptions
from sluicegate.mock.text import prompt_tokens, words

CREATED = 1_760_000_000
TOKEN_CHARS = 4  # of a call's arguments
_NORMAL = NormalDist()
_json = msgspec.json.Encoder().encode
Kind = Literal["reasoning", "text", "call"]
Ending = Literal["", "done", "cut", "stall"]


class Writer(Protocol):
    """Writes the events of one streamed answer."""

    def lead(self) -> bytes:
        """What comes before the first output."""
        ...

    def chunk(self, index: int, piece: "Piece") -> bytes:
        """Output of one choice; b"" where it cannot be seen, or not yet."""
        ...

    def finish(self, index: int) -> bytes:
        """A choice is complete."""
        ...

    def tail(self) -> bytes:
        """What comes after the last choice."""
        ...


class Dialect(Protocol):
    """A wire format: a module that reads its calls and writes its answers."""

    @property
    def PATH(self) -> str: ...
    @property
    def KEY_HEADER(self) -> str:
        """The header that carries the credential."""
        ...

    @property
    def STREAM_TYPE(self) -> str: ...
    def read_call(self, body: bytes) -> Call:
        """Raises BadCall."""
        ...

    def unary(self, answer: "Answer") -> bytes: ...
    def Writer(self, answer: "Answer") -> Writer: ...
    def error(self, status: int, message: str, code: str | int, param: str | None = None) -> dict[str, Any]:
        """The body of an error. param: the field that is wrong, for those that have a place for it."""
        ...

    def error_in_200(self, options: MockOptions, stream: bool) -> bytes:
        """An error where an answer, or an event of it, is expected."""
        ...


# -- how much -----------------------------------------------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """The tokens [start, end) of a choice. call: which one, of those that call a tool."""

    kind: Kind
    start: int
    end: int
    call: int = -1


class Called(NamedTuple):
    """A call of a tool. whole: the cap has left all of it."""

    number: int
    name: str
    arguments: str  # as much as was generated
    whole: bool


class Output(NamedTuple):
    """One choice: what it consists of, its tokens in all, and how it ends."""

    segments: tuple[Segment, ...]
    tokens: int
    finish: str
    calls: tuple[Called, ...] = ()

    @property
    def reasoning(self) -> int:
        """How many of the tokens are reasoning; they come first."""
        return sum(segment.end - segment.start for segment in self.segments if segment.kind == "reasoning")


class Piece(NamedTuple):
    """Tokens of one segment. begins, ends: they are the first, the last of it."""

    kind: Kind
    first: int  # token of the choice
    tokens: int
    at: int  # token of the segment
    ends: bool
    call: int

    @property
    def begins(self) -> bool:
        return self.at == 0


class Figures(NamedTuple):
    """Usage as it is reported. completion None: reported as null."""

    prompt: int
    completion: int | None
    cached: int
    cache_written: int
    cache_written_1h: int
    reasoning: int | None


class Answer(msgspec.Struct):
    """Everything about one answer but the time."""

    dialect: Dialect
    call: Call
    options: MockOptions
    number: int
    prompt_tokens: int
    outputs: list[Output]

    @property
    def tokens(self) -> int:
        """Output over all choices."""
        return sum(output.tokens for output in self.outputs)

    def tokens_until(self, position: int) -> int:
        """Output over all choices once each is at most at this token."""
        return sum(min(output.tokens, position) for output in self.outputs)

    @property
    def longest(self) -> int:
        """Tokens of the longest choice: choices are generated in parallel."""
        return max((output.tokens for output in self.outputs), default=0)

    @property
    def shows_reasoning(self) -> bool:
        return self.options.reasoning in ("visible", "both")

    def text(self, index: int, piece: Piece) -> str:
        """What the tokens say: words, or a part of a call's arguments."""
        if piece.call < 0:
            return words(piece.first, piece.tokens, self.options.word, self.options.dense)
        begin, end = max(piece.at - 1, 0), piece.at + piece.tokens - 1
        return self.outputs[index].calls[piece.call].arguments[begin * TOKEN_CHARS : end * TOKEN_CHARS]

    def whole(self, index: int, kind: Kind) -> str:
        """All that a choice thinks or says."""
        return "".join([self.text(index, piece) for piece in pieces(self.outputs[index], 0, OUTPUT_MAX) if piece.kind == kind])

    def call_id(self, index: int, call: int, prefix: str) -> str:
        return f"{prefix}_mock_{self.number}_{index}_{call}"

    def figures(self, position: int) -> Figures | None:
        """Usage as it is reported once each choice has come to this token. None: reported as null."""
        options, prompt, completion = self.options, self.prompt_tokens, self.tokens_until(position)
        if options.usage == "null":
            return None
        reasoning = None
        if options.reasoning != "none":
            reasoning = sum(min(output.reasoning, position) for output in self.outputs)
        zero = options.usage == "zero"
        return Figures(
            0 if zero or options.usage == "zero_input" else prompt,
            None if options.usage == "partial" else 0 if zero else completion,
            options.cached_tokens,
            options.cache_written_tokens,
            options.cache_written_1h_tokens,
            reasoning,
        )


def plan(dialect: Dialect, call: Call, options: MockOptions, caller: str, number: int) -> Answer:
    """Draws the lengths. The same seed, caller and request id (or messages) give the same ones."""
    prompt = options.prompt_tokens
    if prompt is None:
        prompt = prompt_tokens(call.texts, call.messages, options.tokenizer) + call.token_ids
    identity = options.request_id.encode() or call.identity
    calls = _calls(call, options)
    outputs = [_output(call, options, caller, identity, choice, calls) for choice in range(call.choices)]
    return Answer(dialect, call, options, number, prompt, outputs)


def _output(call: Call, options: MockOptions, caller: str, identity: bytes, choice: int, calls: list[tuple[str, str]]) -> Output:
    wanted = options.completion_tokens
    if wanted is None and calls:
        wanted = options.reasoning_tokens or 0  # models that call a tool mostly say nothing
    elif wanted is None:
        digest = hashlib.blake2b(b"%d\0%d\0%b\0%b" % (options.seed, choice, caller.encode(), identity), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") + 0.5) / 2**64
        wanted = min(OUTPUT_MAX, max(1, round(options.median_tokens * math.exp(options.sigma * _NORMAL.inv_cdf(min(uniform, 1 - 1e-12))))))
    reasoning = 0
    if options.reasoning != "none":
        reasoning = min(wanted, wanted // 2 if options.reasoning_tokens is None else options.reasoning_tokens)
    lengths: list[tuple[Kind, int]] = [("reasoning", reasoning), ("text", wanted - reasoning)]
    lengths += [("call", 1 + -(-len(arguments) // TOKEN_CHARS)) for _, arguments in calls]
    tokens = min(sum(length for _, length in lengths), call.cap)
    segments, called, start = [], [], 0
    for place, (kind, length) in enumerate(lengths):
        end = min(start + length, tokens)
        if start < end:
            segments.append(Segment(kind, start, end, place - 2 if kind == "call" else -1))
            if kind == "call":
                name, arguments = calls[place - 2]
                called.append(Called(place - 2, name, arguments[: (end - start - 1) * TOKEN_CHARS], end == start + length))
        start += length
    finish = "length" if tokens < start else "tool_calls" if calls else "stop"
    return Output(tuple(segments), tokens, options.finish or finish, tuple(called))


def _calls(call: Call, options: MockOptions) -> list[tuple[str, str]]:
    """The tools that this answer calls, with the JSON text of their arguments."""
    if not call.may_call or not options.tools:
        return []
    if options.tools == "first":
        return [(tool.name, _json(_example(tool.schema)).decode()) for tool in call.tools[:1]]
    return [(told.name, told.arguments if isinstance(told.arguments, str) else _json(told.arguments).decode()) for told in options.tools]


_EXAMPLES: dict[str, Any] = {"string": "water", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


def _example(schema: bytes) -> dict[str, Any]:
    """Arguments that a schema allows, if it is a plain one."""
    properties = msgspec.json.decode(schema).get("properties") or {}
    return {name: (of.get("enum") or [_EXAMPLES.get(of.get("type", "string"))])[0] for name, of in properties.items()}


# -- a streamed answer --------------------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What happens at one moment. due: the token of the longest choice that it waits for. ending "": more follows."""

    due: int
    data: bytes
    tokens: int
    chunks: int
    ending: Ending


def stream(answer: Answer) -> Iterator[Step]:
    """The events of an answer. One step is one chunk of every unfinished choice, its data as the dialect writes it."""
    options, writer = answer.options, answer.dialect.Writer(answer)
    size = options.chunk_tokens or max(answer.longest, 1)
    stop, ending = _stop(options)
    insert, chunks, start, longest = options.insert, 0, 0, answer.longest
    data = writer.lead() + insert.get(0, "").encode()
    while True:
        end = min(start + size, longest)
        tokens = begun = 0
        for index, output in enumerate(answer.outputs):
            for piece in pieces(output, start, end):
                tokens += piece.tokens
                written = writer.chunk(index, piece)
                if not written:
                    continue
                data += written
                begun += 1
                if insert:
                    data += insert.get(chunks + begun, "").encode()
                if chunks + begun == stop:
                    yield Step(end, data, tokens, begun, ending)
                    return
            if start < output.tokens <= end or (start == end == output.tokens):
                data += writer.finish(index)
        if end == longest:
            yield Step(end, data + writer.tail(), tokens, begun, "done")
            return
        if tokens and not begun:
            yield Step(end, b"", tokens, 0, "")  # nothing to be seen yet: what is written before the first chunk waits for it
        else:
            yield Step(end, data, tokens, begun, "")
            data = b""
        chunks += begun
        start = end


def _stop(options: MockOptions) -> tuple[int | None, Ending]:
    if options.cut_after is not None:
        return options.cut_after, "cut"
    return options.stall_after, "stall"


def pieces(output: Output, start: int, end: int) -> list[Piece]:
    """The tokens [start, end) of a choice, one piece for each segment that they touch."""
    found = []
    for kind, begin, until, call in output.segments:
        first, last = max(start, begin), min(end, until)
        if first < last:
            found.append(Piece(kind, first, last - first, first - begin, last == until, call))
    return found
