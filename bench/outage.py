"""A provider that fails and comes back, one call at a time, and what a client, the breaker and the log see of it.

    python bench/outage.py                     about ten seconds
    python bench/outage.py --fault silent      another way to be dead: refused, overloaded, html, error_in_200, cut, silent
    python bench/outage.py --stream --json out.json

A gateway with a primary and a secondary, both mocks. The primary is well, dies, is dead for two pauses of its breaker, comes back. Printed is every
call (when, its status, who answered, the breaker after it, how often the primary's mock was called by then, who was asked) with the lines that the
gateway's log had of the breaker meanwhile (from, to, reason). Then what must hold is checked; whether the dead one was called, its mock knows:

    every call is answered with 200; the breaker opens on exactly the 5th failure; while it is open nobody calls the dead one; after the pause one
    probe does, and its failure opens it for another pause; after the next pause one probe succeeds, the breaker is closed, the primary answers again

Exits 1 unless all of it held.
"""

import argparse
import http.client
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from overshoot import machine
from stand import Shape, Stand, call, set_fault, stats

FAILURES = 5
TOKENS = 8
KEY, ADMIN_KEY = "sk-bench", "sk-bench-admin-key"
FAULTS: dict[str, dict[str, Any]] = {
    "refused": {"status": 503},
    "overloaded": {"status": 529},
    "html": {"html": True},
    "error_in_200": {"error_in_200": 500},
    "cut": {"cut_after": 0, "ttft": 150},  # later than a kept connection whose peer was just closing it: that is asked anew, over another one
    "silent": {"stall_after": 0},
}
PRIMARY, SECONDARY = "primary/m", "secondary/m"
MOCK = ("--completion", str(TOKENS))


def shape(pause_s: float) -> Shape:
    """A primary, a secondary, and a breaker."""
    resilience = {"retries": 0, "breaker": {"failures": FAILURES, "pause": f"{pause_s * 1000:.0f}ms"}, "timeouts": {"first_byte": "300ms"}}
    return Shape(
        tenants={"bench": {"keys": [{"name": "key", "key": KEY, "limits": ["1000M tokens/day"]}]}},
        mocks={"primary": MOCK, "secondary": MOCK},
        models={"chat": {"deployments": [{"provider": "primary", "model": "m"}, {"provider": "secondary", "model": "m"}]}},
        more={"resilience": resilience, "log": {"access": "json"}, "admin": {"key": ADMIN_KEY}},
        replicas=1,
    )


class Outage:
    """The run: its calls and the breaker's lines, as they are seen from outside."""

    def __init__(self, stand: Stand, stream: bool) -> None:
        self.rows: list[dict[str, Any]] = []
        self._stand = stand
        self._stream = stream
        self._started = time.monotonic()
        self._earlier_calls = 0  # of the primary, before its mock was told to forget
        self._told = 0  # of the log's lines

    def call(self, phase: str) -> dict[str, Any]:
        """One call."""
        body = {"model": "chat", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": TOKENS, "stream": self._stream}
        connection = http.client.HTTPConnection("127.0.0.1", self._stand.replicas[0].port, timeout=20)
        at_s, sent = time.monotonic() - self._started, time.monotonic()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"authorization": f"Bearer {KEY}", "content-type": "application/json"})
        answer = connection.getresponse()
        whole = answer.read()
        connection.close()
        breaker = self._breaker()
        row = {
            "phase": phase,
            "at_s": round(at_s, 3),
            "ms": round((time.monotonic() - sent) * 1000, 1),
            "status": answer.status if not self._stream or whole.endswith(b"data: [DONE]\n\n") else 0,
            "deployment": answer.headers.get("x-sluicegate-deployment"),
            "attempts": answer.headers.get("x-sluicegate-attempts"),
            "fallback": answer.headers.get("x-sluicegate-deployment") != PRIMARY,
            "breaker": breaker["state"],
            "failures": breaker["failures"],
            "calls_of_primary": self.calls_of_primary(),
            "log": self._log(),
        }
        self.rows.append(row)
        return row

    def _breaker(self) -> dict[str, Any]:
        _, _, answer = call(f"{self._stand.urls[0]}/admin/v1/breakers", key=ADMIN_KEY)
        return next(each for each in json.loads(answer)["data"] if each["deployment"] == PRIMARY)

    def calls_of_primary(self) -> int:
        """As its mock counts them."""
        return self._earlier_calls + int(stats(self._stand.mocks["primary"].url)["total"]["requests"])

    def repair(self) -> None:
        """The primary answers again."""
        primary = self._stand.mocks["primary"]
        self._earlier_calls += int(stats(primary.url)["total"]["requests"])
        primary.reset()

    def _log(self) -> list[dict[str, str]]:
        """What the log has said of the primary's breaker since it was last looked at."""
        lines = [json.loads(line) for line in self._stand.replicas[0].logged.splitlines() if line.startswith("{")]
        found = [line for line in lines if line.get("event") == "breaker state" and line["deployment"] == PRIMARY]
        new, self._told = found[self._told :], len(found)
        return new


