"""Metrics: plain integers per worker, added over all workers at the scrape (siblings.py), which are then written for Prometheus (exposition.py).

`Metrics` is what one worker counts, cheap enough for every request.

Invariants: no label value comes from a client (models that are not configured count as "unknown"); a table holds at most SERIES_MAX rows, what
comes later counts under "other". Durations are microseconds, money nano-USD.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter

import msgspec

from sluicegate.core.record import Record
from sluicegate.core.usage import Usage

AT_ONCE = 64  # records counted together
SERIES_MAX = 1_000  # rows per table
UNKNOWN, OTHER = "unknown", "other"

# Upper bounds in microseconds.
FAST_US = (25, 50, 75, 100, 150, 200, 300, 500, 750, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000)
SLOW_US = (5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000, 300_000_000)


class Histogram(msgspec.Struct):
    """Counts per bucket, not cumulative; the last one is above all bounds."""

    bounds: tuple[int, ...]
    counts: list[int]
    sum_us: int = 0

    @classmethod
    def over(cls, bounds: tuple[int, ...]) -> "Histogram":
        return cls(bounds, [0] * (len(bounds) + 1))

    def observe(self, value_us: int) -> None:
        """Counts one duration."""
        self.counts[bisect_left(self.bounds, value_us)] += 1
        self.sum_us += value_us

    def observe_all(self, values_us: list[int]) -> None:
        """Counts several."""
        bounds, counts = self.bounds, self.counts
        for value_us in values_us:
            counts[bisect_left(bounds, value_us)] += 1
        self.sum_us += sum(values_us)

    def add(self, other: "Histogram") -> None:
        """Adds another worker's. One with other bounds (a release before or after ours) is left out."""
        if self.bounds == other.bounds:
            self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
            self.sum_us += other.sum_us


