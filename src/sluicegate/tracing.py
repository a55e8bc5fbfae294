"""What a worker traces with: made of `tracing:` and of what OpenTelemetry's own variables say, and anew whenever either says something else.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ has the variables. The file goes before them, and without `tracing:`
in it they switch nothing on.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from os import environ
from random import getrandbits
from urllib.parse import urlsplit

from sluicegate import __version__
from sluicegate.applying import providers
from sluicegate.config.load import Loaded
from sluicegate.config.schema_tracing import Tracing as Settings
from sluicegate.core.redact import rules_of
from sluicegate.gateway import Gateway
from sluicegate.observe.metrics import Metrics
from sluicegate.observe.sending import Export, Sender
from sluicegate.observe.tracing import Known, Upstream
from sluicegate.traces import Traces

OUTCOMES = ("sent", "dropped", "failed")  # what becomes of spans, as a sender counts them
DELAY_S = 5.0  # for which a few spans wait for more
STOP_S = 2.0  # for which what waits is sent when a worker ends
PORTS = {"http": 80, "https": 443}
# As the conventions call them (gen_ai.provider.name); others are called by their row in providers.py.
NAMES = {
    "azure": "azure.ai.openai",
    "azure_v1": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
}


class Tracing:
    """Of one worker. Keeps `gateway.traces`."""

    def __init__(self, gateway: Gateway, loaded: Loaded, metrics: Metrics) -> None:
        self._gateway = gateway
        metrics.spans = self.counts
        self._settings: Settings | None = None
        self._known = Known(__version__, {})
        self._sender: Sender | None = None
        self._before = dict.fromkeys(OUTCOMES, 0)  # by senders that are no more
        self._stopping: dict[Sender, asyncio.Future[None]] = {}
        self.apply(loaded)

    def apply(self, loaded: Loaded) -> None:
        """Traces what comes from now on as this says. What waits to be sent goes where it was to go."""
        settings = loaded.config.tracing if environ.get("OTEL_SDK_DISABLED", "").lower() != "true" else None
        masks = loaded.config.log.patterns if settings is not None and settings.prompts != "off" else ()
        self._known = Known(__version__, _upstreams(loaded), rules_of(masks))
        before, self._settings = self._settings, settings
        if settings is None:
            self._replace(None)
            self._gateway.traces = None
            return
        if self._sender is None or before is None or _receiver(before) != _receiver(settings):
            self._replace(_sender(settings, lambda: self._known))
        sender = self._sender
        assert sender is not None
        share, heeds_parent = sampler(settings.sample, environ)
        self._gateway.traces = Traces(share, heeds_parent, settings.prompts != "off", sender.put, time.monotonic, time.time_ns, getrandbits)

    def counts(self) -> dict[str, int]:
        """Spans, by what became of them."""
        senders = (*self._stopping, *((self._sender,) if self._sender is not None else ()))
        return {outcome: count + sum(getattr(one, outcome) for one in senders) for outcome, count in self._before.items()}

    async def stop(self) -> None:
        """Sends what waits, for a moment."""
        self._gateway.traces = None
        self._replace(None)
        await asyncio.gather(*self._stopping.values())

    def _replace(self, sender: Sender | None) -> None:
        old, self._sender = self._sender, sender
        if old is not None:
            stopping = self._stopping[old] = asyncio.get_running_loop().run_in_executor(None, old.stop, STOP_S)
            stopping.add_done_callback(lambda _: self._stopped(old))

    def _stopped(self, old: Sender) -> None:
        del self._stopping[old]
        for outcome in OUTCOMES:
            self._before[outcome] += getattr(old, outcome)


def sampler(share: float | None, variables: Mapping[str, str]) -> tuple[float, bool]:
    """The share of the traces that begin here, and whether a client decides about its own. Without a word of anybody: all, and it does."""
    kind = variables.get("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    if share is None:
        share = 0.0 if kind.endswith("always_off") else 1.0
        if kind.endswith("traceidratio"):
            with contextlib.suppress(ValueError):
                share = min(1.0, max(0.0, float(variables.get("OTEL_TRACES_SAMPLER_ARG", "1"))))
    return share, kind.startswith("parentbased")


def _receiver(settings: Settings) -> tuple[object, ...]:
    """What a sender is made of."""
    return settings.endpoint, settings.headers, settings.service_name


def _sender(settings: Settings, known: Callable[[], Known]) -> Sender:
    def exporter() -> tuple[Export, Callable[[], None]]:
        from sluicegate.observe import spans  # noqa: PLC0415  (the extra; takes a tenth of a second)

        return spans.exporter(settings.endpoint, settings.headers, settings.service_name, known)

    bounds = {"capacity": "OTEL_BSP_MAX_QUEUE_SIZE", "batch": "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"}
    found = {bound: int(said) for bound, name in bounds.items() if (said := environ.get(name, "")).isdecimal() and int(said)}
    delay = environ.get("OTEL_BSP_SCHEDULE_DELAY", "")
    sender = Sender(exporter, delay_s=int(delay) / 1000 if delay.isdecimal() and int(delay) else DELAY_S, **found)
    sender.start()
    return sender


def _upstreams(loaded: Loaded) -> dict[str, Upstream]:
    found = {}
    for provider in providers(loaded.policy):
        written, parts = loaded.config.providers[provider.name], urlsplit(provider.base_url)
        row = written.provider or written.dialect or ""
        found[provider.name] = Upstream(NAMES.get(row, row), parts.hostname or "", parts.port or PORTS[parts.scheme])
    return found
