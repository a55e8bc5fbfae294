"""Which traces are kept, what of a prompt is kept for them, and who asks whom about providers."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from sluicegate.config.load import load_text
from sluicegate.observe.tracing import PROMPT_READ, Finished
from sluicegate.traces import Traces, _beginning
from sluicegate.tracing import _upstreams, sampler
from support_inloop import config_text
from support_playbook import FakeExchange

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("kind", "argument", "expected"),
    [
        (None, None, (1.0, True)),
        ("always_on", None, (1.0, False)),
        ("always_off", None, (0.0, False)),
        ("traceidratio", "0.25", (0.25, False)),
        ("parentbased_always_on", "0.25", (1.0, True)),
        ("parentbased_always_off", None, (0.0, True)),
        ("parentbased_traceidratio", "0.25", (0.25, True)),
        ("parentbased_traceidratio", "7", (1.0, True)),
        ("parentbased_traceidratio", "often", (1.0, True)),
    ],
)
def test_the_environment_says_how_many_are_kept(kind: str | None, argument: str | None, expected: tuple[float, bool]) -> None:
    """As OpenTelemetry's variables have it; what is no number counts as if it had not been said."""
    variables = {"OTEL_TRACES_SAMPLER": kind, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert sampler(None, {name: value for name, value in variables.items() if value is not None}) == expected


def test_the_file_goes_before_the_environment() -> None:
    """For the share; whether a client decides about its own traces only the sampler's name says."""
    assert sampler(0.5, {"OTEL_TRACES_SAMPLER": "always_off"}) == (0.5, False)
    assert sampler(0.5, {}) == (0.5, True)


def traces(share: float, heeds_parent: bool = True) -> Traces:
    kept: list[Finished] = []
    return Traces(share, heeds_parent, False, kept.append, time.monotonic, time.time_ns, random.Random(7).getrandbits)


@pytest.mark.parametrize(("flags", "heeds", "kept"), [("01", True, True), ("00", True, False), ("00", False, True), ("01", False, True)])
def test_a_client_decides_about_its_own_trace(flags: str, heeds: bool, kept: bool) -> None:
    """Unless the sampler is one that does not heed it: then the share does, here all."""
    headers = {b"traceparent": f"00-{TRACE}-{SPAN}-{flags}".encode(), b"x": b"1"}
    begun: Any = traces(1.0, heeds).begin(FakeExchange(headers=headers))  # type: ignore[arg-type]
    assert (begun.id, begun.sampled, begun.headers) == (TRACE, kept, {b"x": b"1"})
    assert headers[b"traceparent"]  # the request's own are left as they are


def test_a_share_is_about_as_large_as_it_says() -> None:
    """Of the traces that begin here."""
    some = traces(0.2)
    kept = sum(some.begin(FakeExchange()).sampled for _ in range(2000))  # type: ignore[arg-type]
    assert 320 < kept < 480


@pytest.mark.parametrize("texts", [[], ["a", "b"], ["x" * PROMPT_READ], ["x" * 9_000] * 4, ["x"] * 40_000, ["", "", "y"]])
def test_of_a_prompt_only_the_beginning_is_kept(texts: list[str]) -> None:
    """The same as if all of it had been joined and cut."""
    assert _beginning(texts) == "\n".join(texts)[:PROMPT_READ]


def test_providers_are_called_as_the_conventions_call_them(tmp_path: Path) -> None:
    """By the vendor, whatever the file calls them; with the address, and the port that the scheme has."""
    more = "  far: {provider: azure_v1, base_url: https://x.example/openai/v1, api_key: k}\n  near: {dialect: anthropic, api_key: k, base_url: 'http://[::1]:81'}"
    models = "\n  a: {deployments: [{provider: far, model: m}, {provider: near, model: m}]}"
    found = _upstreams(load_text(config_text(tmp_path, "http://127.0.0.1:9/v1", providers=more, models=models), {}))
    told = {name: (one.name, one.address, one.port) for name, one in found.items()}
    assert told == {"far": ("azure.ai.openai", "x.example", 443), "near": ("anthropic", "::1", 81), "mock": ("mock", "127.0.0.1", 9)}
