"""Keys of the exact-match cache: what is looked up, and which requests are the same (cases 94, 95, 97)."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from sluicegate.core.cache_key import BODY_MAX, canonical, decide, digest, prefix, scope_of, seed, shaping_headers
from sluicegate.core.tenants import Caching, Deployment, Key, Model, Provider, Scope
from sluicegate.dialects import anthropic_messages, openai_chat, openai_completions, openai_embeddings, openai_responses
from sluicegate.dialects.form import Request

ALL, DETERMINISTIC, SEEDED = (Caching(mode, "key", 1000) for mode in ("all", "deterministic", "seeded"))  # type: ignore[arg-type]
BODY = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
PROVIDER = Provider("p", "openai_chat", "http://127.0.0.1/v1", (), frozenset({b"openai-beta", b"traceparent"}))
MODEL = Model("chat", (Deployment("p/m", PROVIDER, "m", None, extend=False),))


def chat(text: str | bytes | None = None, **fields: Any) -> Request:
    body = json.dumps(BODY | fields) if text is None else text
    return openai_chat.read_request(body if isinstance(body, bytes) else body.encode())


def key_of(name: str = "key", *above: tuple[str, str]) -> Key:
    """above: ids and kinds of the scopes, from the top."""
    scopes = [Scope(id_, kind, id_) for id_, kind in (above or (("acme", "organization"), ("acme/a", "team")))]  # type: ignore[arg-type]
    own = Scope(f"{scopes[-1].id}/@{name}", "key", name)
    return Key(own.id, name, "acme", (*scopes, own), None, ())


def key(request: Request, caching: Caching = ALL, headers: dict[bytes, bytes] | None = None, *, of: Key | None = None, model: Model = MODEL) -> bytes:
    """The key of a chat."""
    begun = prefix(of or key_of(), model, caching, b"")
    return digest(begun, "openai_chat", headers or {}, shaping_headers(model), canonical(request.fields))


# -- which requests are the same --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"temperature":0,"messages":[{"content":"Hi","role":"user"}],"model":"chat"}',
        '\n{ "model" : "chat", "messages": [ {"role": "user", "content": "\\u0048\\u0069"} ], "temperature": 0.0 }\n',
        json.dumps(BODY | {"stream": True, "stream_options": {"include_usage": True}}),
        '{"model":"other","model":"chat","messages":[{"role":"user","content":"Hi"}],"temperature":0e3}',
    ],
)
def test_what_means_the_same_hits(text: str) -> None:
    """Spacing, the order of fields, escapes, how a temperature is written, how the answer is sent, a field that another one of its name replaces."""
    assert key(chat(text)) == key(chat())


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.5},
        {"temperature": None},
        {"top_p": 0.9},
        {"max_tokens": 5},
        {"max_completion_tokens": 5},
        {"seed": 1},
        {"seed": 2},
        {"stop": "x"},
        {"stop": ["x"]},
        {"logprobs": True},
        {"logit_bias": {"1": 1}},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "none"},
        {"reasoning_effort": "low"},
        {"service_tier": "flex"},
        {"user": "somebody"},
        {"metadata": {"a": "b"}},
        {"a_field_of_tomorrow": 1},
        {"a_field_of_tomorrow": 1.0},
        {"a_field_of_tomorrow": "1"},
        {"a_field_of_tomorrow": True},
        {"disable_fallbacks": True},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "Hi "}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"messages": [{"role": "system", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": "Hi", "name": "n"}]},
        {"messages": [{"role": "user", "content": "Hi"}] * 2},
    ],
    ids=str,
)
def test_any_field_that_may_shape_the_answer_misses(fields: dict[str, Any]) -> None:
    """Case 94: requests that differ in one field, known or not, have different keys, also from each other."""
    assert key(chat(**fields)) != key(chat())
    others = [{"seed": 2}, {"a_field_of_tomorrow": 1}, {"a_field_of_tomorrow": 1.0}, {"stop": "x"}, {"max_tokens": 5}]
    assert key(chat(**fields)) not in [key(chat(**other)) for other in others if repr(other) != repr(fields)]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), max_size=4), inner, max_size=3),
    max_leaves=8,
)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reordered(inner) for name, inner in reversed(value.items())}
    return [reordered(inner) for inner in value] if isinstance(value, list) else value


def raw(fields: dict[str, Any], **how: Any) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value, **how).encode()) for name, value in fields.items()}


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text("abcm_", min_size=1, max_size=4), JSON, max_size=4), JSON)
def test_a_body_is_written_in_one_way(fields: dict[str, Any], value: Any) -> None:
    """However it was spaced, escaped and ordered; and what it says is still in it, so that another value is another body."""
    written = canonical(raw(fields))
    assert written and written == canonical(raw(reordered(fields), indent=3, ensure_ascii=False)) == canonical(raw(fields) | {"stream": Raw(b"true")})
    assert json.dumps(json.loads(written), sort_keys=True) == json.dumps(fields, sort_keys=True)
    if json.dumps(fields.get("m"), sort_keys=True) != json.dumps(value, sort_keys=True) or "m" not in fields:
        assert canonical(raw(fields | {"m": value})) != written


def test_headers_that_shape_an_answer_are_in_the_key() -> None:
    """Those that go on to a provider, but for tracing, and what keeps a request at the first deployment; no other one."""
    plain = key(chat())
    for name in (b"openai-beta", b"x-sluicegate-disable-fallbacks"):
        assert key(chat(), headers={name: b"a"}) not in (plain, key(chat(), headers={name: b"b"}))
    for name in (b"traceparent", b"authorization", b"user-agent", b"x-request-id", b"x-sluicegate-tags"):
        assert key(chat(), headers={name: b"a"}) == plain


def test_the_dialect_the_model_and_its_definition_are_in_the_key() -> None:
    """A model that goes elsewhere, or is sent otherwise, does not have the answers of before; so it is with other content rules."""
    request, plain = chat(), key(chat())
    (one,) = MODEL.deployments
    elsewhere = Provider("p", "openai_chat", "http://127.0.0.1:1/v1", ())
    headed = msgspec.structs.replace(PROVIDER, headers=((b"x-flavour", b"sweet"),))
    for model in (
        Model("other", (one,)),
        Model("chat", (one, Deployment("p/n", PROVIDER, "n", None, extend=False))),
        Model("chat", (Deployment("p/m", elsewhere, "m", None, extend=False),)),
        Model("chat", (Deployment("p/m", headed, "m", None, extend=False),)),
        Model("chat", (one,), max_output=5),
    ):
        assert key(request, model=model) != plain
    rotated = msgspec.structs.replace(PROVIDER, headers=((b"authorization", b"Bearer sk-new"),))
    assert key(request, model=Model("chat", (Deployment("p/m", rotated, "m", None, extend=False),))) == plain, "a new credential is no new model"
    body = canonical(request.fields)
    begun = [prefix(key_of(), MODEL, ALL, rules) for rules in (b"", b"rule")]
    assert len({digest(one, dialect, {}, frozenset(), body) for one in begun for dialect in ("openai_chat", "openai_completions")}) == 4


# -- whose requests share answers -------------------------------------------------------------------------------------------------------------

TEAM_A = (("acme", "organization"), ("acme/a", "team"))
TEAM_B = (("acme", "organization"), ("acme/b", "team"))
GLOBE = (("globe", "organization"), ("globe/a", "team"))
UNDER_GLOBAL = (("*", "global"), ("acme", "organization"), ("acme/svc", "service_account"))


@pytest.mark.parametrize(
    ("scope", "shared"),
    [
        ("key", []),
        ("team", ["same team"]),
        ("organization", ["same team", "other team"]),
        ("global", ["same team", "other team", "other organization"]),
    ],
)
def test_scopes(scope: Any, shared: list[str]) -> None:
    """Case 97: by default no other key's answer is given; a wider scope is a choice, and shares no further than it says."""
    caching = Caching("all", scope, 1000)
    first = key(chat(), caching, of=key_of("one", *TEAM_A))
    others = {"same team": key_of("two", *TEAM_A), "other team": key_of("one", *TEAM_B), "other organization": key_of("one", *GLOBE)}
    assert [name for name, other in others.items() if key(chat(), caching, of=other) == first] == shared
    assert key(chat(), caching, of=key_of("one", *TEAM_A)) == first


