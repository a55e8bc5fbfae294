"""What OpenAI's chat and completions have in common: errors, usage, and streams of chunks that repeat their head."""

import http
from typing import Any

import msgspec

from sluicegate.mock.answers import CREATED, Answer, Figures, Piece
from sluicegate.mock.calls import StreamOptions
from sluicegate.mock.options import MockOptions

STREAM_TYPE = "text/event-stream; charset=utf-8"
KEY_HEADER = "authorization"
_json = msgspec.json.Encoder().encode


def error(status: int, message: str, code: str | int, param: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    fallback = "rate_limit_exceeded" if status == 429 else None
    return {"error": {"message": message or phrase(status), "type": kind, "param": param, "code": code or fallback}}


def phrase(status: int) -> str:
    """What HTTP calls a status."""
    return http.HTTPStatus(status).phrase if status in http.HTTPStatus._value2member_map_ else "Unknown"


def error_in_200(options: MockOptions, stream: bool) -> bytes:
    """The error as a body, or as an event and the end."""
    body = _json(error(options.error_in_200, options.message, options.code or options.error_in_200))
    return b"data: " + body + b"\n\n" + (b"data: [DONE]\n\n" if options.done else b"") if stream else body


def wants_usage(options: StreamOptions | None) -> bool:
    return options is not None and bool(options.include_usage)


def usage(figures: Figures | None) -> dict[str, Any] | None:
    """`usage` of chat, completions and embeddings."""
    if figures is None:
        return None
    reported: dict[str, Any] = {"prompt_tokens": figures.prompt, "completion_tokens": figures.completion}
    if figures.completion is None:
        return reported
    reported["total_tokens"] = figures.prompt + figures.completion
    details = {"cached_tokens": figures.cached, "cache_write_tokens": figures.cache_written + figures.cache_written_1h}
    if any(details.values()):
        reported["prompt_tokens_details"] = {name: value for name, value in details.items() if value}
    if figures.reasoning is not None:
        reported["completion_tokens_details"] = {"reasoning_tokens": figures.reasoning}
    return reported


class Chunks:
    """Writes the events of one answer. What does not change between chunks is encoded once."""

    def __init__(self, answer: Answer, id: str, kind: str, outputs: str) -> None:
        self.answer, self.options = answer, answer.options
        self._end = (answer.options.newline * 2).encode()
        fields = {"id": id, "object": kind, "created": CREATED, "model": answer.call.model, **self.options.chunk_fields}
        self._top = b"data: " + _json(fields)[:-1]
        rest = {"logprobs": None, **self.options.choice_fields}
        self._heads = [b'%b,"choices":[{"index":%d,"%b":' % (self._top, index, outputs.encode()) for index in range(len(answer.outputs))]
        self._rest = b"," + _json(rest)[1:-1] + b',"finish_reason":'
        mode = self.options.usage
        self._separate = mode == "unasked" or (answer.call.include_usage and mode in ("normal", "partial", "zero_input", "zero"))
        self._plain = b"null}]" + (b',"usage":null}' if mode == "null" or self._separate else b"}") + self._end

    def silent(self, index: int, output: bytes) -> bytes:
        """A chunk without generated output. output: the JSON of its delta or text."""
        return self._heads[index] + output + self._rest + self._plain

    def padding(self) -> bytes:
        if not self.options.pad_bytes:
            return b""
        return self._top + b',"obfuscation":"%b","choices":[]}' % (b"x" * self.options.pad_bytes) + self._end

    def output(self, index: int, piece: Piece, output: bytes) -> bytes:
        """A chunk with the tokens of that piece."""
        if self.options.usage == "cumulative":
            reported = _json(usage(self.answer.figures(piece.first + piece.tokens)))
            return self._heads[index] + output + self._rest + b'null}],"usage":' + reported + b"}" + self._end
        return self._heads[index] + output + self._rest + self._plain

    def ending(self, index: int, output: bytes) -> bytes:
        """The chunk that says why a choice ended."""
        last = index == len(self._heads) - 1
        data = self._heads[index] + output + self._rest + _json(self.answer.outputs[index].finish) + b"}]"
        if self.options.usage == "cumulative" or (self.options.usage == "with_choices" and last):
            return data + b',"usage":' + _json(usage(self.answer.figures(self.answer.longest))) + b"}" + self._end
        return data + self._plain.removeprefix(b"null}]")

    def tail(self) -> bytes:
        """Usage if it is wanted, and the end."""
        data = b""
        if self._separate:
            data = self._top + b',"choices":[],"usage":' + _json(usage(self.answer.figures(self.answer.longest))) + b"}" + self._end
        return data + (b"data: [DONE]" + self._end if self.options.done else b"")
