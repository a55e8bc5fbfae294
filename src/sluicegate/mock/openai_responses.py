"""OpenAI responses, as the mock speaks them. Nothing is stored: an earlier response that is named is not read.

Reasoning that is visible comes as the text of a reasoning item, `both` with a summary of its first token besides; otherwise the item is empty.
"""

from typing import Any

import msgspec

from sluicegate.mock.answers import CREATED, Answer, Piece, pieces
from sluicegate.mock.calls import OUTPUT_MAX, Call, Conversation, Offered, Positive, offered, read
from sluicegate.mock.openai_chunks import KEY_HEADER, STREAM_TYPE, error
from sluicegate.mock.openai_chunks import error_in_200 as plain_error
from sluicegate.mock.options import MockOptions

__all__ = ["KEY_HEADER", "PATH", "STREAM_TYPE", "Writer", "error", "error_in_200", "read_call", "unary"]

PATH = "/v1/responses"
_json = msgspec.json.Encoder().encode


class Part(msgspec.Struct):
    """A part of an item's content."""

    text: str | None = None


class Item(msgspec.Struct):
    """An item of the input, as far as the mock reads it."""

    type: str = "message"
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    output: str | list[Part] = ""
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class Tool(msgspec.Struct):
    """A tool that is offered."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class Body(msgspec.Struct):
    """The body of a call, as far as the mock acts on it."""

    model: str
    input: msgspec.Raw = msgspec.Raw(b'""')
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Positive | None = None
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    tool_choice: str | dict[str, Any] | None = None
    user: str | None = None
    mock: dict[str, Any] | None = None


_decode_body = msgspec.json.Decoder(Body).decode
_decode_input = msgspec.json.Decoder(str | list[Item]).decode
_decode_tools = msgspec.json.Decoder(list[Tool]).decode


def read_call(body: bytes) -> Call:
    """Each call of a function must have its output, and each output its call."""
    asked = read(_decode_body, body)
    given = read(_decode_input, asked.input)
    conversation = Conversation("input")
    if asked.instructions:
        conversation.turn(asked.instructions)
    items = [Item(content=given)] if isinstance(given, str) else given
    messages = bool(asked.instructions) + sum(item.type == "message" for item in items)
    for item in items:
        if item.type == "function_call":
            conversation.call(item.call_id, item.name, item.arguments)
        elif item.type == "function_call_output":
            conversation.result(item.call_id, _text(item.output))
        elif item.type == "reasoning":
            conversation.texts.append(_text(item.summary) + _text(item.content))
        else:
            conversation.turn(_text(item.content))
    conversation.end()
    tools = [
        Offered(tool.name, tool.description or "", bytes(tool.parameters)) for tool in read(_decode_tools, asked.tools) if tool.type == "function"
    ]
    return Call(
        asked.model,
        conversation.texts,
        bytes(asked.input),
        asked,
        bool(asked.stream),
        cap=asked.max_output_tokens or OUTPUT_MAX,
        messages=messages,
        user=asked.user or "",
        overrides=asked.mock,
        tools=offered(tools, conversation),
        may_call=not conversation.answered and asked.tool_choice != "none",
    )


def _text(content: str | list[Part] | None) -> str:
    return "".join([part.text or "" for part in content]) if isinstance(content, list) else content or ""


def error_in_200(options: MockOptions, stream: bool) -> bytes:
    """The error as an event; for a unary call as a response that failed."""
    failure = {"code": options.code or "server_error", "message": options.message or "failed"}
    if stream:
        return b"event: error\ndata: %b\n\n" % _json({"type": "error", **failure, "param": None, "sequence_number": 0})
    body = msgspec.json.decode(plain_error(options, False))
    return _json({"id": "resp_mock", "object": "response", "status": "failed", "output": [], "error": failure | {"param": body["error"]["param"]}})


# -- what it consists of ----------------------------------------------------------------------------------------------------------------------


def _response(answer: Answer, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    """The response object, as of now. It repeats what was asked for as it came."""
    asked: Body = answer.call.body
    return {
        "id": f"resp_mock_{answer.number}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "model": answer.call.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": asked.tool_choice or "auto",
        "tools": asked.tools,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "metadata": {},
        **answer.options.chunk_fields,
    }


def _final(answer: Answer) -> dict[str, Any]:
    """The response at its end."""
    output = answer.outputs[0]
    items = [_item(answer, place, piece) for place, piece in enumerate(pieces(output, 0, output.tokens))]
    whole = output.finish in ("stop", "tool_calls")
    response = _response(answer, "completed" if whole else "incomplete", items)
    if not whole:
        response["incomplete_details"] = {"reason": "max_output_tokens" if output.finish == "length" else output.finish}
    if answer.options.usage == "none":
        del response["usage"]
    else:
        response["usage"] = _usage(answer)
    return response


def _usage(answer: Answer) -> dict[str, Any] | None:
    figures = answer.figures(answer.longest)
    if figures is None:
        return None
    usage: dict[str, Any] = {
        "input_tokens": figures.prompt,
        "input_tokens_details": {"cached_tokens": figures.cached, "cache_write_tokens": figures.cache_written + figures.cache_written_1h},
        "output_tokens": figures.completion,
        "output_tokens_details": {"reasoning_tokens": figures.reasoning or 0},
    }
    if figures.completion is not None:
        usage["total_tokens"] = figures.prompt + figures.completion
    return usage


def _item(answer: Answer, place: int, piece: Piece) -> dict[str, Any]:
    """A whole item."""
    output = answer.outputs[0]
    cut = output.finish == "length" and piece.first + piece.tokens == output.tokens
    status, text = "incomplete" if cut else "completed", answer.text(0, piece)
    item = _begun(answer, place, piece) | {"status": status}
    if piece.kind == "call":
        return item | {"arguments": text}
    if piece.kind == "text":
        return item | {"content": [_text_part(text)]}
    if answer.shows_reasoning:
        summary = [{"type": "summary_text", "text": _summary(answer, piece)}] if answer.options.reasoning == "both" else []
        return item | {"summary": summary, "content": [{"type": "reasoning_text", "text": text}]}
    return item


def _begun(answer: Answer, place: int, piece: Piece) -> dict[str, Any]:
    """An item when it begins."""
    id = f"{answer.number}_{place}"
    if piece.kind == "call":
        name, call_id = answer.outputs[0].calls[piece.call].name, answer.call_id(0, piece.call, "call")
        return {"id": f"fc_mock_{id}", "type": "function_call", "status": "in_progress", "call_id": call_id, "name": name, "arguments": ""}
    if piece.kind == "text":
        return {"id": f"msg_mock_{id}", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
    return {"id": f"rs_mock_{id}", "type": "reasoning", "status": "in_progress", "summary": []}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _summary(answer: Answer, piece: Piece) -> str:
    return answer.text(0, piece._replace(tokens=1))


def unary(answer: Answer) -> bytes:
    """The body of a unary answer."""
    return _json(_final(answer))


# -- streamed ---------------------------------------------------------------------------------------------------------------------------------


class Writer:
    """A stream of typed, numbered events: the response, its items, their parts, their deltas, and each of them whole once more."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._end = answer.options.newline.encode()
        self._number = -1  # of the event
        self._place = 0  # of the item
        self._unseen = b""  # items without visible output: written with what follows

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        data = _json({"type": kind, "sequence_number": self._number, **fields})
        return b"event: %b%bdata: %b%b%b" % (kind.encode(), self._end, data, self._end, self._end)

    def lead(self) -> bytes:
        """The response is created and under way."""
        response = _response(self._answer, "in_progress", [])
        if self._answer.options.pad_bytes:
            response["padding"] = "x" * self._answer.options.pad_bytes
        return self._event("response.created", response=response) + self._event("response.in_progress", response=response)

    def chunk(self, index: int, piece: Piece) -> bytes:
        """A delta, with the begin of its item before it and the end after it."""
        answer, place = self._answer, self._place
        whole = piece._replace(first=piece.first - piece.at, tokens=piece.at + piece.tokens, at=0)
        begun = _begun(answer, place, piece)
        at = {"item_id": begun["id"], "output_index": place}
        if piece.kind == "reasoning" and not answer.shows_reasoning:
            if piece.ends:
                self._unseen = self._event("response.output_item.added", output_index=place, item=begun)
                self._unseen += self._event("response.output_item.done", output_index=place, item=_item(answer, place, whole))
                self._place += 1
            return b""
        data, self._unseen = self._unseen, b""
        if piece.begins:
            data += self._event("response.output_item.added", output_index=place, item=begun)
            if piece.kind != "call":
                part = _text_part("") if piece.kind == "text" else {"type": "reasoning_text", "text": ""}
                data += self._event("response.content_part.added", **at, content_index=0, part=part)
        data += self._delta(piece, at)
        if piece.ends:
            data += self._done(whole, at)
            data += self._event("response.output_item.done", output_index=place, item=_item(answer, place, whole))
            self._place += 1
        return data

    def _delta(self, piece: Piece, at: dict[str, Any]) -> bytes:
        text = self._answer.text(0, piece)
        if piece.kind == "call":
            return self._event("response.function_call_arguments.delta", **at, delta=text)
        if piece.kind == "text":
            return self._event("response.output_text.delta", **at, content_index=0, delta=text, logprobs=[])
        return self._event("response.reasoning_text.delta", **at, content_index=0, delta=text)

    def _done(self, whole: Piece, at: dict[str, Any]) -> bytes:
        text = self._answer.text(0, whole)
        if whole.kind == "call":
            name = self._answer.outputs[0].calls[whole.call].name
            return self._event("response.function_call_arguments.done", **at, name=name, arguments=text)
        if whole.kind == "text":
            data = self._event("response.output_text.done", **at, content_index=0, text=text, logprobs=[])
            return data + self._event("response.content_part.done", **at, content_index=0, part=_text_part(text))
        data = self._event("response.reasoning_text.done", **at, content_index=0, text=text)
        data += self._event("response.content_part.done", **at, content_index=0, part={"type": "reasoning_text", "text": text})
        if self._answer.options.reasoning == "both":
            data += self._summarised(_summary(self._answer, whole), at | {"summary_index": 0})
        return data

    def _summarised(self, text: str, at: dict[str, Any]) -> bytes:
        data = self._event("response.reasoning_summary_part.added", **at, part={"type": "summary_text", "text": ""})
        data += self._event("response.reasoning_summary_text.delta", **at, delta=text)
        data += self._event("response.reasoning_summary_text.done", **at, text=text)
        return data + self._event("response.reasoning_summary_part.done", **at, part={"type": "summary_text", "text": text})

    def finish(self, index: int) -> bytes:
        """What was not seen."""
        data, self._unseen = self._unseen, b""
        return data

    def tail(self) -> bytes:
        """The response as it has become."""
        response = _final(self._answer)
        return self._event(f"response.{response['status']}", response=response) if self._answer.options.done else b""
