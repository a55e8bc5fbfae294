"""Fields by which a request may cost more than the deployment's price."""

import json
from types import ModuleType
from typing import Any

import pytest

from sluicegate.dialects import anthropic_request, openai_completions_request, openai_embeddings, openai_request, openai_responses_request
from sluicegate.dialects.form import BadRequest
from sluicegate.dialects.tariffs import tariff_of

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[ModuleType, dict[str, Any]] = {
    openai_request: {"messages": MESSAGES},
    openai_completions_request: {"prompt": "hi"},
    openai_responses_request: {"input": "hi"},
    anthropic_request: {"messages": MESSAGES, "max_tokens": 5},
    openai_embeddings: {"input": "hi"},
}
ASKED: list[tuple[dict[str, Any], str]] = [
    ({"service_tier": "priority"}, "service_tier=priority"),
    ({"service_tier": "fast"}, "service_tier=fast"),
    ({"service_tier": "Auto"}, "service_tier=Auto"),
    ({"speed": "fast"}, "speed=fast"),
    ({"speed": "fast", "inference_geo": "us", "service_tier": "auto"}, "inference_geo=us,speed=fast"),
]
REFUSED: list[tuple[str, Any]] = [
    ("service_tier", "x" * 41),
    ("service_tier", "priority,speed=fast"),
    ("service_tier", {"name": "priority"}),
    ("Service_Tier", "priority"),
    ("speed", ["fast"]),
    ("provider", {"only": ["dear"]}),
    ("provider", {"order": ["dear"], "max_price": {"prompt": 1}}),
    ("provider", {"sort": "throughput"}),
    ("provider", {"ignore": ["cheap"]}),
    ("provider", {"quantizations": ["fp16"]}),
    ("provider", "dear"),
]


def read(module: ModuleType, **fields: Any) -> Any:
    """A small request in a dialect, with these fields."""
    return module.read_request(json.dumps({"model": "m", **BODIES[module], **fields}).encode())


EVERY_DIALECT = pytest.mark.parametrize("module", BODIES, ids=lambda module: module.__name__.rpartition(".")[2])


@EVERY_DIALECT
@pytest.mark.parametrize(("fields", "tariff"), ASKED)
def test_what_may_cost_more_is_the_requests_tariff(module: ModuleType, fields: dict[str, Any], tariff: str) -> None:
    """In every dialect: what is asked for, by name, in one order."""
    assert read(module, **fields).tariff == tariff


@EVERY_DIALECT
@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_can_have_no_price_is_refused(module: ModuleType, name: str, value: Any) -> None:
    """In every dialect, with a 400 that names the field: no hold would cover it."""
    with pytest.raises(BadRequest) as info:
        read(module, **{name: value})
    assert info.value.param == name


def test_a_tariff_that_a_price_may_have() -> None:
    """What an operator names is what a request is found by; what is served at the price anyway, or means nothing, is none."""
    assert tariff_of({"speed": "fast", "inference_geo": "us"}) == "inference_geo=us,speed=fast"
    for when in ({"service_tier": "flex"}, {"provider": "x"}, {"processing": "batch"}, {"speed": "fast", "service_tier": "auto"}, {"speed": "?"}, {}):
        assert not tariff_of(when)


@pytest.mark.parametrize("name", ["service_tier", "provider", "speed"])
def test_it_is_not_hidden_in_an_extra_body(name: str) -> None:
    """Some upstreams read the fields of `extra_body` as if they stood beside it."""
    with pytest.raises(BadRequest) as info:
        read(openai_request, extra_body={name: "priority"})
    assert info.value.param == "extra_body"


@EVERY_DIALECT
@pytest.mark.parametrize("tier", [None, "auto", "default", "flex", "standard", "standard_only", "on_demand"])
def test_what_costs_at_most_the_price_passes(module: ModuleType, tier: str | None) -> None:
    """The usual tiers, and a provider that is only bound to a price, go upstream as they came."""
    more = {"service_tier": tier, "provider": {"max_price": {"prompt": 1}}, "speed": "standard", "inference_geo": "global"}
    request = read(module, **more)
    assert request.tariff == ""
    assert {name: json.loads(bytes(request.fields[name])) for name in more} == more
