"""Coverage of the modules on which the cap depends, from the data of `make cov`, and the table in docs/safety.md with it.

    python tests/safety_table.py coverage.json docs/safety.md

Prints what every module of the package has, line and branch; writes the table between the two markers of the page; exits 1 when a module of the
table is below the floor, or when a module of a part that is wholly in it is missing there: nothing that the cap depends on is left out by being new.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

FLOOR_PERCENT = 95.0
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"
WHOLE = ("core/", "ledger/", "records/")  # every module of these is in the table

# What each is there for, and what happens if it is wrong.
SAFETY = {
    "core/rules.py": ("what a ledger does: admit, extend, settle, renew, sweep", "a limit is passed, or a hold stays for ever"),
    "core/book.py": ("how a counter moves and what a hold holds", "amounts are lost or counted twice"),
    "core/claims.py": ("the values that pass between plan and ledger", "a claim means one thing here and another there"),
    "core/limits.py": ("reads limits as they are written", "another limit is kept than the one that was meant"),
    "core/windows.py": ("where windows begin and end, in any time zone", "a window is counted in twice, or never resets"),
    "core/counters.py": ("which limits share a counter, and its name", "two counters for one limit: twice the amount"),
    "core/tenants.py": ("who is below whom", "a request escapes a limit above it"),
    "core/plan.py": ("what a request claims of each limit", "less is held than can be used"),
    "core/estimate.py": ("bounds and estimates of input and output", "a prompt or an answer costs more than was held"),
    "core/learned.py": ("figures learned from reported usage", "a bound becomes smaller than what is billed"),
    "core/meter.py": ("counts what a stream has produced", "a cut stream is charged less than it produced"),
    "core/usage.py": ("reads reported usage; what an attempt is charged", "usage is missed, or read as another"),
    "core/prices.py": ("what tokens cost", "a dollar limit is passed"),
    "core/classify.py": ("whether an attempt was billed, and what comes next", "a billed attempt is taken for free"),
    "core/refusals.py": ("why a limit refused, and when to come back", "a client is sent away, or back, for the wrong reason"),
    "standings.py": ("which deployments may be called, and when again", "a broken provider is called for ever, or never again"),
    "core/standing.py": (
        "cooldowns and breakers: whether a deployment may be called",
        "one that is down is called again and again, or one that is well never",
    ),
    "core/waits.py": ("how long an upstream says to wait", "it is called too early, or never again"),
    "core/route.py": ("in which order deployments are tried", "one is called that may not be, or twice"),
    "core/health.py": ("how healthy a deployment is, by its probes", "one that is down goes on being called"),
    "core/deadlines.py": ("how long a client says that its request may take", "a request runs on that nobody waits for"),
    "core/hosted.py": ("calls and rounds of tools that a provider runs, and their fees", "fees and rounds are billed that are not held"),
    "core/efforts.py": ("how hard a model is to think, in words and tokens", "a ceiling on it is got around"),
    "core/record.py": ("the record of a request", "what was used is not known afterwards"),
    "core/request_ids.py": ("ids that tell the time", "two requests are taken for one"),
    "core/once.py": ("what is kept for an idempotency key", "a request is made and billed twice"),
    "core/happening.py": ("types of events, and how they are asked for", "nobody hears that a budget is used up"),
    "core/trace_context.py": ("the context of a trace, as requests carry it", "what a client sends goes on to a provider"),
    "core/cache.py": ("what the cache keeps of an answer", "an answer is told with another's figures"),
    "core/cache_key.py": ("which requests an answer is kept for", "a tenant reads another's answer"),
    "core/content_rules.py": ("the rules of a key and of all scopes above it", "a rule of a scope above is got around"),
    "core/patterns.py": ("patterns of content rules", "a search takes for ever, or finds nothing"),
    "core/folding.py": ("how a text reads where phrases are looked for", "a phrase is hidden by its spelling"),
    "core/phrases.py": ("looks for phrases in texts, whole or as they come", "a phrase goes out between two pieces"),
    "core/speech.py": ("the texts of an answer under rules", "a phrase goes out in a part that is not read"),
    "core/arguments.py": ("strings and numbers in the arguments of calls", "a phrase is hidden by how arguments are written"),
    "core/masks.py": ("the shapes of credentials", "a key stands in a log or an error"),
    "core/matching.py": ("texts without what rules find in them", "a secret stands in a log, or a request waits for a hostile text"),
    "core/escapes.py": ("texts without the escapes of JSON", "an escape hides a secret from the masks"),
    "core/personal.py": ("addresses, cards, accounts and telephones in prompts", "who somebody is stands in a log"),
    "core/redact.py": ("the prompt as a log may have it", "a prompt stands in a log that was to have none"),
    "core/labels.py": ("what clients call their requests", "a text of a client's keeps a batch out of the records"),
    "core/expired.py": ("who a hold belonged to that nobody settled", "what was charged at its expiry is in nobody's records"),
    "ledger/contract.py": ("what every ledger promises", "callers rely on what is not so"),
    "ledger/memory.py": ("the rules in memory: the specification", "tests compare with something wrong"),
    "ledger/memory_book.py": ("counters and holds in dicts", "tests compare with something wrong; a plan tells something else"),
    "ledger/sqlite.py": ("many calls in one transaction", "two workers decide on the same room"),
    "ledger/sqlite_rows.py": ("counters and holds as rows", "state is lost between two calls"),
    "ledger/redis.py": ("scripts, and what their answers mean", "a late grant is not cancelled; lost state is read as zero"),
    "ledger/redis_scripts.py": ("scripts and their arguments", "a script is told another amount than was claimed"),
    "ledger/redis_commands.py": ("looks at keys, and wipes them", "another tenant's counters are wiped"),
    "ledger/cache_redis.py": ("the cache in Redis", "a ledger's keys are pushed out, or a request waits for the cache"),
    "ledger/link.py": ("one pipelined connection, answers in order", "an answer is taken for that to another call"),
    "ledger/trees.py": ("which trees may be used", "a tree in doubt admits"),
    "ledger/topology.py": ("which server keeps which tree", "one tree is counted on two servers"),
    "ledger/discovery.py": ("finds the servers of a cluster, or the master", "a server that was replaced goes on being used"),
    "ledger/address.py": ("reads the ledger's address", "replicas count on different servers"),
    "ledger/views.py": ("counters and holds in words", "an operator is shown something else"),
    "dialects/openai_request.py": ("reads a request: cap, choices, all text", "something that costs is not held"),
    "dialects/openai_messages.py": ("counts what is in messages", "a prompt is larger than what was held"),
    "dialects/openai_body.py": ("reads answers and their usage", "output or usage is overlooked"),
    "dialects/openai_chat.py": ("reads and ends streams", "an end is taken for another"),
    "dialects/openai_chat_ask.py": ("asks a provider of chat for a client of another dialect", "another cap is sent than the one that is held"),
    "dialects/between.py": ("keeps what is metered with what is translated", "a translated answer is delivered and not counted"),
    "dialects/openai_inputs.py": ("counts prompts and inputs, texts and tokens", "one of several is not held"),
    "dialects/openai_completions_request.py": ("reads a completion's cap, prompts and choices", "an answer that costs is not held"),
    "dialects/openai_completions.py": ("reads and ends streams of completions", "output is overlooked"),
    "dialects/openai_responses_request.py": (
        "reads a request for a response: its cap, and what is kept elsewhere",
        "something that costs is not held",
    ),
    "dialects/openai_responses_items.py": ("what the provider will read of the items", "input is overlooked"),
    "dialects/openai_responses.py": ("reads and ends streams of responses", "output is overlooked, or delivered twice"),
    "dialects/ollama.py": ("reads Ollama's lines", "output or usage is overlooked"),
    "dialects/showing.py": ("which requests leave all output to be seen", "a client hides output from an extended hold"),
    "dialects/tariffs.py": ("refuses fields that cost more than the price", "dollars are spent that are not held"),
    "dialects/repeats.py": ("refuses names that are given twice", "what is sent is not what was counted"),
    "dialects/openai_embeddings.py": ("reads inputs and what they cost", "embeddings are free"),
    "dialects/anthropic_request.py": ("reads a request for messages: cap, all text, what bills beyond the cap", "something that costs is not held"),
    "dialects/anthropic_blocks.py": ("the shapes of what is in messages", "a block is taken for another that costs less"),
    "dialects/anthropic_body.py": ("reads messages and events as they come", "output or usage is overlooked"),
    "dialects/anthropic_messages.py": ("reads and ends streams of messages", "the start of a message is taken for its usage"),
    "dialects/usage.py": ("what reported counts mean, by wire format", "cached or reasoned tokens are charged twice, or not at all"),
    "dialects/sse.py": ("splits streams into events", "an event is lost, and its usage"),
    "providers.py": ("which field is the cap, what is visible, what an image costs", "an upstream does not obey the cap that it was sent"),
    "http/upstream.py": ("calls: whether the upstream may have seen one", "a call that is billed is sent twice, or taken for unsent"),
    "auth.py": ("from a header to a key", "somebody spends another's budget"),
    "gateway.py": ("the path of a request; the only place that settles", "a hold is not settled, or settled with the wrong figures"),
    "holding.py": ("takes holds and ends them", "a call is made without a hold"),
    "waiting.py": ("who waits for room, and who is next", "somebody waits for ever, or passes those before"),
    "trip.py": ("the state of one request; what an attempt is charged", "an attempt is charged less than it used"),
    "upkeep.py": ("renews holds, charges those that nobody settled", "a hold expires under a live worker"),
    "relay.py": ("forwards a stream as far as it is covered", "more is produced than is held"),
    "growth.py": ("extends a hold ahead of need, or stops the stream", "a stream runs on without cover"),
    "journal.py": ("settlements on disk before anything else", "what was used is forgotten in a crash"),
    "leftovers.py": ("finds the journals of dead workers", "a dead worker's usage is never charged"),
    "outbox.py": ("sends settlements until the ledger and the records have them", "a settlement is lost, or counted twice"),
    "recovery.py": ("notices lost state; nothing is admitted until it is verified or seeded", "lost counters are read as zero"),
    "recovery_steps.py": ("decides what comes next for a tree in doubt", "a state that was rolled back is believed"),
    "seeding.py": ("counters from the records of running windows", "a window begins anew with too little used"),
    "sqlite_file.py": ("notices files that were deleted or replaced", "two workers count in two files"),
    "records/store.py": ("usage on a database, added once; what workers agree on", "a lost counter cannot be restored"),
    "records/sums.py": ("what was used in a window, by scope", "a seeded counter has too little"),
    "batch.py": ("lines of the journal as the records get them", "usage is missing in the records, or counted twice"),
    "records/requests.py": ("a row for each request, once", "rows and usage differ"),
    "records/retention.py": ("what is dropped when nobody needs it", "a window that still runs is seeded with too little"),
    "records/figures.py": ("what is counted of requests", "a report is wrong"),
    "records/queries.py": ("what was used, by whom and at what", "a report is wrong"),
    "records/fitting.py": ("whether a record is one that is asked about", "a report is wrong"),
    "records/listing.py": ("requests one by one", "a request is not found"),
    "records/rollups.py": ("sums of rows that were imported", "sums that counters are seeded from are changed"),
    "records/adjustments.py": ("what operators add to what was used, or take from it", "it is taken twice, or forgotten when counters are seeded"),
    "records/directory.py": ("keys, tenants and prices that were made at run time", "a key that was revoked still spends"),
    "records/directory_rows.py": ("what the directory's tables have", "a change is stored that cannot be read again"),
    "records/idempotency.py": ("idempotency keys where the ledger is no Redis", "a request is made and billed twice"),
    "records/audit.py": ("who changed what", "a change of limits leaves no trace"),
    "records/aside.py": ("rows of earlier versions, brought into the new tables", "requests of before are not found"),
    "records/migrations/__init__.py": ("brings older tables up to date", "what was used is lost with the old tables"),
    "records/migrations/versions/version_2.py": ("the step to version 2", "what was used is lost with the old tables"),
    "records/migrations/versions/version_3.py": ("the step to version 3", "what was used is lost with the old tables"),
    "records/migrations/versions/version_4.py": ("the step to version 4", "what was used is lost with the old tables"),
    "records/migrations/versions/version_5.py": ("the step to version 5", "what was used is lost with the old tables"),
    "records/migrations/versions/version_6.py": ("the step to version 6", "what was used is lost with the old tables"),
    "records/rows.py": ("the rows of usage, trees and workers", "usage is filed under another"),
    "records/schema.py": ("tables", "usage cannot be stored"),
    "records/database.py": ("a connection in a thread, bounded in time", "recovery hangs, and nothing is admitted"),
    "records/sqlite.py": ("records in a file", "usage is lost with the process"),
    "records/postgresql.py": ("records in PostgreSQL", "usage is lost with the connection"),
}


class Covered(NamedTuple):
    """Of one module: statements and branches, and which of them were not taken."""

    lines: int
    lines_hit: int
    branches: int
    branches_hit: int
    missing: str

    @property
    def line_percent(self) -> float:
        return 100 * self.lines_hit / self.lines if self.lines else 100.0

    @property
    def branch_percent(self) -> float:
        return 100 * self.branches_hit / self.branches if self.branches else 100.0

    @property
    def low(self) -> bool:
        return min(self.line_percent, self.branch_percent) < FLOOR_PERCENT


def read(report: Any) -> dict[str, Covered]:
    """Coverage by module, from coverage.py's JSON."""
    found = {}
    for path, file in report["files"].items():
        summary = file["summary"]
        missed = [*map(str, file["missing_lines"]), *(f"{start}->{end}" for start, end in file["missing_branches"])]
        name = path.partition("sluicegate/")[2]
        found[name] = Covered(
            summary["num_statements"], summary["covered_lines"], summary["num_branches"], summary["covered_branches"], " ".join(missed)
        )
    return found


