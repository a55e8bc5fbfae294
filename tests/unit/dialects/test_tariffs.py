"""Fields by which a request would cost more than the deployment's price."""

import json
from types import ModuleType
from typing import Any

import pytest

from sluicegate.dialects import anthropic_request, openai_completions_request, openai_embeddings, openai_request, openai_responses_request
from sluicegate.dialects.form import BadRequest

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[ModuleType, dict[str, Any]] = {
    openai_request: {"messages": MESSAGES},
    openai_completions_request: {"prompt": "hi"},
    openai_responses_request: {"input": "hi"},
    anthropic_request: {"messages": MESSAGES, "max_tokens": 5},
    openai_embeddings: {"input": "hi"},
}
DEARER: list[tuple[str, Any]] = [
    ("service_tier", "priority"),
    ("service_tier", "fast"),
    ("service_tier", "scale"),
    ("service_tier", "Auto"),
    ("Service_Tier", "priority"),
    ("speed", "fast"),
    ("inference_geo", "us"),
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


@pytest.mark.parametrize("module", BODIES, ids=lambda module: module.__name__.rpartition(".")[2])
@pytest.mark.parametrize(("name", "value"), DEARER)
def test_what_may_cost_more_is_refused(module: ModuleType, name: str, value: Any) -> None:
    """In every dialect, with a 400 that names the field: no hold would cover it."""
    with pytest.raises(BadRequest) as info:
        read(module, **{name: value})
    assert info.value.param == name


@pytest.mark.parametrize("name", ["service_tier", "provider", "speed"])
def test_it_is_not_hidden_in_an_extra_body(name: str) -> None:
    """Some upstreams read the fields of `extra_body` as if they stood beside it."""
    with pytest.raises(BadRequest) as info:
        read(openai_request, extra_body={name: "priority"})
    assert info.value.param == "extra_body"


@pytest.mark.parametrize("module", BODIES, ids=lambda module: module.__name__.rpartition(".")[2])
@pytest.mark.parametrize("tier", [None, "auto", "default", "flex", "standard", "standard_only", "on_demand"])
def test_what_costs_at_most_the_price_passes(module: ModuleType, tier: str | None) -> None:
    """The usual tiers, and a provider that is only bound to a price, go upstream as they came."""
    more = {"service_tier": tier, "provider": {"max_price": {"prompt": 1}}, "speed": "standard", "inference_geo": "global"}
    request = read(module, **more)
    assert {name: json.loads(bytes(request.fields[name])) for name in more} == more
