"""An answer of a provider that speaks another dialect, as a Responses client reads it: whole, or piece by piece.

One item per message, per call, per stretch of thinking. Ids are made of the answer's own. What was thought is a summary, which all clients show;
`encrypted_content` has its signature behind a mark of ours, also where there is none, and brings it back in the next request
(openai_responses_prompt). What the response repeats of its request is as it came. Nothing is stored, so `store` is false.
"""

from typing import Any

from msgspec import Raw

from sluicegate.core.usage import Usage
from sluicegate.dialects.content import (
    Begin,
    Choice,
    Piece,
    RedactedBlock,
    RedactedThinking,
    Refusal,
    RefusalDelta,
    Reply,
    SignatureDelta,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolBegin,
    ToolDelta,
    ToolUse,
)
from sluicegate.dialects.form import Request
from sluicegate.dialects.openai_responses_output import (
    ARGUMENTS,
    REFUSAL,
    SUMMARY,
    TEXT,
    Events,
    Head,
    Item,
    Kind,
    Output,
    Status,
    Step,
    encoded,
    ended,
)
from sluicegate.dialects.openai_responses_prompt import REDACTED, THINKING

_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
_NULL = b"null"


def write_reply(reply: Reply, request: Request) -> bytes:
    """A whole answer."""
    choice = reply.choices[0] if reply.choices else Choice(0, [], "stop")
    names = _Names(reply.id)
    items = _items(choice, names)
    output = Output([])
    for index, fields in enumerate(items):
        last = index == len(items) - 1 and choice.finish not in ("stop", "tool_calls")
        output.take(Step("done", index, value=fields | {"status": "incomplete" if last else "completed"}))
    response = _begun(request, names.response, reply.created, reply.model)
    return encoded(ended(response, output, choice.finish, reply.usage or Usage()))


def _items(choice: Choice, names: "_Names") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for part in choice.parts:
        index = len(items)
        if isinstance(part, Text | Refusal):
            if not items or items[-1]["type"] != "message":
                items.append(names.message(index))
            kind = TEXT if isinstance(part, Text) else REFUSAL
            more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind is TEXT else {}
            items[-1]["content"].append({"type": kind.part, kind.field: part.text, **more})
        elif isinstance(part, Thinking):
            items.append(names.reasoning(index, THINKING + part.signature))
            items[-1]["summary"] = [{"type": SUMMARY.part, SUMMARY.field: part.text}] if part.text else []
        elif isinstance(part, RedactedThinking):
            items.append(names.reasoning(index, REDACTED + part.data))
        elif isinstance(part, ToolUse):
            items.append(names.call(index, part.id, part.name) | {"arguments": part.arguments or "{}"})
    return items


class _Names:
    """New items, whose ids are made of the answer's."""

    def __init__(self, id: str) -> None:
        plain = "".join([c for c in id if (c.isascii() and c.isalnum()) or c in "_-"])
        for prefix in ("chatcmpl-", "resp_", "msg_", "req_"):
            plain = plain.removeprefix(prefix)
        self._plain = plain
        self.response = f"resp_{plain}"

    def message(self, index: int) -> dict[str, Any]:
        return {"id": f"msg_{self._plain}_{index}", "type": "message", "status": "in_progress", "role": "assistant", "content": []}

    def reasoning(self, index: int, proof: str) -> dict[str, Any]:
        return {"id": f"rs_{self._plain}_{index}", "type": "reasoning", "status": "in_progress", "summary": [], "encrypted_content": proof}

    def call(self, index: int, call_id: str, name: str) -> dict[str, Any]:
        fields = {"id": f"fc_{self._plain}_{index}", "type": "function_call", "status": "in_progress", "call_id": call_id}
        return fields | {"name": name, "arguments": ""}


def _begun(request: Request, id: str, created: int, model: str) -> dict[str, Any]:
    """The response as it begins."""
    repeated: dict[str, Raw] = {name: raw for name, raw in request.fields.items() if name in _REPEATED and bytes(raw) != _NULL}
    head = {"id": id, "object": "response", "created_at": created, "status": "in_progress", "background": False, "error": None, "model": model}
    return head | {"incomplete_details": None, "output": [], "store": False, "usage": None} | _REPEATED | repeated


