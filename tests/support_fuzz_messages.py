"""What a provider of Anthropic messages says, right, for support_fuzz_upstream to damage."""

import contextlib
import json
from random import Random
from typing import Any

from support_fuzz_upstream import WORDS, Format, usages

REASONS = ("end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal", "pause_turn")


def event(r: Random, kind: str, **fields: Any) -> str:
    """With its name, or without."""
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n" if r.random() < 0.5 else f"data: {data}\n\n"


def blocks(r: Random) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Blocks as they begin, and what is added to each."""
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for _ in range(r.randint(0, 4)):
        said = [r.choice(WORDS) for _ in range(r.randint(0, 4))]
        match r.choice(("text", "text", "thinking", "redacted", "call")):
            case "text":
                found.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in said]))
            case "thinking":
                proof = {"type": "signature_delta", "signature": "proof"}
                thought = [{"type": "thinking_delta", "thinking": text} for text in said]
                found.append(({"type": "thinking", "thinking": "", "signature": ""}, [*thought, proof]))
            case "redacted":
                found.append(({"type": "redacted_thinking", "data": "x" * 20}, []))
            case "call":
                given = [{"type": "input_json_delta", "partial_json": text} for text in said]
                found.append(({"type": "tool_use", "id": f"t{len(found)}", "name": "f", "input": {}}, given))
    return found


def reported(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """The same usage as this API writes it: what came from a cache is beside the input."""
    if usage is None:
        return None
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {"input_tokens": usage["prompt_tokens"] - cached, "cache_read_input_tokens": cached, "output_tokens": usage["completion_tokens"]}


def streams(r: Random, choices: int) -> tuple[list[str], dict[str, Any] | None]:
    """Events of a stream that is right, and its usage if it has any."""
    usage = r.choice((None, usages(r), usages(r)))
    whole = reported(usage)
    start = {"id": "m", "type": "message", "role": "assistant", "model": "x", "content": [], "stop_reason": None}
    events = [event(r, "message_start", message=start | ({"usage": whole | {"output_tokens": 1}} if whole else {}))]
    for index, (begun, added) in enumerate(blocks(r)):
        events.append(event(r, "content_block_start", index=index, content_block=begun))
        events += [event(r, "content_block_delta", index=index, delta=delta) for delta in added]
        events += [event(r, "ping"), event(r, "content_block_stop", index=index)][r.randint(0, 1) :]
    delta = {"stop_reason": r.choice(REASONS), "stop_sequence": None}
    end = whole if whole is None or r.random() < 0.5 else {"output_tokens": whole["output_tokens"]}
    events.append(event(r, "message_delta", delta=delta, **({"usage": end} if end else {})))
    return [*events, event(r, "message_stop")], usage


def unaries(r: Random, choices: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A whole answer that is right, and its usage if it has any."""
    usage = r.choice((None, usages(r), usages(r)))
    content: list[dict[str, Any]] = [{"type": "text", "text": "".join(r.choices(WORDS, k=r.randint(0, 12)))}]
    content += r.choice(([], [{"type": "tool_use", "id": "t", "name": "f", "input": {"q": r.choice(WORDS)}}]))
    answer = {"id": "m", "type": "message", "role": "assistant", "model": "x", "content": content, "stop_reason": "end_turn"}
    return answer | ({"usage": reported(usage)} if usage else {}), usage


def outputs(body: bytes) -> int:
    """Changes with output in the events of a stream, of those that can be read."""
    found = 0
    for line in body.replace(b"\r", b"\n").split(b"\n"):
        with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError, RecursionError):
            delta = json.loads(line.removeprefix(b"data: "))["delta"]
            found += any(isinstance(delta.get(name), str) and delta[name] for name in ("text", "thinking", "partial_json"))
    return found


MESSAGES = Format(streams, unaries, outputs)