class Row(msgspec.Struct, array_like=True):
    """What requests of one model, deployment and status came to."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_nano_usd: int = 0


AMOUNTS = Row.__struct_fields__[1:]  # each is a record's field, too
_amounts = attrgetter(*AMOUNTS)


class Upstream(msgspec.Struct):
    """Latencies of one deployment."""

    first_byte: Histogram
    total: Histogram


def _upstream() -> Upstream:
    return Upstream(Histogram.over(SLOW_US), Histogram.over(SLOW_US))


class Counts(msgspec.Struct):
    """Every integer of one worker, or of several added. This is what goes over the socket."""

    rows: dict[str, Row] = {}  # by model, deployment and status, joined by a newline
    upstreams: dict[str, Upstream] = {}  # by deployment
    refusals: dict[str, int] = {}  # by reason
    truncations: dict[str, int] = {}  # by why
    overruns: dict[str, int] = {}  # by deployment: reported output above what the meter allows for
    shadow_refusals: dict[str, int] = {}  # by limit, without its owner's name
    limit_warnings: dict[str, int] = {}  # likewise
    waits: dict[str, Histogram] = {}  # by how they ended
    ledger: dict[str, Histogram] = {}  # by verb
    overhead: Histogram = msgspec.field(default_factory=lambda: Histogram.over(FAST_US))
    loop_lag: Histogram = msgspec.field(default_factory=lambda: Histogram.over(FAST_US))
    in_flight: int = 0
    waiting: int = 0
    held_output_tokens: int = 0
    journal_backlog: int = 0
    journal_dropped: int = 0
    ledger_down: int = 0  # workers that cannot reach it
    workers: int = 1
    deployments: dict[str, int] = {}  # workers, by deployment and what is the matter with it there, joined by a newline
    probe_tokens: dict[str, int] = {}  # by deployment and direction, likewise
    events: dict[str, int] = {}  # by type
    webhooks: dict[str, int] = {}  # tries, by what came of them
    spans: dict[str, int] = {}  # by what became of them
    cache_lookups: dict[str, int] = {}  # requests that came upon a cache: hit, miss, skip:<why>
    cache_answers: dict[str, int] = {}  # answers to those: kept, or why not
    cache: dict[str, int] = {}  # its bytes and entries; how many were evicted; nano-USD that hits would have cost
    request_log: dict[str, int] = {}  # lines that were lost, prompts that were left out of theirs
    rules: dict[str, int] = {}  # requests, by content rule that found something

    def add(self, other: "Counts") -> None:
        """Adds another worker's."""
        for key, row in other.rows.items():
            mine = self.rows.setdefault(key, Row())
            for name in Row.__struct_fields__:
                setattr(mine, name, getattr(mine, name) + getattr(row, name))
        for deployment, upstream in other.upstreams.items():
            known = self.upstreams.setdefault(deployment, _upstream())
            known.first_byte.add(upstream.first_byte)
            known.total.add(upstream.total)
        for verb, histogram in other.ledger.items():
            self.ledger.setdefault(verb, Histogram.over(FAST_US)).add(histogram)
        for outcome, histogram in other.waits.items():
            self.waits.setdefault(outcome, Histogram.over(SLOW_US)).add(histogram)
        for name in (
            "refusals",
            "truncations",
            "overruns",
            "shadow_refusals",
            "limit_warnings",
            "deployments",
            "probe_tokens",
            "events",
            "rules",
            "webhooks",
            "spans",
            "cache_lookups",
            "cache_answers",
            "cache",
            "request_log",
        ):
            table: dict[str, int] = getattr(self, name)
            for key, value in getattr(other, name).items():
                table[key] = table.get(key, 0) + value
        self.overhead.add(other.overhead)
        self.loop_lag.add(other.loop_lag)
        for name in ("in_flight", "waiting", "held_output_tokens", "journal_backlog", "journal_dropped", "ledger_down", "workers"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Metrics:
    """The integers of this worker.

    `in_flight`, `waiting`, `held_output_tokens`, `deployments` and `ledger_up` are set by whoever knows: as they change, or in `refresh`, which is
    called before they are read, also when a sibling asks. `journal` is asked then for (backlog, dropped), `spans` for what became of those,
    `cache` for its figures, `request_log` for what is missing in it.
    """

    def __init__(self, models: Callable[[str], bool], *, series_max: int = SERIES_MAX) -> None:
        """models: whether a model is configured, by the policy of the moment."""
        self._known = models
        self._series_max = series_max
        self._rows: dict[tuple[str, str, int], Row] = {}
        self._upstreams: dict[str, Upstream] = {}
        self._refusals: dict[str, int] = {}
        self._truncations: dict[str, int] = {}
        self._rules: dict[str, int] = {}
        self._overruns: dict[str, int] = {}
        self._shadow_refusals: dict[str, int] = {}
        self._limit_warnings: dict[str, int] = {}
        self._waits: dict[str, Histogram] = {}
        self._ledger: dict[str, Histogram] = {}
        self._overhead = Histogram.over(FAST_US)
        self._loop_lag = Histogram.over(FAST_US)
        self._uncounted: list[Record] = []
        self._probe_tokens: dict[str, int] = {}
        self._events: dict[str, int] = {}
        self._webhooks: dict[str, int] = {}
        self.deployments: dict[str, int] = {}
        self.in_flight = 0
        self.waiting = 0
        self.held_output_tokens = 0
        self.ledger_up = True
        self.journal: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.spans: Callable[[], dict[str, int]] = dict
        self.cache: Callable[[], dict[str, int]] = dict
        self.request_log: Callable[[], dict[str, int]] = dict
        self._cache_lookups: dict[str, int] = {}
        self._cache_answers: dict[str, int] = {}
        self.refresh: Callable[[], object] = lambda: None

    def observe(self, record: Record) -> None:
        """Counts one finished request: some at a time, since a loop over records costs a third of as many single calls."""
        self._uncounted.append(record)
        if len(self._uncounted) >= AT_ONCE:
            self._count_all()

    def _count_all(self) -> None:
        series: dict[tuple[str, str, int], list[Record]] = defaultdict(list)
        totals: dict[str, list[int]] = defaultdict(list)
        for record in self._uncounted:
            series[record.model, record.deployment, record.status].append(record)
            for attempt in record.attempts:
                totals[attempt.deployment].append(attempt.duration_us)
            if record.refusal or record.truncated or record.first_byte_us:
                self._count_rare(record)
        for key, records in series.items():
            row = self._rows.get(key) or self._new_row(records[0])
            row.requests += len(records)
            for name, amounts in zip(AMOUNTS, zip(*map(_amounts, records), strict=True), strict=True):
                setattr(row, name, getattr(row, name) + sum(amounts))
        self._overhead.observe_all([record.overhead_us for record in self._uncounted if record.attempts])
        for deployment, durations_us in totals.items():
            self._upstream(deployment).total.observe_all(durations_us)
        self._uncounted.clear()

    def _count_rare(self, record: Record) -> None:
        """What few records have."""
        if record.refusal:
            self._count(self._refusals, record.refusal)
        if record.truncated:
            self._count(self._truncations, record.truncated)
        if record.rules:
            for rule in record.rules.split(", "):
                self._count(self._rules, rule)
        if record.first_byte_us and record.attempts:
            self._upstream(record.deployment).first_byte.observe(record.first_byte_us)

    def ledger(self, verb: str, duration_us: int) -> None:
        """Counts one call of the ledger."""
        histogram = self._ledger.get(verb)
        if histogram is None:
            histogram = self._ledger[verb] = Histogram.over(FAST_US)
        histogram.observe(duration_us)

    def loop_lag(self, late_us: int) -> None:
        """Counts by how much a timer was late: so long everything else waited, too."""
        self._loop_lag.observe(late_us)

    def overrun(self, deployment: str) -> None:
        """An upstream reported more output than the meter's count explains."""
        self._count(self._overruns, deployment)

    def shadow_refusal(self, limit: str) -> None:
        """A limit in mode shadow would have refused a request."""
        self._count(self._shadow_refusals, limit)

    def limit_warning(self, limit: str) -> None:
        """What is used of a limit has reached one of its marks."""
        self._count(self._limit_warnings, limit)

    def event(self, type_: str) -> None:
        """An event was told."""
        self._count(self._events, type_)

    def webhook(self, outcome: str) -> None:
        """A webhook was called: delivered, failed, given_up."""
        self._count(self._webhooks, outcome)

    def cache_looked(self, told: str) -> None:
        """A request came upon a cache."""
        self._count(self._cache_lookups, told)

    def cache_kept(self, what: str) -> None:
        """An answer to one was kept, or was not for a reason."""
        self._count(self._cache_answers, what)

    def probed(self, deployment: str, usage: Usage) -> None:
        """A probe has used tokens, which no tenant is charged."""
        for direction, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            key = f"{deployment}\n{direction}"
            self._probe_tokens[key] = self._probe_tokens.get(key, 0) + (tokens or 0)

    def waited(self, outcome: str, waited_us: int) -> None:
        """A request's wait for a limit ended."""
        if outcome not in self._waits:
            self._waits[outcome] = Histogram.over(SLOW_US)
        self._waits[outcome].observe(waited_us)

    def counts(self) -> Counts:
        """The integers as they are now."""
        self._count_all()
        self.refresh()
        backlog, dropped = self.journal()
        return Counts(
            {f"{model}\n{deployment}\n{status}": row for (model, deployment, status), row in self._rows.items()},
            self._upstreams,
            self._refusals,
            self._truncations,
            self._overruns,
            self._shadow_refusals,
            self._limit_warnings,
            self._waits,
            self._ledger,
            self._overhead,
            self._loop_lag,
            self.in_flight,
            self.waiting,
            self.held_output_tokens,
            backlog,
            dropped,
            0 if self.ledger_up else 1,
            deployments=self.deployments,
            probe_tokens=self._probe_tokens,
            events=self._events,
            webhooks=self._webhooks,
            spans=self.spans(),
            cache_lookups=self._cache_lookups,
            cache_answers=self._cache_answers,
            cache=self.cache(),
            request_log=self.request_log(),
            rules=self._rules,
        )

    def _new_row(self, record: Record) -> Row:
        model = record.model if record.model == "" or self._known(record.model) else UNKNOWN
        key = (model, record.deployment, record.status)
        if key not in self._rows and len(self._rows) >= self._series_max:
            key = (OTHER, OTHER, record.status)
        return self._rows.setdefault(key, Row())

    def _upstream(self, deployment: str) -> Upstream:
        upstream = self._upstreams.get(deployment)
        if upstream is None:
            upstream = self._upstreams.setdefault(deployment if len(self._upstreams) < self._series_max else OTHER, _upstream())
        return upstream

    def _count(self, table: dict[str, int], key: str) -> None:
        if key not in table and len(table) >= self._series_max:
            key = OTHER
        table[key] = table.get(key, 0) + 1
