"""The scenes of `demo`. Each says in a line what it shows, makes real requests, and returns what was seen and whether that is what it shows.

`SCENES` has them in their order, by the name under which one of them can be asked for.
"""

import json
import time
import urllib.error
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from rich.table import Table

from sluicegate.cli.console import console
from sluicegate.cli.stage import FAILURES, PAUSE_S, Stage

PROMPT = '[[mock {"completion": 200}]] Tell me about sluices.'  # the mock would say 200 tokens
HEARD_S = 3.0  # within which one gateway hears of another's cooldown; usually 0.3
PAIR_TOKENS = 300


class Seen(NamedTuple):
    """What came of a scene. held: it is what the scene shows."""

    text: str
    held: bool


class Scene(NamedTuple):
    """One of them. shows: in a line."""

    shows: str
    play: Callable[[Stage], Seen]


# -- budgets ------------------------------------------------------------------------------------------------------------------------------


def _streamed(stage: Stage) -> Seen:
    finish = _stream(stage, "sk-demo-roomy", 40)
    return Seen(f"a stream that ended with {finish}", finish == "length")


def _refused(stage: Stage) -> Seen:
    told = [_unary(stage, "sk-demo-tight", 60) for _ in range(2)]
    return Seen(f"{told[0]}, then {told[1]}", told == ["200", "429"])


def _truncated(stage: Stage) -> Seen:
    _unary(stage, "sk-demo-small", 40)
    finish = _stream(stage, "sk-demo-small", 400)
    left = _used(stage, ("sk-demo-small",))["key small output_tokens/day"]
    return Seen(f"the answer ended with {finish}, {left} tokens of the day are left", finish == "length" and left == 0)


def _usage(stage: Stage) -> Seen:
    left = _used(stage, ("sk-demo-roomy", "sk-demo-tight", "sk-demo-small", "sk-demo-pair"), show=True)
    return Seen("used, held and remaining of each limit, as GET /v1/usage tells them", len(left) == 5)


def _stream(stage: Stage, key: str, max_tokens: int) -> str:
    """Shows a stream as it comes. Returns why it ended."""
    finish = ""
    with stage.open("chat", key, max_tokens, PROMPT, stream=True) as answer:
        if "x-sluicegate-max-tokens" in answer.headers:
            console.print(f"x-sluicegate-max-tokens: {answer.headers['x-sluicegate-max-tokens']}", style="bold", highlight=False)
        for line in answer:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    console.print(choice["delta"].get("content") or "", end="", highlight=False, markup=False)
                    finish = choice.get("finish_reason") or finish
    console.print(f"\nfinish_reason: {finish}", style="bold", highlight=False)
    return finish


def _unary(stage: Stage, key: str, max_tokens: int) -> str:
    """Returns the status."""
    try:
        with stage.open("chat", key, max_tokens, PROMPT) as answer:
            usage = json.load(answer)["usage"]
        console.print(f"200: {usage['prompt_tokens']} + {usage['completion_tokens']} tokens", style="bold", highlight=False)
    except urllib.error.HTTPError as error:
        with error:
            told = json.load(error)["error"]
        console.print(f"{error.code} {told['code']}, retry-after {error.headers['retry-after']}", style="bold", highlight=False)
        console.print(told["message"], highlight=False, markup=False)
        return str(error.code)
    return "200"


def _used(stage: Stage, keys: tuple[str, ...], show: bool = False) -> dict[str, int]:
    """What remains of the limits of these keys, by name; as a table, if it is to be shown."""
    table, left = Table("key", "limit", "used", "held", "remaining", "resets"), {}
    for key in keys:
        usage = stage.call(f"{stage.gateways[0]}/v1/usage", key=key).body
        for limit in usage["limits"]:
            left[limit["name"]] = limit["remaining"]
            figures = [f"{limit[name]:,}" for name in ("used", "held", "remaining")]
            table.add_row(usage["key"], limit["name"], *figures, limit["resets_at"] or "")
        table.add_section()
    if show:
        console.print(table)
    return left


# -- providers that fail ------------------------------------------------------------------------------------------------------------------


def _outage(stage: Stage) -> Seen:
    first, second = "east/outage-1", "west/outage-2"
    stage.fault(model="outage-1", status=503, count=0)
    dead, opened_on = [], 0
    for number in range(1, FAILURES + 3):
        dead.append(stage.ask("outage"))
        if not opened_on and stage.breaker(first)["state"] == "open":
            opened_on = number
    calls = stage.calls("outage-1")
    stage.mend()
    time.sleep(PAUSE_S)
    probe = stage.ask("outage")
    for change in stage.changes("breaker", first):
        console.print(f"log: breaker {change}", style="dim", highlight=False, markup=False)
    after = stage.breaker(first)["state"]
    text = f"{len(dead)} times 200 from {second}; the breaker opened on failure {opened_on}, after {calls} calls (one retry each), and no more came"
    held = [answer.deployment for answer in dead] == [second] * len(dead) and (opened_on, calls) == (FAILURES, 2 * FAILURES)
    return Seen(f"{text}; one probe later it is {after}, and {probe.deployment} answers", held and (probe.deployment, after) == (first, "closed"))


