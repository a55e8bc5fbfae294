"""Which dialects there are, and which pairs of them can be put together."""

import contextlib
import json
from random import Random
from typing import Any

import pytest

from sluicegate.core.usage import Usage
from sluicegate.dialects.content import Inexpressible
from sluicegate.dialects.form import Event, Request, Target
from sluicegate.dialects.openai_request import read_request
from sluicegate.dialects.registry import CLIENTS, DIALECTS, PROVIDERS, between
from support_golden import GOLDEN

REQUEST = read_request(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')


def test_every_registered_dialect_has_its_sides() -> None:
    """What the gateway and the other side ask of them, under the same names."""
    for name, module in DIALECTS.items():
        assert name == module.NAME
        assert all(hasattr(module, part) for part in ("PATH", "read_answer", "streamed", "StreamReader")), name
    for content in CLIENTS.values():
        assert all(hasattr(content, part) for part in ("read_prompt", "write_reply", "Writer"))
    for content in PROVIDERS.values():
        assert all(hasattr(content, part) for part in ("write_prompt", "read_reply", "Pieces"))
    assert DIALECTS.keys() >= CLIENTS.keys() | PROVIDERS.keys()


def test_a_pair_is_put_together_by_name() -> None:
    """With the request's id and time for answers that have none."""
    body = json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}).encode()
    answer = json.loads(between("openai_chat", "openai_chat", REQUEST, "req_2", 5).read_answer(body).body)
    assert (answer["id"], answer["created"]) == ("req_2", 5)


@pytest.mark.parametrize(
    ("client", "provider"), [("openai_chat", "openai_embeddings"), ("openai_embeddings", "openai_chat"), ("openai_chat", "none")]
)
def test_a_pair_that_does_not_exist(client: str, provider: str) -> None:
    """Is a request that the deployment cannot be asked; it names the model."""
    with pytest.raises(Inexpressible) as error:
        between(client, provider, REQUEST, "req_1", 5)
    assert error.value.param == "model"


# -- every pair ---------------------------------------------------------------------------------------------------------------------------

HELLO = [{"role": "user", "content": "x"}]
ASKED: dict[str, dict[str, Any]] = {
    "openai_chat": {"messages": HELLO},
    "openai_completions": {"prompt": "x"},
    "openai_responses": {"input": "x"},
    "anthropic_messages": {"messages": HELLO, "max_tokens": 9},
}
PAIRS = pytest.mark.parametrize(("client", "provider"), [(client, provider) for client in ASKED for provider in PROVIDERS])
STREAMS = {provider: [path for path in sorted((GOLDEN / provider).iterdir()) if path.suffix in (".sse", ".ndjson")] for provider in PROVIDERS}
SEEDS = 100
ODD = [None, True, -1, 10**30, 1.5, "", "a", "\ud83d", [], {}, [None], {"type": 5}, ["a"], [{}]]


def asked(client: str, **fields: Any) -> Request:
    request: Request = DIALECTS[client].read_request(json.dumps({"model": "m", **ASKED[client], **fields}).encode())
    return request


def spoilt(value: Any, dice: Random) -> Any:
    """The value with something in it taken out or replaced."""
    if isinstance(value, dict | list) and value and dice.random() < 0.8:
        copy = value.copy()
        place = dice.choice(list(copy)) if isinstance(copy, dict) else dice.randrange(len(copy))
        if dice.random() < 0.2:
            del copy[place]
        else:
            copy[place] = spoilt(copy[place], dice)
        return copy
    return dice.choice(ODD)


def events_of(provider: str, dice: Random) -> list[bytes]:
    """One of the golden streams of a provider's dialect, its events spoilt, missing, twice or elsewhere."""
    data = dice.choice(STREAMS[provider]).read_bytes().replace(b"\r\n", b"\n")
    events = [event for event in data.split(b"\n" if provider == "ollama" else b"\n\n") if event]
    for _ in range(dice.randrange(4)):
        at = dice.randrange(len(events))
        head, mark, text = events[at].rpartition(b"data: ")
        how = dice.random()
        if how < 0.6 and text.startswith(b"{"):
            with contextlib.suppress(ValueError):
                events[at] = head + mark + json.dumps(spoilt(json.loads(text), dice)).encode()
        elif how < 0.7 and len(events) > 1:
            del events[at]
        else:
            events.insert(dice.randrange(len(events)), events[at])
    return [event + (b"\n" if provider == "ollama" else b"\n\n") for event in events]


@PAIRS
def test_no_upstream_makes_a_translation_fail(client: str, provider: str) -> None:
    """Whatever a provider of any dialect sends, whole or streamed, something can be written for a client of any other, to its end or to a cut."""
    for seed in range(SEEDS):
        try:
            translate(client, provider, Random(seed))
        except Exception as error:
            raise AssertionError(f"with Random({seed})") from error


def translate(client: str, provider: str, dice: Random) -> None:
    pair = between(client, provider, asked(client, stream=True), "req_1", 5)
    reader = pair.StreamReader()
    events: list[Event] = []
    for data in events_of(provider, dice):
        events += reader.feed(data)
        value = data.rpartition(b"data: ")[2].strip()
        assert isinstance(between(client, provider, asked(client), "req_1", 5).read_answer(value).body, bytes)
    events += reader.end()
    assert all(isinstance(pair.write_event(event, True), bytes) for event in events)
    after = next((event.after for event in reversed(events) if event.after is not None), None)
    assert pair.write_truncation(reader.head, after, [0], "budget", None)
    assert isinstance(reader.last(Usage(1, 1)), bytes)


@PAIRS
def test_a_request_of_each_client_reaches_each_provider(client: str, provider: str) -> None:
    """With the name that the provider knows, and the cap."""
    fields = {"max_output_tokens" if client == "openai_responses" else "max_tokens": 7}
    request = asked(client, **fields)
    body = json.loads(between(client, provider, request, "req_1", 5).write_request(request, Target("served", 5, "max_tokens", True)))
    assert body["model"] == "served"
    assert 5 in (body.get("max_tokens"), body.get("options", {}).get("num_predict"))
    assert json.dumps(body["messages"]).count('"x"') == 1
