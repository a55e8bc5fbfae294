"""What one call is answered, as steps: bytes to write with the tokens that they produce, and the token position at which they are due.

Pure: a request's body, options and a caller go in, the same steps come out whenever they are the same. The server knows the time and the socket.
"""

import hashlib
import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from sluicegate.mock.options import MockOptions
from sluicegate.mock.text import prompt_tokens, words

OUTPUT_MAX = 1_000_000
CREATED = 1_760_000_000
_NORMAL = NormalDist()
_json = msgspec.json.Encoder().encode
Ending = Literal["", "done", "cut", "stall"]


class BadCall(Exception):
    """The request is not a chat call: 400."""


class Part(msgspec.Struct):
    """One part of a message's content."""

    text: str | None = None


class Message(msgspec.Struct):
    """A message, as far as its text goes."""

    content: str | list[Part] | None = None


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


Positive = Annotated[int, msgspec.Meta(ge=1)]


class Call(msgspec.Struct):
    """The body of a chat call, as far as the mock acts on it."""

    model: str
    messages: msgspec.Raw
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    user: str | None = None
    mock: dict[str, Any] | None = None  # overrides
    texts: list[str] = []  # of the messages, filled in by `read_call`

    @property
    def cap(self) -> int:
        """Output tokens per choice. Of two caps the larger counts: a gateway that lowers one and forgets the other must be found out."""
        return max(self.max_tokens or 0, self.max_completion_tokens or 0) or OUTPUT_MAX


_decode_call = msgspec.json.Decoder(Call).decode
_decode_messages = msgspec.json.Decoder(list[Message]).decode


def read_call(body: bytes) -> Call:
    """Raises BadCall with a message that names the field."""
    try:
        call = _decode_call(body)
        messages = _decode_messages(call.messages)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCall(str(error)) from None
    call.texts = [_text(message) for message in messages]
    return call


def _text(message: Message) -> str:
    if isinstance(message.content, list):
        return "".join([part.text or "" for part in message.content])
    return message.content or ""


# -- how much -----------------------------------------------------------------------------------------------------------------------------


class Output(NamedTuple):
    """One choice: its tokens, how many of them are reasoning (they come first), and how it ends."""

    tokens: int
    reasoning: int
    finish: Literal["stop", "length"]


class Answer(msgspec.Struct):
    """Everything about one answer but the time."""

    call: Call
    options: MockOptions
    id: str
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
        return max(output.tokens for output in self.outputs)


def plan(call: Call, options: MockOptions, caller: str, number: int) -> Answer:
    """Draws the lengths. The same seed, caller and request id (or messages) give the same ones."""
    prompt = options.prompt_tokens
    if prompt is None:
        prompt = prompt_tokens(call.texts, options.tokenizer)
    identity = options.request_id.encode() or bytes(call.messages)
    outputs = [_output(call, options, caller, identity, choice) for choice in range(call.n or 1)]
    return Answer(call, options, f"chatcmpl-mock-{number}", prompt, outputs)


