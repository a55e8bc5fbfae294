"""`plan`: what would happen to a request now, without sending it or taking anything from a limit.

The same steps as gateway.serve takes, against a copy of the counters: the states are read from the ledger and the rules are run on them here.
"""

import asyncio
import hashlib
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from sluicegate import app
from sluicegate.cli.console import DEFAULT_CONFIG, ConfigFile, EnvFile, InputError, console, loaded
from sluicegate.config.check import show_origin
from sluicegate.config.load import Loaded
from sluicegate.core import refusals, rules
from sluicegate.core.book import SLICES, Counter, amount
from sluicegate.core.claims import Admission, Ref, RefSet, Reply
from sluicegate.core.counters import name
from sluicegate.core.estimate import Figures, Learned
from sluicegate.core.limits import Unit, show_amount
from sluicegate.core.meter import may_have_audio
from sluicegate.core.plan import Template, fit, held_price
from sluicegate.core.prices import Price, input_cost_nano_usd
from sluicegate.core.refusals import Refusal
from sluicegate.core.tenants import Deployment, Key, Model, Policy
from sluicegate.dialects import openai_chat
from sluicegate.dialects.form import BadRequest, Request
from sluicegate.ledger.contract import Ledger
from sluicegate.ledger.memory import MemoryBook


class Claim(msgspec.Struct):
    """What the request would take from one limit. Dollars are nano-USD."""

    limit: str
    unit: Unit
    takes: int
    used: int
    held: int
    of: int