def _limited(stage: Stage) -> Seen:
    answers = [stage.ask("limited") for _ in range(5)]
    by = [sum(answer.deployment == one for answer in answers) for one in ("east/limited-1", "west/limited-2")]
    return Seen(f"{by[0]} answers from the limited key, {by[1]} from the other, no 429", by == [3, 2])


def _retry_after(stage: Stage) -> Seen:
    stage.fault(model="patient-1", status=429, retry_after=1)
    waited = stage.ask("patient")
    stage.fault(model="patient-1", status=429, retry_after=30)
    moved = stage.ask("patient")
    cooldown = stage.breaker("east/patient-1")["cooldown"]
    text = f"after 1 s {waited.deployment} answered; with 30 s {moved.deployment} did at once ({moved.seconds * 1000:.0f} ms)"
    held = waited.deployment == "east/patient-1" and waited.seconds >= 1 and moved.deployment == "west/patient-2" and moved.seconds < 1
    return Seen(f"{text}, and the first is left alone for {cooldown['for_s'] if cooldown else 0:.0f} s", held and cooldown is not None)


def _context(stage: Stage) -> Seen:
    stage.fault(model="short", status=400, message="This model's maximum context length is 8192 tokens.")
    answer = stage.ask("short")
    return Seen(f"{answer.status} from the model {answer.headers.get('x-sluicegate-model')}", answer.headers.get("x-sluicegate-model") == "long")


def _chaos(stage: Stage) -> Seen:
    stage.admin("chaos", {"deployment": "east/chaos-1", "status": 503, "for": "30s"})
    during = stage.ask("chaos")
    stage.admin("chaos/east%2Fchaos-1", method="DELETE")
    after = stage.ask("chaos")
    calls = stage.calls("chaos-1")
    text = f"while it was made to fail {during.deployment} answered, afterwards {after.deployment}; calls of its provider: {calls}"
    return Seen(text, (during.deployment, after.deployment, calls) == ("west/chaos-2", "east/chaos-1", 1))


def _once(stage: Stage) -> Seen:
    before = stage.calls("demo")
    answers = [stage.ask("chat", gateway=gateway, headers={"idempotency-key": "demo-1"}) for gateway in (0, 1)]
    calls = stage.calls("demo") - before
    replayed = answers[1].headers.get("x-sluicegate-idempotent") == "replayed" and answers[1].body == answers[0].body
    text = f"the second gateway {'replayed the answer of the first' if replayed else 'answered otherwise'}; calls of the provider: {calls}"
    return Seen(text, replayed and calls == 1)


# -- two gateways, one ledger -------------------------------------------------------------------------------------------------------------


def _cap_of_two(stage: Stage) -> Seen:
    def one(number: int) -> str:
        answer = stage.ask("capped", "sk-demo-pair", gateway=number % 2, max_tokens=40, user="pair")
        return answer.code or "200"

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(one, range(16)))
    produced, refused = stage.produced("pair"), len(codes) - codes.count("200")
    text = f"{codes.count('200')} answered, {refused} refused; the provider produced {produced} of {PAIR_TOKENS} tokens"
    return Seen(text, 0 < produced <= PAIR_TOKENS and refused > 0)


def _cooldown_of_two(stage: Stage) -> Seen:
    stage.fault(model="shared-1", status=429, retry_after=30)
    first, began = stage.ask("shared"), time.monotonic()
    while stage.breaker("east/shared-1", 1)["cooldown"] is None and time.monotonic() < began + HEARD_S:
        time.sleep(0.02)
    heard_s = time.monotonic() - began
    second = stage.ask("shared", gateway=1)
    text = f"gateway A was told 429 and fell back; {heard_s:.1f} s later gateway B knew it, and asked {second.asked} alone"
    return Seen(text, first.asked == "east/shared-1:429,west/shared-2:200" and second.asked == "west/shared-2:200")


SCENES = {
    "stream": Scene("A streamed answer", _streamed),
    "refusal": Scene("A refusal: the second call does not fit into 100 tokens a minute", _refused),
    "truncation": Scene("A truncation: of the 100 output tokens for today's answers, 60 are there", _truncated),
    "outage": Scene("An outage: a provider answers 503, its breaker opens, another one answers, a probe closes it", _outage),
    "limited": Scene("A key with 3 requests a minute at its provider: the others are answered by the fallback", _limited),
    "retry-after": Scene("A 429: one second is waited for, thirty are not", _retry_after),
    "context": Scene("A prompt that is too long for a model goes to a larger one", _context),
    "chaos": Scene("Chaos: an administrator has a deployment fail, and clients do not notice", _chaos),
    "once": Scene("Idempotency-Key: sent again, to another gateway, a request is made once", _once),
    "cap": Scene("Two gateways, one ledger: 16 calls at once, and the cap of 300 output tokens holds over both", _cap_of_two),
    "cooldown": Scene("Two gateways, one ledger: what one is refused for, the other does not try", _cooldown_of_two),
    "usage": Scene("What was used", _usage),
}
