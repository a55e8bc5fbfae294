"""`plan`: what would happen to a request now, without sending it or taking anything from a limit (planning.py).

With a configuration it is worked out here, against the ledger that it names; what only a running gateway knows is `unknown` then. With `--gateway` it
asks that one, whose admin key is in a variable.
"""

import asyncio
import hashlib
import os
import sys
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request as Asking
from urllib.request import urlopen

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from sluicegate import app
from sluicegate.cli.console import DEFAULT_CONFIG, ConfigFile, EnvFile, InputError, console, loaded
from sluicegate.config.load import Loaded
from sluicegate.core.estimate import Learned
from sluicegate.core.limits import Unit, show_amount
from sluicegate.core.plan import Plans
from sluicegate.core.tenants import Key, Policy
from sluicegate.dialects.form import BadRequest, Request
from sluicegate.planning import DIALECTS, UNKNOWN, Logged, Place, Planner, Report

PATIENCE_S = 10.0
SHOWN_MAX = 600  # characters of a text, among words


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The body of a request, as JSON; - for standard input.")],
    key: Annotated[str, typer.Option("--key", help="A key, or the id of one, such as acme/team-a/@laptop.")],
    config: ConfigFile = DEFAULT_CONFIG,
    env_file: EnvFile = None,
    dialect: Annotated[str, typer.Option("--dialect", help=f"What the request is: {', '.join(DIALECTS)}.")] = "chat",
    gateway: Annotated[str, typer.Option("--gateway", metavar="URL", help="Ask this gateway, in place of a configuration.")] = "",
    admin_key_env: Annotated[str, typer.Option("--admin-key-env", metavar="NAME", help="The variable with its admin key.")] = "SLUICEGATE_ADMIN_KEY",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tell what would happen to a request now. Sends nothing, takes nothing."""
    if dialect not in DIALECTS:
        raise InputError(f"--dialect: there is no {dialect!r}; there are {', '.join(DIALECTS)}")
    body = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    if gateway:
        report = _asked(gateway, admin_key_env, key, dialect, body)
    else:
        found = loaded(config, env_file)
        report = asyncio.run(_report(found, _key(found.policy, key), dialect, _request(dialect, body), len(body)))
    if as_json:
        console.print(msgspec.json.encode(report).decode(), markup=False, highlight=False, soft_wrap=True)
    else:
        _tell(report)


def _key(policy: Policy, given: str) -> Key:
    by_secret = policy.keys.get(hashlib.sha256(given.encode()).digest())
    found = by_secret or next((key for key in policy.keys.values() if key.id == given), None)
    if found is None:
        raise InputError("--key: neither a key of this configuration nor the id of one")
    return found


def _request(dialect: str, body: bytes) -> Request:
    try:
        read: Request = DIALECTS[dialect].read_request(body)
    except BadRequest as error:
        raise InputError(f"{error.param or 'body'}: {error.message}") from None
    return read


async def _report(found: Loaded, key: Key, dialect: str, request: Request, size: int) -> Report:
    ledger, learned = app.ledger_of(found), Learned()

    async def learn() -> None:
        learned.absorb(await ledger.learned(learned.increments()))

    await ledger.open()
    try:
        logged = Logged(found.config.log.prompts, found.config.log.patterns)
        return await Planner(found.policy, ledger, learned, Plans(), logged, learn).report(key, DIALECTS[dialect], request, size, {})
    finally:
        await ledger.close()


def _asked(gateway: str, admin_key_env: str, key: str, dialect: str, body: bytes) -> Report:
    """What a running gateway says. Only the key's id goes there, never a secret that can call."""
    if urlsplit(gateway).scheme not in ("http", "https"):
        raise InputError("--gateway: must be a URL such as http://127.0.0.1:8081")
    secret = os.environ.get(admin_key_env)
    if not secret:
        raise InputError(f"--admin-key-env: the environment variable {admin_key_env} is not set")
    if "/@" not in key:
        raise InputError("--key: must be the id of a key, such as acme/team-a/@laptop, where a gateway is asked")
    try:
        said = msgspec.json.encode({"key": key, "dialect": dialect, "request": msgspec.Raw(body)})
        msgspec.json.decode(said)
    except msgspec.DecodeError as error:
        raise InputError(f"body: is not JSON: {error}") from None
    except RecursionError:
        raise InputError("body: The body is nested too deeply.") from None
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    try:
        with urlopen(Asking(f"{gateway.rstrip('/')}/admin/v1/plan", said, headers), timeout=PATIENCE_S) as answer:
            return msgspec.json.decode(answer.read(), type=Report)
    except HTTPError as error:
        raise InputError(_refusal(error)) from None
    except (URLError, HTTPException, msgspec.ValidationError) as error:
        raise InputError(f"--gateway: {getattr(error, 'reason', error)}") from None


def _refusal(error: HTTPError) -> str:
    """What a gateway says is wrong, with the field."""
    try:
        told: Any = msgspec.json.decode(error.read())["error"]
        return f"{told['param'] or '--gateway'}: {told['message']}"
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"--gateway: answers {error.code}, not as a gateway does"


# -- in words -----------------------------------------------------------------------------------------------------------------------------


def _tell(report: Report) -> None:
    table = Table.grid("what", "how", padding=(0, 2))

    def line(what: str, how: str) -> None:
        table.add_row(what, Text(how))

    line("key", f"{report.key}  ({' > '.join(report.path)})")
    if report.allowed:
        line("allowed", "yes")
    else:
        after = f", retry after {report.retry_after_s} s" if report.retry_after_s is not None else ""
        line("allowed", f"no: {report.status} {report.code}{after}")
        line("", report.message)
    for rule in report.rules:
        line("rule", rule)
    if report.acted:
        line("", f"found: {', '.join(report.acted)}")
    if report.changed:
        line("", f"set otherwise: {', '.join(report.changed)}")
    line("cache", f"{report.cache}: {report.cache_why}" if report.cache_why else report.cache)
    line("deployments", ", then ".join(map(_place, report.deployments)) or "none")
    line("estimate", f"{report.input_tokens} + {report.output_tokens} tokens (input + output)")
    for claim in report.claims:
        used, held, of = (show_amount(claim.unit, n) for n in (claim.used, claim.held, claim.of))
        line("claim", f"{show_amount(claim.unit, claim.takes)} of {claim.limit}  (used {used}, held {held}, of {of})")
    line("grant", f"{report.grant} output tokens")
    if report.cost_at_most_nano_usd is not None:
        line("cost", f"at most {show_amount(Unit.USD, report.cost_at_most_nano_usd)}" + (f"  ({report.price})" if report.price else ""))
    else:
        line("cost", "not known: no price" if report.allowed else "none")
    line("affordable", f"{report.affordable_output_tokens} output tokens")
    if report.request:
        line("sent as", _short(report.request))
    line("logged as", _short(report.prompt))
    console.print(table)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}... ({len(text)} characters; all of it with --json)"


def _place(place: Place) -> str:
    """`openai/gpt-4o-mini (open, cools down for 12 s, degraded)`: what is the matter there, if anything is known."""
    matters = [place.breaker] if place.breaker not in ("closed", UNKNOWN) else []
    if place.cooldown_s is not None:
        matters.append(f"left alone for {place.cooldown_s:g} s")
    if place.health not in ("healthy", UNKNOWN):
        matters.append(place.health)
    if place.full:
        matters.append(f"full: {place.full}")
    return f"{place.id} ({', '.join(matters)})" if matters else place.id if place.breaker == UNKNOWN else f"{place.id} (well)"
