"""What a provider that speaks OpenAI chat answers, whole or streamed, for a client that speaks another dialect.

Nothing here raises, whatever is in it: openai_body has read the same bytes for the bill, here they are read once more for what they say. Calls are
told apart as vendors stream them: by index (OpenAI), by id where the index is missing or always 0 (Gemini, Ollama), by another name, or by a whole
object that follows a whole object. A call begins when its id and its name are known; one that never gets an id is given one.
"""

import json
from typing import Any

import msgspec
from msgspec import Raw, Struct

from sluicegate.dialects.content import (
    Begin,
    Choice,
    Finish,
    Part,
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
from sluicegate.dialects.form import Event
from sluicegate.dialects.openai_body import int_or, loosely, strings, text_of
from sluicegate.dialects.sse import Reader

_CREATED_MAX = 2**53
_NOTHING = Raw()


class _Delta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    reasoning_details: Raw = _NOTHING
    tool_calls: Raw = _NOTHING
    function_call: Raw = _NOTHING


class _Choice(Struct, gc=False):
    delta: _Delta
    index: int = 0
    finish_reason: str | None = None


class _Chunk(Struct, gc=False):
    """The usual chunk, which says a text: only here is speed of interest."""

    choices: list[_Choice]


_decode = msgspec.json.Decoder().decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def read_reply(body: bytes) -> Reply:
    """A whole answer that has choices."""
    answer = _object(body)
    reply = Reply(text_of(answer.get("id")), text_of(answer.get("model")), _created(answer), [])
    choices = answer.get("choices")
    for place, choice in enumerate(choices if isinstance(choices, list) else ()):
        if isinstance(choice, dict):
            reply.choices.append(_choice(choice, place, reply.id))
    return reply


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = _decode(data)
    except (ValueError, RecursionError):
        value = loosely(data)
    return value if isinstance(value, dict) else {}


def _created(answer: dict[str, Any]) -> int:
    created = int_or(answer.get("created"), 0)
    return created if 0 <= created <= _CREATED_MAX else 0


def _choice(choice: dict[str, Any], place: int, answer_id: str) -> Choice:
    message = choice.get("message") or choice.get("delta")
    pieces = _Output(place).of(message, answer_id, whole=True) if isinstance(message, dict) else []
    parts = _put_together(pieces)
    reason = _finish(choice, any(isinstance(part, ToolUse) for part in parts))
    return Choice(_index(choice, place), parts, reason, _stop_sequence(choice))


def _put_together(pieces: list[Piece]) -> list[Part]:
    """The pieces of a whole message as its parts."""
    parts: list[Part] = []
    calls: dict[int, ToolUse] = {}
    for piece in pieces:
        last = parts[-1] if parts else None
        if isinstance(piece, TextDelta):
            parts.append(Text(piece.text))
        elif isinstance(piece, ThinkingDelta):
            parts.append(Thinking(piece.text))
        elif isinstance(piece, SignatureDelta):
            if not isinstance(last, Thinking) or last.signature:
                parts.append(last := Thinking(""))
            last.signature = piece.signature
        elif isinstance(piece, RedactedBlock):
            parts.append(RedactedThinking(piece.data))
        elif isinstance(piece, RefusalDelta):
            parts.append(Refusal(piece.text))
        elif isinstance(piece, ToolBegin):
            calls[piece.call] = ToolUse(piece.id, piece.name, "{}")
            parts.append(calls[piece.call])
        elif isinstance(piece, ToolDelta):
            calls[piece.call].arguments = piece.arguments
    return parts


def _index(choice: dict[str, Any], place: int) -> int:
    index = int_or(choice.get("index"), place)
    return index if 0 <= index < _CREATED_MAX else place


def _finish(choice: dict[str, Any], called: bool) -> str:
    """In the form's names. A call that was asked for by its name ends with "stop"."""
    reason = text_of(choice.get("finish_reason"))
    return "tool_calls" if reason == "function_call" or (reason == "stop" and called) else reason


def _stop_sequence(choice: dict[str, Any]) -> str:
    return text_of(choice.get("stop_reason"))  # vLLM


# -- streams ------------------------------------------------------------------------------------------------------------------------------


class Pieces:
    """Reads one stream."""

    def __init__(self) -> None:
        self._begun = False
        self._id = ""
        self._outputs: dict[int, _Output] = {}

    def of(self, event: Event) -> list[Piece]:
        """What one event says."""
        data = _data(event.raw)
        if self._begun and (text := _text(data)) is not None:
            return [text]
        chunk = _object(data)
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            return []
        pieces: list[Piece] = []
        if not self._begun:
            self._begun, self._id = True, text_of(chunk.get("id"))
            pieces.append(Begin(self._id, text_of(chunk.get("model")), _created(chunk)))
        for place, choice in enumerate(choices):
            if isinstance(choice, dict):
                pieces += self._choice(choice, _index(choice, place))
        return pieces

    def _choice(self, choice: dict[str, Any], index: int) -> list[Piece]:
        output = self._outputs.get(index)
        if output is None:
            output = self._outputs[index] = _Output(index)
        delta = choice.get("delta") or choice.get("message")
        ends = bool(text_of(choice.get("finish_reason"))) and not output.finished
        pieces = output.of(delta if isinstance(delta, dict) else {}, self._id, whole=ends)
        if ends:
            output.finished = True
            pieces.append(Finish(index, _finish(choice, output.begun > 0), _stop_sequence(choice)))
        return pieces


def _data(raw: bytes) -> bytes:
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2:
        return raw[6:-2]
    reader = Reader()
    events = reader.feed(raw) or reader.end()
    return events[0].data if events else b""


def _text(data: bytes) -> TextDelta | None:
    """The text of a chunk that says nothing else."""
    try:
        (choice,) = _decode_chunk(data).choices
    except (ValueError, RecursionError):  # of several choices, too
        return None
    delta = choice.delta
    more = delta.reasoning_content or delta.reasoning or delta.refusal or choice.finish_reason or choice.index < 0
    if (
        more
        or not delta.content
        or delta.reasoning_details is not _NOTHING
        or delta.tool_calls is not _NOTHING
        or delta.function_call is not _NOTHING
    ):
        return None
    return TextDelta(choice.index, delta.content)


class _Call:
    """One call as it comes."""

    __slots__ = ("arguments", "id", "name", "number", "unwritten")

    def __init__(self) -> None:
        self.id = self.name = ""
        self.arguments = ""
        self.unwritten = ""
        self.number: int | None = None  # once it has begun


class _Output:
    """The output of one choice."""

    def __init__(self, choice: int) -> None:
        self.finished = False
        self.begun = 0  # calls
        self._choice = choice
        self._calls: list[_Call] = []
        self._at: dict[int | str, _Call] = {}  # the latest call at an index

    def of(self, delta: dict[str, Any], answer_id: str, *, whole: bool) -> list[Piece]:
        """What a delta says. whole: it is the last of the choice."""
        choice, get = self._choice, delta.get
        pieces: list[Piece] = []
        if thought := text_of(get("reasoning_content")) or text_of(get("reasoning")):
            pieces.append(ThinkingDelta(choice, thought))
        if details := get("reasoning_details"):
            pieces += self._details(details, told=bool(thought))
        content = get("content")
        if content and isinstance(content, str):
            pieces.append(TextDelta(choice, text_of(content)))
        elif content:
            pieces += self._content(content)
        if refusal := text_of(get("refusal")):
            pieces.append(RefusalDelta(choice, refusal))
        called = get("tool_calls")
        for call in called if isinstance(called, list) else [called] if called else []:
            if isinstance(call, dict):
                pieces += self._called(call)
        if isinstance(function := get("function_call"), dict):
            pieces += self._called({"index": "function_call", "function": function})
        if whole:
            pieces += self._rest(answer_id)
        return pieces

    def _details(self, details: Any, told: bool) -> list[Piece]:
        """OpenRouter's. told: their text stands in another field too."""
        pieces: list[Piece] = []
        for detail in details if isinstance(details, list) else ():
            if not isinstance(detail, dict):
                continue
            text = text_of(detail.get("text")) or text_of(detail.get("summary"))
            if text and not told:
                pieces.append(ThinkingDelta(self._choice, text))
            if text_of(detail.get("format")).startswith("anthropic"):
                if signature := text_of(detail.get("signature")):
                    pieces.append(SignatureDelta(self._choice, signature))
                if data := text_of(detail.get("data")):
                    pieces.append(RedactedBlock(self._choice, data))
        return pieces

    def _content(self, content: Any) -> list[Piece]:
        """Content in parts: Mistral's."""
        pieces: list[Piece] = []
        for part in content if isinstance(content, list) else [content]:
            if text := "".join([text_of(text) for text in strings(part)]):
                thought = isinstance(part, dict) and part.get("type") == "thinking"
                pieces.append(ThinkingDelta(self._choice, text) if thought else TextDelta(self._choice, text))
        return pieces

    def _called(self, delta: dict[str, Any]) -> list[Piece]:
        function = delta.get("function")
        if not isinstance(function, dict):
            return []
        id, name, arguments = text_of(delta.get("id")), text_of(function.get("name")), _arguments(function.get("arguments"))
        index = delta.get("index")
        place = index if isinstance(index, int | str) else ""
        call = self._found(place, id, name, arguments)
        if call is None:
            call = _Call()
            self._calls.append(call)
        self._at[place] = call
        call.id, call.name = call.id or id, call.name or name
        call.arguments += arguments
        call.unwritten += arguments
        return self._told(call) if call.id and call.name else []

    def _found(self, place: int | str, id: str, name: str, arguments: str) -> _Call | None:
        """The call that a delta goes on with; None: it begins one."""
        known = [call for call in self._calls if id and call.id == id]
        if known:
            return known[-1]
        call = self._at.get(place)
        if call is None or (id and call.id) or (name and call.name and name != call.name):
            return None
        whole = name and arguments.startswith("{") and isinstance(loosely(call.arguments.encode()), dict)
        return None if whole else call

    def _told(self, call: _Call) -> list[Piece]:
        pieces: list[Piece] = []
        if call.number is None:
            call.number = self.begun
            self.begun += 1
            pieces.append(ToolBegin(self._choice, call.number, call.id, call.name))
        if call.unwritten:
            pieces.append(ToolDelta(self._choice, call.number, call.unwritten))
            call.unwritten = ""
        return pieces

    def _rest(self, answer_id: str) -> list[Piece]:
        """Calls that have waited for an id in vain. One without a name is none."""
        pieces: list[Piece] = []
        for place, call in enumerate(self._calls):
            if call.number is None and call.name:
                plain = "".join([c for c in answer_id if c.isascii() and c.isalnum()])[-24:]
                call.id = f"call_{plain}_{self._choice}_{place}"
                pieces += self._told(call)
        return pieces


def _arguments(arguments: Any) -> str:
    """As text; some vendors send the object itself."""
    if isinstance(arguments, str):
        return text_of(arguments)
    try:
        return json.dumps(arguments, separators=(",", ":")) if isinstance(arguments, dict) else ""
    except RecursionError:  # it could just be read
        return ""