def test_a_key_without_such_a_scope_shares_with_nobody() -> None:
    """A key below no team is not taken for one of the whole organization; names of scopes are not mixed up."""
    own, other = key_of("one", ("acme", "organization")), key_of("two", ("acme", "organization"))
    team = Caching("all", "team", 1000)
    assert scope_of(own, team) == own.id and key(chat(), team, of=own) != key(chat(), team, of=other)
    assert scope_of(key_of("one", *UNDER_GLOBAL), team) == "acme/svc/@one"
    assert scope_of(key_of("one", *UNDER_GLOBAL), Caching("all", "organization", 1000)) == "acme"
    assert len({key(chat(), Caching("all", scope, 1), of=own) for scope in ("key", "team", "organization", "global")}) == 4  # type: ignore[arg-type]


# -- what is looked up --------------------------------------------------------------------------------------------------------------------------


def why(caching: Caching, request: Request, dialect: str = "openai_chat", cache_control: bytes = b"") -> str:
    return decide(caching, dialect, request, cache_control)[0]


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [("0", ""), ("0.0", ""), ("-0.0", ""), ("0e9", ""), ("1e-9", "sampling"), ("1", "sampling"), ("null", "sampling"), ("", "sampling")],
)
def test_a_temperature_that_is_not_given_is_not_0(temperature: str, expected: str) -> None:
    """Case 95: the deterministic mode takes a temperature of 0, if the client says it."""
    text = json.dumps({name: value for name, value in BODY.items() if name != "temperature"})
    request = chat(text[:-1] + (f', "temperature": {temperature}}}' if temperature else "}"))
    assert why(DETERMINISTIC, request) == expected and why(ALL, request) == "" and why(SEEDED, request) == ""