def _output(call: Call, options: MockOptions, caller: str, identity: bytes, choice: int) -> Output:
    wanted = options.completion_tokens
    if wanted is None:
        digest = hashlib.blake2b(b"%d\0%d\0%b\0%b" % (options.seed, choice, caller.encode(), identity), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") + 0.5) / 2**64
        wanted = min(OUTPUT_MAX, max(1, round(options.median_tokens * math.exp(options.sigma * _NORMAL.inv_cdf(min(uniform, 1 - 1e-12))))))
    tokens = min(wanted, call.cap)
    reasoning = 0
    if options.reasoning != "none":
        reasoning = min(tokens, wanted // 2 if options.reasoning_tokens is None else options.reasoning_tokens)
    return Output(tokens, reasoning, "length" if tokens < wanted else "stop")


def usage(answer: Answer, position: int) -> dict[str, Any] | None:
    """Usage as it is reported once each choice has come to this token. None: reported as null."""
    options, prompt, completion = answer.options, answer.prompt_tokens, answer.tokens_until(position)
    if options.usage == "null":
        return None
    if options.usage == "partial":
        return {"prompt_tokens": prompt, "completion_tokens": None}
    if options.usage in ("zero_input", "zero"):
        prompt = 0
        completion = 0 if options.usage == "zero" else completion
    figures: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if options.cached_tokens:
        figures["prompt_tokens_details"] = {"cached_tokens": options.cached_tokens}
    if options.reasoning != "none":
        figures["completion_tokens_details"] = {"reasoning_tokens": sum(min(output.reasoning, position) for output in answer.outputs)}
    return figures


# -- a unary answer -----------------------------------------------------------------------------------------------------------------------


def unary(answer: Answer) -> bytes:
    """The body of a unary answer."""
    body: dict[str, Any] = {"id": answer.id, "object": "chat.completion", "created": CREATED, "model": answer.call.model}
    body["choices"] = [_choice(answer.options, index, output) for index, output in enumerate(answer.outputs)]
    if answer.options.usage != "none":
        body["usage"] = usage(answer, answer.longest)
    return _json({**body, **answer.options.chunk_fields})


def _choice(options: MockOptions, index: int, output: Output) -> dict[str, Any]:
    content = words(output.reasoning, output.tokens - output.reasoning, options.word, options.dense)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if options.reasoning in ("visible", "both"):
        thought = words(0, output.reasoning, options.word, options.dense)
        message["reasoning_content"] = thought
        if options.reasoning == "both":
            message["reasoning"] = thought
    return {"index": index, "message": message, "logprobs": None, "finish_reason": output.finish, **options.choice_fields}


# -- a streamed answer --------------------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What happens at one moment. due: the token of the longest choice that it waits for. ending "": more follows."""

    due: int
    data: bytes
    tokens: int
    chunks: int
    ending: Ending


def stream(answer: Answer) -> Iterator[Step]:
    """The events of an answer. One step is one chunk of every unfinished choice, its data as Server-Sent Events."""
    options, writer = answer.options, _Writer(answer)
    size = options.chunk_tokens or max(answer.longest, 1)
    stop, ending = _stop(options)
    insert, chunks, start, longest = options.insert, 0, 0, answer.longest
    data = writer.lead()
    while True:
        end = min(start + size, longest)
        tokens = begun = 0
        for index, output in enumerate(answer.outputs):
            for reasoning, first, count in _pieces(output, start, end):
                tokens += count
                if reasoning and options.reasoning == "hidden":
                    continue
                data += writer.chunk(index, first, count, reasoning)
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


def _pieces(output: Output, start: int, end: int) -> list[tuple[bool, int, int]]:
    """The tokens [start, end) of a choice as (is reasoning, first, count): one piece, or two where reasoning ends between them."""
    end, border = min(end, output.tokens), output.reasoning
    if start >= end:
        return []
    if start >= border:
        return [(False, start, end - start)]
    if end <= border:
        return [(True, start, end - start)]
    return [(True, start, border - start), (False, border, end - border)]


class _Writer:
    """Writes the events of one answer. What does not change between chunks is encoded once."""

    def __init__(self, answer: Answer) -> None:
        self._answer, self._options = answer, answer.options
        self._end = (answer.options.newline * 2).encode()
        fields = {"id": answer.id, "object": "chat.completion.chunk", "created": CREATED, "model": answer.call.model, **self._options.chunk_fields}
        self._top = b"data: " + _json(fields)[:-1]
        rest = {"logprobs": None, **self._options.choice_fields}
        self._heads = [b'%b,"choices":[{"index":%d,"delta":' % (self._top, index) for index in range(len(answer.outputs))]
        self._rest = b"," + _json(rest)[1:-1] + b',"finish_reason":'
        asked = answer.call.stream_options is not None and bool(answer.call.stream_options.include_usage)
        mode = self._options.usage
        self._separate = mode == "unasked" or (asked and mode in ("normal", "partial", "zero_input", "zero"))
        self._plain = b"null}]" + (b',"usage":null}' if mode == "null" or self._separate else b"}") + self._end

    def lead(self) -> bytes:
        """What comes before the first output: the role, per choice."""
        data = b"".join([head + b'{"role":"assistant","content":""}' + self._rest + self._plain for head in self._heads])
        if self._options.pad_bytes:
            data += self._top + b',"padding":"%b","choices":[]}' % (b"x" * self._options.pad_bytes) + self._end
        return data + self._options.insert.get(0, "").encode()

    def chunk(self, index: int, first: int, count: int, reasoning: bool) -> bytes:
        """One delta of `count` tokens."""
        text = _json(words(first, count, self._options.word, self._options.dense))
        if not reasoning:
            delta = b'{"content":' + text + b"}"
        elif self._options.reasoning == "both":
            delta = b'{"reasoning":' + text + b',"reasoning_content":' + text + b"}"
        else:
            delta = b'{"reasoning_content":' + text + b"}"
        if self._options.usage == "cumulative":
            return self._heads[index] + delta + self._rest + b'null}],"usage":' + _json(usage(self._answer, first + count)) + b"}" + self._end
        return self._heads[index] + delta + self._rest + self._plain

    def finish(self, index: int) -> bytes:
        """The chunk that says why a choice ended."""
        output, last = self._answer.outputs[index], index == len(self._answer.outputs) - 1
        data = self._heads[index] + b"{}" + self._rest + b'"' + output.finish.encode() + b'"}]'
        if self._options.usage == "cumulative" or (self._options.usage == "with_choices" and last):
            return data + b',"usage":' + _json(usage(self._answer, self._answer.longest)) + b"}" + self._end
        return data + self._plain.removeprefix(b"null}]")

    def tail(self) -> bytes:
        """What comes after the last choice."""
        data = b""
        if self._separate:
            data = self._top + b',"choices":[],"usage":' + _json(usage(self._answer, self._answer.longest)) + b"}" + self._end
        return data + (b"data: [DONE]" + self._end if self._options.done else b"")
