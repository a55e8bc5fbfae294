"""What an OpenAI-compatible upstream says: the body of an answer or of a chunk, from bytes to typed values, whatever is in it.

Nothing here raises. What is of the documented types is decoded at once; an object in which something is of another type goes a slower way
that takes what can be taken. Output is found wherever vendors put it (content as text or as parts, `reasoning` and `reasoning_content`, refusals,
tool names and arguments, transcripts), each text once. Where the shapes come from: OpenAI's API reference; llama.cpp (usage on the last chunk
with choices, or on one without); vLLM (`{"object": "error"}`, cumulative usage on every chunk); Groq (`x_groq.usage`); xAI and Gemini (reasoning
in the total only); DeepSeek (`prompt_cache_hit_tokens`); OpenRouter (errors inside choices, `reasoning_details`, `usage.cost`); Mistral (content
as a list).
"""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects import usage
from sluicegate.dialects.form import Delta, Failure

_NOT_OUTPUT = frozenset({"type", "id", "index", "format", "signature", "data", "role", "annotations"})


class _Called(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


class _Call(Struct, gc=False):
    function: _Called | None = None
    custom: _Called | None = None


class _Audio(Struct, gc=False):
    transcript: str | None = None


class _Output(Struct, gc=False):
    """A delta, or a whole message."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Called | None = None
    audio: _Audio | None = None


class _Choice(Struct, gc=False):
    index: int = 0
    delta: _Output | None = None
    message: _Output | None = None
    finish_reason: str | None = None
    error: Any = None


class Body(Struct, gc=False):
    """A chunk, or a whole answer."""

    choices: list[_Choice] | None = None
    usage: Any = None
    x_groq: Any = None
    error: Any = None


decode_body = msgspec.json.Decoder(Body).decode
_decode_any = msgspec.json.Decoder().decode


def read_choices(choices: list[_Choice]) -> tuple[list[Delta], list[tuple[int, str]], Failure | None]:
    deltas = []
    finishes = []
    failure = None
    for choice in choices:
        output = choice.delta or choice.message
        if output is not None:
            text, calls = _output(output)
            if text or calls:
                deltas.append(Delta(choice.index, text, calls))
        if choice.finish_reason:
            finishes.append((choice.index, choice.finish_reason))
        if choice.error is not None:
            failure = failure or failure_in(choice.error)
    return deltas, finishes, failure


def _output(output: _Output) -> tuple[str, int]:
    """All output in it, each text once, and how many tool calls begin in it."""
    text = output.content or ""
    thought, thought_2 = output.reasoning, output.reasoning_content
    if thought or thought_2:
        text += thought or ""
        if thought_2 and thought_2 != thought:
            text += thought_2
    elif output.reasoning_details is not None:
        text += "".join(strings(output.reasoning_details))
    if output.refusal:
        text += output.refusal
    if output.audio is not None:
        text += output.audio.transcript or ""
    if output.tool_calls is None and output.function_call is None:
        return text, 0
    calls = 0
    called = [call.function or call.custom for call in output.tool_calls or ()]
    for function in [*called, output.function_call]:
        if function is not None:
            calls += 1 if function.name else 0
            text += (function.name or "") + (function.arguments or "") + (function.input or "")
    return text, calls


# -- wrong types --------------------------------------------------------------------------------------------------------------------------


def parse(data: bytes) -> tuple[Body | None, Any]:
    """The body, typed as far as possible, and as plain values where it is not of the usual shape; (None, ...) if it is not an object."""
    try:
        body = decode_body(data)
        if body.choices:
            return body, None
        return body, _decode_any(data)
    except (ValueError, RecursionError):
        loose = loosely(data)
    return (_tolerated(loose) if isinstance(loose, dict) else None), loose


def loosely(data: bytes) -> Any:
    """Any JSON, lone surrogates and huge numbers included, as plain values; None if there is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _tolerated(loose: dict[str, Any]) -> Body:
    """What can be taken of an object in which something has a wrong type."""
    choices = loose.get("choices")
    body = Body(None, loose.get("usage"), loose.get("x_groq"), loose.get("error"))
    if isinstance(choices, list):
        body.choices = [_tolerated_choice(choice, place) for place, choice in enumerate(choices) if isinstance(choice, dict)]
    return body


def _tolerated_choice(loose: dict[str, Any], place: int) -> _Choice:
    index, finish = loose.get("index"), loose.get("finish_reason")
    output = loose.get("delta")
    if not output:
        output = loose.get("message")
    return _Choice(
        int_or(index, place),
        delta=_tolerated_output(output) if isinstance(output, dict) else None,
        finish_reason=text_of(finish) or None,
        error=loose.get("error"),
    )


def _tolerated_output(loose: dict[str, Any]) -> _Output:
    output = _Output()
    for name in ("content", "reasoning", "reasoning_content", "refusal"):
        setattr(output, name, "".join(strings(loose.get(name))) or None)
    output.reasoning_details = loose.get("reasoning_details")
    output.audio = _Audio("".join(strings(loose.get("audio"))))
    calls = loose.get("tool_calls")
    if calls:
        output.tool_calls = [_tolerated_call(call) for call in (calls if isinstance(calls, list) else [calls])]
    if loose.get("function_call"):
        output.function_call = _tolerated_call({"function": loose["function_call"]}).function
    return output


def _tolerated_call(loose: Any) -> _Call:
    function = (loose.get("function") or loose.get("custom")) if isinstance(loose, dict) else loose
    if not isinstance(function, dict):
        return _Call(_Called(None, "".join(strings(function))))
    arguments = [value if isinstance(value, str) else _json(value) for name, value in function.items() if name != "name" and value]
    return _Call(_Called(text_of(function.get("name")), "".join(arguments)))


def strings(value: Any) -> Iterator[str]:
    """Every text inside a value, but for what is known to be no output (types, ids, encoded audio)."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            left += reversed(value)
        elif isinstance(value, dict):
            left += reversed([item for name, item in value.items() if name not in _NOT_OUTPUT])


def text_of(value: Any) -> str:
    """A text that can be sent and written down: half a surrogate pair, which JSON can have, cannot."""
    if not isinstance(value, str) or value.isascii():
        return value if isinstance(value, str) else ""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def int_or(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


# -- usage and errors ---------------------------------------------------------------------------------------------------------------------


def usage_of(body: Body) -> Usage | None:
    """Usage where the upstream put it."""
    reported = body.usage
    if not isinstance(reported, dict):
        reported = body.x_groq.get("usage") if isinstance(body.x_groq, dict) else None
    return usage.read(usage.OPENAI_CHAT, reported)


def bare_failure(loose: Any) -> Failure | None:
    """An error in an object that has no choices: `error`, or its fields themselves (vLLM, FastAPI's `detail`)."""
    if not isinstance(loose, dict):
        return failure_in(loose)
    if loose.get("error"):
        return failure_in(loose["error"])
    message = loose.get("message") or loose.get("detail") or loose.get("errors")
    return failure_in(loose | {"message": message}) if message else None


def failure_in(error: Any) -> Failure | None:
    """An error as vendors write it: an object, a text, or (Google) a list around it."""
    if isinstance(error, list) and error:
        error = error[0]["error"] if isinstance(error[0], dict) and "error" in error[0] else None
    if isinstance(error, str) and error:
        return Failure(None, "", "", text_of(error))
    if not isinstance(error, dict) or not error:
        return None
    message = error.get("message")
    if message is not None and not isinstance(message, str):
        message = _json(message)
    code = error.get("code")
    status = _status(error.get("status")) or _status(code)
    named = text_of(code) or (str(code) if int_or(code, 0) else "")
    param = error.get("param")
    return Failure(status, named, text_of(error.get("type")), text_of(message), text_of(param) if isinstance(param, str) else None)


def _status(value: Any) -> int | None:
    """An HTTP error status, also where it is written as a text."""
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    return value if 400 <= int_or(value, 0) <= 599 else None


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:  # what could just be read may be too deep to be written, further down the stack
        return "(nested too deeply)"
