"""What an OpenAI-compatible upstream says: the body of an answer or of a chunk, from bytes to typed values, whatever is in it.

Nothing here raises. What is of the documented types is decoded at once; an object in which something is of another type goes a slower way
that takes what can be taken. So does one with a field that is not known: what a model wrote is output whatever it is called, wherever it stands, so
every text counts that neither NOT_OUTPUT nor, beside the choices, `Beside` names, each once (content as text or as parts, `reasoning` and
`reasoning_content`, refusals, tool names and arguments, transcripts, and what vendors will think of). Where the shapes come from: OpenAI's API
reference; llama.cpp (usage on the last chunk with choices, or on one without); vLLM (`{"object": "error"}`, cumulative usage on every chunk); Groq
(`x_groq.usage`); xAI and Gemini (reasoning in the total only); DeepSeek (`prompt_cache_hit_tokens`); OpenRouter (errors inside choices,
`reasoning_details`, `usage.cost`); Mistral (content as a list).
"""

import json
from collections.abc import Collection, Iterator
from sys import float_info
from typing import Any

import msgspec
from msgspec import Raw, Struct

from sluicegate.core.usage import Usage
from sluicegate.dialects import usage
from sluicegate.dialects.form import Delta, Failure

_NONE = Raw()

# Fields that are known to hold no output, wherever in a choice, message, block or item they stand.
NOT_OUTPUT = frozenset({
    "role", "type", "format", "id", "call_id", "tool_use_id", "file_id", "item_id", "index", "object",  # what something is, and which one
    "status", "error", "caller",  # how it went with it, and who runs it
    "finish_reason", "native_finish_reason", "stop_reason", "matched_stop", "stop_sequence", "stop_details", "finish_details",  # why it ended
    "logprobs", "prompt_logprobs", "top_logprobs", "token_ids", "prompt_token_ids", "token_id", "raw_output",  # the same tokens once more, the prompt
    "content_filter_results", "content_filter_result", "content_filter_offsets",  # Azure's opinion of the output
    "signature", "thought_signature", "encrypted_content", "obfuscation",  # proofs of thinking (Google's: thought_signature), padding
    "annotations", "annotation", "citations", "citation", "search_results", "executed_tools", "all_retrieved_documents",  # what was found
    "data", "images", "image_url", "b64_json", "partial_image_b64",  # encoded sound and pictures
})  # fmt: skip


class _Called(Struct, gc=False, forbid_unknown_fields=True):
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


class _Call(Struct, gc=False, forbid_unknown_fields=True):
    index: Any = None
    id: Any = None
    type: Any = None
    function: _Called | None = None
    custom: _Called | None = None


class _Audio(Struct, gc=False, forbid_unknown_fields=True):
    id: Any = None
    data: Raw = _NONE
    expires_at: Any = None
    transcript: str | None = None


class _Output(Struct, gc=False, forbid_unknown_fields=True):
    """A delta, or a whole message. content: the texts of fields that are not known, too."""

    role: Any = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Called | None = None
    audio: _Audio | None = None
    annotations: Raw = _NONE


class _Choice(Struct, gc=False, forbid_unknown_fields=True):
    """In the order in which most send it, which is the cheapest."""

    index: int = 0
    delta: _Output | None = None
    message: _Output | None = None
    logprobs: Raw = _NONE
    finish_reason: str | None = None
    error: Any = None
    stop_reason: Any = None
    token_ids: Raw = _NONE
    content_filter_results: Raw = _NONE
    native_finish_reason: Any = None
    matched_stop: Any = None


class Beside(Struct, gc=False, forbid_unknown_fields=True):
    """What many chunks and answers have beside their choices, which is no output. In the order in which most send it, which is the cheapest."""

    id: Any = None
    object: Any = None
    created: Any = None
    model: Any = None
    service_tier: Any = None
    system_fingerprint: Any = None
    usage: Any = None
    error: Any = None
    x_groq: Any = None
    provider: Any = None  # OpenRouter
    obfuscation: Raw = _NONE
    p: Raw = _NONE  # Mistral's padding
    citations: Raw = _NONE  # Perplexity
    search_results: Raw = _NONE


class Body(Beside):
    """A chunk, or a whole answer."""

    choices: list[_Choice] | None = None


_KNOWN = frozenset(_Output.__struct_fields__)
_BESIDE = frozenset(Body.__struct_fields__) | {
    *("timings", "time_info", "perf_metrics", "nvext", "kv_transfer_params", "metadata", "request_id"),  # how it went
    *("prompt", "prompt_filter_results", "moderation"),  # of what was asked, and what was thought of both
    "sluicegate",  # another gateway's word on it
}

decode_body = msgspec.json.Decoder(Body).decode
_decode_any = msgspec.json.Decoder().decode


def read_choices(choices: list[_Choice]) -> tuple[list[Delta], list[tuple[int, str]], Failure | None]:
    deltas = []
    finishes = []
    failure = None
    for choice in choices:
        output = choice.delta
        if choice.message is not None:
            output = choice.message if output is None else _said_by(choice)
        if output is not None:
            text, calls = _output(output)
            if text or calls:
                deltas.append(Delta(choice.index, text, calls))
        if choice.finish_reason:
            finishes.append((choice.index, choice.finish_reason))
        if choice.error is not None:
            failure = failure or failure_in(choice.error)
    return deltas, finishes, failure