def table(covered: dict[str, Covered]) -> str:
    """The page's table."""
    rows = ["| module | what it is for | the risk if it is wrong | lines | branches |", "|---|---|---|---|---|"]
    for name, (role, risk) in SAFETY.items():
        if name in covered:
            found = covered[name]
            rows.append(f"| `{name}` | {role} | {risk} | {found.line_percent:.1f} % | {found.branch_percent:.1f} % |")
    return "\n".join(rows)


def main(report_file: str, page_file: str) -> int:
    """Prints, writes and judges."""
    covered = read(json.loads(Path(report_file).read_text()))
    for name, found in sorted(covered.items()):
        judged = ("below the floor: " + found.missing if found.low else "") if name in SAFETY else "not in the table"
        print(f"{name:32}{found.line_percent:7.1f} %{found.branch_percent:7.1f} %  {judged}")
    page = Path(page_file)
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{table(covered)}\n{END}{rest.partition(END)[2]}")
    low = [name for name in SAFETY if name not in covered or covered[name].low]
    new = [name for name in covered if name.startswith(WHOLE) and name not in SAFETY and covered[name].lines]
    for names, what in ((low, f"below {FLOOR_PERCENT:g} %, or not run"), (new, "not in the table of tests/safety_table.py")):
        if names:
            print(f"{what}: {', '.join(names)}", file=sys.stderr)
    return 1 if low or new else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