class Writer:
    """Writes a streamed answer. A message and thinking end where something else begins, calls, which may interleave, at the finish."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._events = Events()
        self._output = Output([])
        self._names = _Names("")
        self._open: Item | None = None  # the message or the thinking that goes on
        self._signature = ""  # of that thinking
        self._calls: dict[int, Item] = {}
        self._out: list[bytes] = []
        self.head = Head({}, [])

    @property
    def after(self) -> tuple[int, int] | None:
        """How many steps were told, and the number of the next event; None: nothing was."""
        return (len(self.head.steps), self._events.sequence) if self._events.sequence else None

    def write(self, pieces: list[Piece]) -> bytes:
        """The events that tell these pieces."""
        for piece in pieces:
            self._write(piece)
        return self._taken()

    def last(self, usage: Usage | None) -> bytes:
        """The end of the response."""
        if not self._output.finish:
            self._finish("stop")
        response = ended(self.head.response, self._output, self._output.finish, usage or Usage())
        self._out.append(self._events.event(f"response.{response['status']}", {"response": response}))
        return self._taken()

    def _taken(self) -> bytes:
        written = b"".join(self._out)
        self._out.clear()
        return written

    def _write(self, piece: Piece) -> None:
        if isinstance(piece, Begin):
            self._begin(piece)
        elif piece.choice or self._output.finish:  # a response is one answer, and it has one end
            return
        elif isinstance(piece, TextDelta):
            self._text(self._message(), TEXT, piece.text)
        elif isinstance(piece, RefusalDelta):
            self._text(self._message(), REFUSAL, piece.text)
        elif isinstance(piece, ThinkingDelta):
            self._text(self._thinking(goes_on=not self._signature), SUMMARY, piece.text)
        elif isinstance(piece, SignatureDelta):
            self._thinking(goes_on=True)
            self._signature += piece.signature
        elif isinstance(piece, RedactedBlock):
            self._close()
            self._end(self._add(self._names.reasoning(len(self._output.items), REDACTED + piece.data)), "completed")
        elif isinstance(piece, ToolBegin):
            self._close()
            self._calls[piece.call] = self._add(self._names.call(len(self._output.items), piece.id, piece.name))
        elif isinstance(piece, ToolDelta):
            self._text(self._calls[piece.call], ARGUMENTS, piece.arguments)
        else:
            self._finish(piece.reason)

    def _begin(self, piece: Begin) -> None:
        self._names = _Names(piece.id)
        response = self.head.response = _begun(self._request, self._names.response, piece.created, piece.model)
        self._out += [self._events.event(f"response.{name}", {"response": response}) for name in ("created", "in_progress")]

    def _finish(self, reason: str) -> None:
        status: Status = "completed" if reason in ("stop", "tool_calls") else "incomplete"
        self._close(status)
        for call in self._calls.values():
            if status == "completed" and not any(part.texts for part in call.parts):
                self._text(call, ARGUMENTS, "{}")
            self._end(call, status)
        self._step(Step("finish", value=reason))

    # -- items ----------------------------------------------------------------------------------------------------------------------------

    def _message(self) -> Item:
        return self._going_on("message") or self._opened(self._names.message(len(self._output.items)))

    def _thinking(self, *, goes_on: bool) -> Item:
        item = self._going_on("reasoning") if goes_on else None
        return item or self._opened(self._names.reasoning(len(self._output.items), THINKING))

    def _going_on(self, type_: str) -> Item | None:
        return self._open if self._open is not None and self._open.fields["type"] == type_ else None

    def _opened(self, fields: dict[str, Any]) -> Item:
        self._close()
        self._open = self._add(fields)
        return self._open

    def _close(self, status: Status = "completed") -> None:
        """Ends the message or the thinking that goes on."""
        item, self._open = self._open, None
        if item is not None:
            if item.fields["type"] == "reasoning":
                item.fields["encrypted_content"] += self._signature
                self._signature = ""
            self._end(item, status)

    def _add(self, fields: dict[str, Any]) -> Item:
        index = len(self._output.items)
        self._step(Step("added", index, value=fields))
        self._out.append(self._events.added(self._output.items[index]))
        return self._output.items[index]

    def _text(self, item: Item, kind: Kind, text: str) -> None:
        begins = not item.parts or item.parts[-1].kind is not kind
        index = len(item.parts) if begins else item.parts[-1].index
        part = item.part(kind, index)
        if begins:
            self._step(Step("part", item.index, kind, index))
            self._out.append(self._events.part_added(item, part))
        self._step(Step("text", item.index, kind, index, text))
        self._out.append(self._events.text(item, part, text))

    def _end(self, item: Item, status: Status) -> None:
        whole = item.whole(status)
        self._out.append(self._events.end(item, whole))
        self._step(Step("done", item.index, value=whole))

    def _step(self, step: Step) -> None:
        self.head.steps.append(step)
        self._output.take(step)
