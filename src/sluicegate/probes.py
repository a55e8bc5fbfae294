"""Probes: asks deployments now and then how they are, where `health:` says so, and rates them by what they answer (core/health.py).

A probe is a GET of a cheap page, or a chat of one output token, which the provider bills to us: it is nobody's request, so no limit counts it and no
tenant is charged; its tokens are told to `on_used`. Workers of one machine share what they find over the bus: each has a time for its next probe, a
little off the others', and puts it off when it hears of another's. Those of other machines ask for themselves, since they may be cut off differently.

Invariants: nothing here keeps a request from a deployment; it changes the order in which they are tried. A probe ends within its timeout. One that is
limited (429), or refused for what it asks (400, 422), has been answered by something that lives: it is no failure.
"""

import asyncio
import random
import socket
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import structlog

from sluicegate.bus import Bus, Message
from sluicegate.calling import read_all
from sluicegate.core import classify
from sluicegate.core.classify import Outcome
from sluicegate.core.health import Condition, State
from sluicegate.core.tenants import Deployment, Policy, Probe, Timeouts
from sluicegate.core.usage import Usage
from sluicegate.dialects import openai_chat
from sluicegate.dialects.form import Target
from sluicegate.dialects.registry import between
from sluicegate.http.pools import Pools
from sluicegate.http.upstream import UpstreamError

KIND = "health"
TICK_S = 0.25
FIRST_WITHIN_S = 1.0  # of a start
SPREAD = 0.2  # of the interval, by which workers differ, so that mostly one of them is first
STALE = 2  # intervals after which what another found says nothing any more
ANSWER_MAX = 1 << 20
FAILURE_MAX = 200
ASKED = b'{"model":"probe","messages":[{"role":"user","content":"ping"}],"max_tokens":1}'

log = structlog.get_logger("probes")