def run(outage: Outage, stand: Stand, fault: dict[str, Any], pause_s: float) -> None:
    """The script."""
    for _ in range(3):
        outage.call("well")
    set_fault(stand.mocks["primary"].url, count=0, **fault)
    for _ in range(FAILURES + 3):
        outage.call("dead")
    time.sleep(pause_s)
    for _ in range(3):
        outage.call("dead, after a pause")
    outage.repair()
    outage.call("back, in the pause")
    time.sleep(pause_s)
    for _ in range(3):
        outage.call("back, after it")


def checked(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """What must hold, and whether it did."""
    by_phase: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_phase.setdefault(row["phase"], []).append(row)
    well, dead, probed, back, after = by_phase.values()
    calls = [row["calls_of_primary"] for row in dead]
    first = well[-1]["calls_of_primary"]
    told = [(line["from"], line["to"]) for row in rows for line in row["log"]]
    return {
        "every call is answered with 200": all(row["status"] == 200 for row in rows),
        "without a failure nobody falls back": not any(row["fallback"] for row in well),
        f"the breaker opens on exactly failure {FAILURES}": [row["breaker"] for row in dead] == ["closed"] * (FAILURES - 1) + ["open"] * 4,
        "no further call reaches the dead one": calls == [first + min(n + 1, FAILURES) for n in range(len(dead))],
        "after the pause one probe does, and opens it again": [row["calls_of_primary"] for row in probed] == [first + FAILURES + 1] * 3
        and {row["breaker"] for row in probed} == {"open"},
        "in its pause nobody calls the one that is back": back[0]["calls_of_primary"] == first + FAILURES + 1 and back[0]["fallback"],
        "then one probe closes it": after[0]["breaker"] == "closed" and not after[0]["fallback"],
        "the primary answers again": [row["calls_of_primary"] for row in after] == [first + FAILURES + 2 + n for n in range(3)],
        "the log tells each change once": told
        == [("closed", "open"), ("open", "probing"), ("probing", "open"), ("open", "probing"), ("probing", "closed")],
    }


def shown(row: dict[str, Any]) -> str:
    """One line of the timeline."""
    fallback = "yes" if row["fallback"] else "no"
    state = f"{row['breaker']} ({row['failures']})" if row["breaker"] == "closed" else row["breaker"]
    return f"{row['at_s']:7.3f}  {row['status']}  {row['deployment']:12}  {fallback:8}  {state:11}  {row['calls_of_primary']:>7}  {row['attempts']}"


def main(arguments: list[str] | None = None) -> int:
    """Runs, prints the timeline and what held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="refused", help="how the primary is dead")
    parser.add_argument("--stream", action="store_true", help="the calls are streams")
    parser.add_argument("--pause", type=float, default=1.5, metavar="SECONDS", help="of the breaker")
    parser.add_argument("--json", type=Path, help="write all of it here, with the machine and the parameters")
    options = parser.parse_args(arguments)
    load_before = round(os.getloadavg()[0], 2)
    stand_shape = shape(options.pause)
    with Stand(stand_shape) as stand:
        outage = Outage(stand, options.stream)
        run(outage, stand, FAULTS[options.fault], options.pause)
    print("   time  status  deployment  fallback  breaker      called  asked")
    phase = ""
    for row in outage.rows:
        if row["phase"] != phase:
            phase = row["phase"]
            print(f"-- {phase}")
        print(shown(row))
        for line in row["log"]:
            print(f"         log: {line['event']}, {line['from']} -> {line['to']}: {line['reason']}")
    checks = checked(outage.rows)
    print()
    for what, held in checks.items():
        print(f"  {'yes' if held else 'NO '}  {what}")
    if options.json:
        parameters = {"fault": FAULTS[options.fault], "stream": options.stream, **stand_shape.more, "load_before": load_before}
        del parameters["log"], parameters["admin"]
        about = {"what": "outage", "date": time.strftime("%Y-%m-%d"), "machine": machine(), "parameters": parameters}
        report = {**about, "rows": outage.rows, "checks": checks}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