class Report(msgspec.Struct):
    """What would happen, in the order in which it is told."""

    key: str
    path: list[str]
    allowed: bool
    status: int = 200
    code: str = ""
    message: str = ""
    retry_after_s: int | None = None
    limited_by: str = ""
    deployments: list[str] = []
    deployment: str = ""  # that would be asked first, or refused last
    input_tokens: int = 0
    output_tokens: int = 0
    claims: list[Claim] = []
    grant: int = 0
    cost_at_most_nano_usd: int | None = None  # None: no price, or refused
    price: str = ""  # where the price is from, and of when
    affordable_output_tokens: int = 0


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The body of a chat request, as JSON; - for standard input.")],
    key: Annotated[str, typer.Option("--key", help="A key, or the id of one, such as acme/team-a/@laptop.")],
    config: ConfigFile = DEFAULT_CONFIG,
    env_file: EnvFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tell what would happen to a request now. Sends nothing, takes nothing."""
    found = loaded(config, env_file)
    body = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    report = asyncio.run(_report(found, _key(found.policy, key), _request(body)))
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


def _request(body: bytes) -> Request:
    try:
        return openai_chat.read_request(body)
    except BadRequest as error:
        raise InputError(f"{error.param or 'body'}: {error.message}") from None


async def _report(found: Loaded, key: Key, request: Request) -> Report:
    report = Report(key.id, [scope.name for scope in key.path], False)
    model = found.policy.models.get(request.model)
    if model is None or (key.models is not None and model.name not in key.models):
        report.status, report.code = 404, "model_not_found"
        report.message = f"The model {request.model!r} does not exist or this key may not use it."
        return report
    report.deployments = [deployment.id for deployment in model.deployments]
    ledger = app.ledger_of(found)
    await ledger.open()
    try:
        await _route(report, found.policy, ledger, key, model, request)
    except BadRequest as error:  # well formed, but nothing that could be held for it
        report.status, report.code, report.message = 400, error.code or "invalid_request", error.message
    finally:
        await ledger.close()
    return report


async def _route(report: Report, policy: Policy, ledger: Ledger, key: Key, model: Model, request: Request) -> None:
    """Tries the deployments in order as the gateway would, until one is allowed or the refusal holds everywhere."""
    learned = Learned()
    template = Template(key.tree, key.counters, model.name, key.priority)
    for deployment in model.deployments:
        learned.figures(request, model, deployment, key, policy.budget)  # names the shared tables that it needs
        learned.absorb(await ledger.learned(learned.increments()))
        figures = learned.figures(request, model, deployment, key, policy.budget)
        refusal = await _attempt(report, policy, ledger, template, deployment, figures, request)
        if report.allowed or (refusal is not None and refusal.counter.unit is not Unit.USD and refusal.counter.models is None):
            return


async def _attempt(
    report: Report, policy: Policy, ledger: Ledger, template: Template, deployment: Deployment, figures: Figures, request: Request
) -> Refusal | None:
    price, show = held_price(_price(deployment, request), figures), policy.budget.show_figures
    report.deployment = deployment.id
    report.price = show_origin(deployment.price_origin)
    report.input_tokens, report.output_tokens = figures.input_estimate, figures.aim
    if price is None and deployment.price is not None:
        report.status, report.code, report.message = 400, "invalid_request", f"{deployment.id} has no price for {request.tariff}."
        return None
    if template.needs_price and price is None and policy.unpriced == "refuse":
        report.status, report.code, report.message = 402, "price_unknown", f"A dollar limit applies and {deployment.id} has no price."
        return None
    refset = template.refset(ledger.now_ms())
    states = await ledger.peek(refset)
    misfit = fit(template, figures, price, request.cap is not None)
    if misfit is not None:
        report.claims = _claims(template, refset, states, template.amounts(figures, price, 1), figures.need)
        return _refused(report, refusals.too_large(misfit.counter, misfit.requested, misfit.fits_output_tokens, misfit.reserved, show))
    amounts = template.amounts(figures, price, 1)
    extends = request.stream and deployment.extend
    aim = figures.aim if extends else figures.want
    reply = _admit(refset, states, Admission("plan", refset, amounts, figures.need, aim, figures.want, policy.budget.hold_ttl_ms, "plan"))
    rate = price.dearest_output if price is not None else 0
    report.affordable_output_tokens = refusals.affordable_output_tokens(
        template.counters, refset, amounts, figures.want, states.states, aim=figures.aim, usd_rate=rate
    )
    report.grant = reply.g
    report.claims = _claims(template, refset, states, amounts, reply.g or figures.need)
    if reply.status != "granted":
        refusal = refusals.explain(
            template.counters, refset, amounts, figures.need, figures.want, reply, aim=figures.aim, usd_rate=rate, show_figures=show
        )
        return _refused(report, refusal)
    report.allowed, report.status, report.code, report.message = True, 200, "", ""
    if price is not None:
        report.cost_at_most_nano_usd = input_cost_nano_usd(price, figures.input_bound) + amount(0, rate, reply.g)
    return None


def _price(deployment: Deployment, request: Request) -> Price | None:
    return None if deployment.price is None else deployment.price.for_request(request.tariff, may_have_audio(request))


def _refused(report: Report, refusal: Refusal) -> Refusal:
    report.status, report.code, report.message = refusal.status, refusal.code, refusal.message
    report.retry_after_s, report.limited_by = refusal.retry_after_s, refusal.name
    report.affordable_output_tokens = refusal.affordable_output_tokens
    return refusal


def _admit(refset: RefSet, states: Reply, admission: Admission) -> Reply:
    """Runs the rules on a book that holds nothing but the given states."""
    book = MemoryBook("expired_held")
    book.now_ms = states.now_ms
    for ref, (first, second) in zip(refset.refs, states.states, strict=True):
        book.put_counter(ref.key, ref.kind, _counter(ref, first, second, states.now_ms), 0)
    return rules.admit(book, admission)


def _counter(ref: Ref, first: int, second: int, now_ms: int) -> Counter:
    """A counter that has the given state (Reply.states)."""
    if ref.kind == "b":
        return [first, 0, now_ms, 0]
    if ref.kind == "s":
        return {(now_ms + second) // ref.per_ms - SLICES - 1: first} if first else {}
    return [first, second]


def _claims(template: Template, refset: RefSet, states: Reply, amounts: tuple[int, ...], g: int) -> list[Claim]:
    rooms = dict(template.shadows)
    return [
        Claim(
            name(counter) + ("" if counter.enforced else " (shadow)"),
            counter.unit,
            amount(amounts[2 * i], amounts[2 * i + 1], g),
            states.states[i][0],
            states.states[i][1] if ref.kind in ("w", "o") else 0,
            ref.ceiling - ref.reserved if counter.enforced else rooms[i],
        )
        for i, (counter, ref) in enumerate(zip(template.counters, refset.refs, strict=True))
    ]


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
    line("deployments", ", then ".join(report.deployments) or "none")
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
    console.print(table)