class Result(msgspec.Struct, frozen=True):
    """Of one probe, as the other workers hear of it. failure: why it failed; "" if it did not."""

    deployment: str
    host: str
    failure: str
    latency_ms: Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Probes:
    """One worker's."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        pools: Pools,
        bus: Bus,
        rate: Callable[[str, State, str], None],
        on_used: Callable[[str, Usage], None],
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        spread: Callable[[], float] = random.random,
        host: str = "",
    ) -> None:
        """rate: told of each result's deployment, state and reason. now_ms: the ledger's clock. host: what workers of one machine have in common."""
        self._policy = policy
        self._pools = pools
        self._bus = bus
        self._rate = rate
        self._on_used = on_used
        self._clock = clock
        self._now_ms = now_ms
        self._spread = spread
        self._host = host or socket.gethostname()
        self.on_change: Callable[[str, str, str, str], None] = lambda deployment, before, after, reason: None  # by a probe from here
        self._followed: Policy | None = None
        self._probed: dict[str, tuple[Deployment, Probe]] = {}  # by deployment id, of the policy that is followed
        self._conditions: dict[str, Condition] = {}
        self._due: dict[str, float] = {}
        bus.subscribe(KIND, self._heard, earlier=True)

    def state(self, deployment: str) -> State:
        """By its id."""
        condition = self._conditions.get(deployment)
        return condition.state if condition is not None else "unknown"

    def latency_ms(self, deployment: str) -> float | None:
        """Of its probes, on the average; None if none was answered."""
        condition = self._conditions.get(deployment)
        return condition.latency_ms if condition is not None else None

    async def run(self) -> None:
        """Probes until cancelled."""
        async with asyncio.TaskGroup() as probes:
            while True:
                for deployment, probe in self.due():
                    probes.create_task(self.probe(deployment, probe))
                await asyncio.sleep(TICK_S)

    def due(self) -> list[tuple[Deployment, Probe]]:
        """Those whose time has come. Each is given out once."""
        self._follow()
        now, found = self._clock(), []
        for id_, (deployment, probe) in self._probed.items():
            interval_s = probe.interval_ms / 1000
            if self._due.setdefault(id_, now + self._spread() * min(interval_s, FIRST_WITHIN_S)) <= now:
                self._due[id_] = now + interval_s + probe.timeout_ms / 1000  # its result says when the next one is
                found.append((deployment, probe))
        return found

    async def probe(self, deployment: Deployment, probe: Probe) -> None:
        """Asks one, and tells the others."""
        try:
            await self._probe(deployment, probe)
        except Exception:
            log.exception("probe went wrong", deployment=deployment.id)

    async def _probe(self, deployment: Deployment, probe: Probe) -> None:
        started = self._clock()
        failure = await self._ask(deployment, probe)
        result = Result(deployment.id, self._host, failure[:FAILURE_MAX], round((self._clock() - started) * 1000, 1))
        before = self.state(deployment.id)
        self._note(result, 0.0)
        after = self.state(deployment.id)
        if after not in (before, "unknown") and (before, after) != ("unknown", "healthy"):
            self.on_change(deployment.id, before, after, self._conditions[deployment.id].reason)
        self._bus.publish(KIND, msgspec.to_builtins(result))

    # -- steps --

    def _follow(self) -> None:
        """Probes what the policy of the moment says."""
        policy = self._policy()
        if policy is self._followed:
            return
        self._followed = policy
        listed = [one for model in policy.models.values() for one in model.deployments]
        self._probed = {one.id: (one, one.probe) for one in reversed(listed) if one.probe is not None}
        for gone in self._conditions.keys() - self._probed.keys():
            del self._conditions[gone]
            self._due.pop(gone, None)
            self._rate(gone, "unknown", "it is not probed any more")

    def _heard(self, message: Message) -> None:
        try:
            result = msgspec.convert(message.data, Result)
        except msgspec.ValidationError:
            return
        self._follow()
        if result.host == self._host and result.deployment in self._probed:
            _, probe = self._probed[result.deployment]
            age_ms = max(0, self._now_ms() - message.time_ms)
            if age_ms <= STALE * probe.interval_ms:
                self._note(result, age_ms / 1000)

    def _note(self, result: Result, age_s: float) -> None:
        self._follow()
        if result.deployment not in self._probed:
            return  # a reload has left it out meanwhile
        _, probe = self._probed[result.deployment]
        condition = self._conditions.setdefault(result.deployment, Condition())
        condition.note(result.failure[:FAILURE_MAX], result.latency_ms, probe.slow_ms, probe.failures)
        self._due[result.deployment] = self._clock() - age_s + probe.interval_ms / 1000 * (1 + SPREAD * self._spread())
        self._rate(result.deployment, condition.state, condition.reason)

    async def _ask(self, deployment: Deployment, probe: Probe) -> str:
        """Why the deployment is not well; "" if it answers."""
        provider, limit_ms = deployment.provider, probe.timeout_ms
        timeouts = Timeouts(connect_ms=limit_ms, first_byte_ms=limit_ms, idle_ms=limit_ms, total_ms=limit_ms)
        via, path, body = _chat(deployment) if not probe.path else (None, probe.path, b"")
        call = self._pools.of(provider).begin(b"POST" if body else b"GET", path, provider.headers, body, timeouts)
        try:
            await call.start()
            answer = await read_all(call, ANSWER_MAX)
        except UpstreamError as error:
            return error.reason
        finally:
            call.close()
        read = via.read_answer(answer) if via is not None else None
        if read is not None and read.usage is not None:
            self._on_used(deployment.id, read.usage)
        if 200 <= call.status < 300 and read is None and call.headers.get(b"content-type", b"").lower().startswith(b"text/html"):
            return "it answered with a page"
        if 200 <= call.status < 300 and (read is None or (read.readable and read.failure is None)):
            return ""
        return _unwell(classify.failed(call.status, call.headers, read.failure if read is not None else None, False, provider.headers), call.status)


def _unwell(outcome: Outcome, status: int) -> str:
    """Whether an answer that is no success says that the deployment cannot serve."""
    lives = outcome.code == "upstream_rate_limited" or (not outcome.elsewhere and status != 404)
    return "" if lives else f"it answered {outcome.name}"


def _chat(deployment: Deployment) -> tuple[Any, bytes, bytes]:
    """A chat of one output token: its dialect, where it goes, the body."""
    provider, request = deployment.provider, openai_chat.read_request(ASKED)
    via: Any = openai_chat if provider.dialect == openai_chat.NAME else between(openai_chat.NAME, provider.dialect, request, "probe", 0)
    path = deployment.path(provider.dialect)
    assert path is not None
    quirks = (provider.stream_usage, provider.rejects, provider.renames, provider.thoughts)
    return via, path, via.write_request(request, Target(deployment.model, 1, deployment.cap_field, *quirks))