def _said_by(choice: _Choice) -> _Output | None:
    """The delta, unless only the message says something. Perplexity repeats in each delta's message what was said so far, at the end, too."""
    said = choice.delta is not None and (choice.finish_reason is not None or any(_output(choice.delta)))
    return choice.delta if said else choice.message


def _output(output: _Output) -> tuple[str, int]:
    """All output in it, each text once, and how many tool calls begin in it."""
    text = output.content or ""
    thought, thought_2 = output.reasoning, output.reasoning_content
    if thought or thought_2:
        text += thought or ""
        if thought_2 and thought_2 != thought:
            text += thought_2
    if output.reasoning_details:
        details = "".join(strings(output.reasoning_details))
        if details not in (thought, thought_2):
            text += details
    if output.refusal:
        text += output.refusal
    if output.audio is not None:
        text += output.audio.transcript or ""
    if output.tool_calls is None and output.function_call is None:
        return text, 0
    calls = 0
    called = [each for call in output.tool_calls or () for each in (call.function, call.custom)]
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
        loose = plainly(data)
    return (_tolerated(loose) if isinstance(loose, dict) else None), loose


def loosely(data: bytes) -> Any:
    """Any JSON, lone surrogates and huge numbers included, as plain values that can be written as JSON again; None if there is none."""
    try:
        return json.loads(data, parse_float=_finite, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def plainly(data: bytes) -> Any:
    """The same for one who only looks for texts: a number of thousands of digits is none of them, and no reason to see nothing."""
    try:
        return json.loads(data, parse_int=_number, parse_float=_finite, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float:
    """The nearest that there is: JSON has no infinity."""
    return max(-float_info.max, min(float(text), float_info.max))


def _no_number(_: str) -> None:
    """NaN and Infinity, which some write though JSON has neither."""


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) < 400 else _finite(digits)


def _tolerated(loose: dict[str, Any]) -> Body:
    """What can be taken of an object in which something has a wrong type."""
    choices = loose.get("choices")
    body = Body(usage=loose.get("usage"), x_groq=loose.get("x_groq"), error=loose.get("error"))
    if isinstance(choices, list):
        body.choices = [_tolerated_choice(choice, place) for place, choice in enumerate(choices) if isinstance(choice, dict)]
    return body


def beside(loose: Any, told: set[str]) -> list[Delta]:
    """Output that stands beside the choices, as if the first one had said it, but for what was told already. loose: what `parse` gave."""
    text = others(loose, _BESIDE, told) if isinstance(loose, dict) else ""
    return [Delta(0, text)] if text else []


def _tolerated_choice(loose: dict[str, Any], place: int) -> _Choice:
    choice = _Choice(int_or(loose.get("index"), place), finish_reason=text_of(loose.get("finish_reason")) or None, error=loose.get("error"))
    told: set[str] = set()
    of = [name for name in ("delta", "message") if isinstance(loose.get(name), dict)]
    for name in of:
        setattr(choice, name, _tolerated_output(loose[name], told))
    output = choice.delta = _said_by(choice) or _Output()
    choice.message = None
    output.content = (output.content or "") + others(loose, of, told)
    return choice


def _tolerated_output(loose: dict[str, Any], told: set[str]) -> _Output:
    output = _Output()
    for name in ("content", "reasoning", "reasoning_content", "refusal"):
        text = "".join(strings(loose.get(name)))
        told.add(text)
        setattr(output, name, text or None)
    output.reasoning_details = loose.get("reasoning_details")
    output.content = (output.content or "") + others(loose, _KNOWN, told)
    output.audio = _Audio(transcript="".join(strings(loose.get("audio"))))
    calls = loose.get("tool_calls")
    if calls:
        output.tool_calls = [_tolerated_call(call) for call in (calls if isinstance(calls, list) else [calls])]
    if loose.get("function_call"):
        output.function_call = _tolerated_call({"function": loose["function_call"]}).function
    return output


def _tolerated_call(loose: Any) -> _Call:
    if not isinstance(loose, dict):
        return _Call(function=_Called(None, "".join(strings(loose))))
    of = "function" if loose.get("function") else "custom"
    function, more = loose.get(of), others(loose, (of,), set())
    if not isinstance(function, dict):
        return _Call(function=_Called(None, "".join(strings(function)) + more))
    arguments = [value if isinstance(value, str) else _json(value) for name, value in function.items() if name != "name" and value]
    return _Call(function=_Called("".join(strings(function.get("name"))), "".join(arguments) + more))


def others(loose: dict[str, Any], known: Collection[str], told: set[str]) -> str:
    """Every text in the fields that are neither known nor no output, unless it was told, in another field or (from now on) here."""
    found = []
    left = [value for name, value in reversed(loose.items()) if name not in known and name not in NOT_OUTPUT]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += [item for name, item in reversed(value.items()) if name not in NOT_OUTPUT]
        elif value and (text := "".join(strings(value))) and text not in told:
            told.add(text)
            found.append(text)
    return "".join(found)


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
            left += reversed([item for name, item in value.items() if name not in NOT_OUTPUT])


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