def test_dialects_without_a_seed() -> None:
    """Where no seed can be sent, that mode is as the deterministic one; embeddings are drawn by no chance."""
    message = {"model": "chat", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    for temperature, expected in ((None, "sampling"), (0, ""), (1, "sampling")):
        more = {} if temperature is None else {"temperature": temperature}
        assert why(SEEDED, anthropic_messages.read_request(json.dumps(message | more).encode()), "anthropic_messages") == expected
        answered = openai_responses.read_request(json.dumps({"model": "chat", "input": "Hi"} | more).encode())
        assert why(SEEDED, answered, "openai_responses") == expected
    assert why(SEEDED, openai_completions.read_request(b'{"model":"chat","prompt":"Hi"}'), "openai_completions") == ""
    assert why(DETERMINISTIC, openai_embeddings.read_request(b'{"model":"e","input":["a","b"]}'), "openai_embeddings") == ""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"n": 2}, "choices"),
        ({"best_of": 2}, "choices"),
        ({"n": 1}, ""),
        ({"tools": [{"type": "web_search_preview"}]}, "unbounded"),
        ({"web_search_options": {}}, "unbounded"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]}, "unbounded"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]}, ""),
        *(
            ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}, "unbounded")
            for url in ("HTTPS://example.com/a.png", " https://example.com/a.png", "//example.com/a.png", "gs://bucket/a.png", "file:/a.png")
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "DATA:image/png;base64,AAAA"}}]}]}, ""),
        ({"messages": [{"role": "user", "content": '"url":"http://example.com"'}]}, ""),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}, "unbounded"),
    ],
    ids=str,
)
def test_what_is_not_looked_up(fields: dict[str, Any], expected: str) -> None:
    """Several answers; input that is not in the request: fetched, found, kept elsewhere, or made by tools that the provider runs."""
    assert why(ALL, chat(**fields)) == expected


def test_input_that_the_provider_has_kept() -> None:
    """Of responses: an earlier one, and a picture that is somewhere else."""
    for fields in (
        {"previous_response_id": "r"},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]}]},
    ):
        request = openai_responses.read_request(json.dumps({"model": "chat", "input": "Hi", "temperature": 0} | fields).encode())
        assert why(ALL, request, "openai_responses") == "unbounded"


def test_what_the_client_says() -> None:
    """no-store: neither asked nor kept. no-cache: not asked, but kept; unless something else speaks against it."""
    for header, expected, kept in ((b"no-store", "no-store", False), (b"max-age=0, No-Cache", "no-cache", True), (b"max-age=5", "", True)):
        found, body = decide(ALL, "openai_chat", chat(), header)
        assert (found, bool(body)) == (expected, kept)
    assert why(DETERMINISTIC, chat(temperature=1), cache_control=b"no-cache") == "sampling"


def test_a_body_that_cannot_be_written_is_not_looked_up() -> None:
    """Numbers beyond what can be told apart, what is nested as deeply as can just be read, and what would take long."""
    assert canonical({"x": Raw(b'"%b"' % (b"a" * BODY_MAX))}) == b"" != canonical({"x": Raw(b'"%b"' % (b"a" * (BODY_MAX - 20)))})
    assert canonical({"x": Raw(b"1e999")}) == b"" == canonical({"x": Raw(b"[" * 5000 + b"]" * 5000)})
    request = chat()
    request.fields["x"] = Raw(b"1e999")
    assert why(ALL, request) == "body"


def test_a_seed_is_that_of_its_request() -> None:
    """The same for the same request, and an integer that every provider takes."""
    one, other = key(chat()), key(chat(max_tokens=5))
    assert seed(one) == seed(key(chat())) != seed(other) and 0 <= seed(one) < 2**31
