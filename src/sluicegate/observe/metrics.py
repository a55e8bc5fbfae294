"""Metrics: plain integers per worker, added over all workers at the scrape.

`Metrics` is what one worker counts, cheap enough for every request. `Siblings` gives a worker's integers to the others over a Unix socket and
collects theirs, so that whichever worker is scraped answers for all. `render` writes them in Prometheus' text format.

Invariants: no label value comes from a client (models that are not configured count as "unknown"); a table holds at most SERIES_MAX rows, what
comes later counts under "other". Durations are microseconds, money nano-USD; only `render` converts.

How it fails: a sibling that does not answer within 200 ms is left out of that scrape; the socket of one that has died is removed. Counters of a
worker that has ended are gone with it, which Prometheus reads as a reset.
"""

import asyncio
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from sluicegate.core.record import Record

AT_ONCE = 64  # records counted together
SERIES_MAX = 1_000  # rows per table
ASK_S = 0.2
SOCKET_PATH_MAX = 100  # bytes; the kernel's limit is 104 on macOS and 108 on Linux
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
        for name in ("refusals", "truncations", "overruns", "shadow_refusals", "limit_warnings"):
            table: dict[str, int] = getattr(self, name)
            for key, value in getattr(other, name).items():
                table[key] = table.get(key, 0) + value
        self.overhead.add(other.overhead)
        self.loop_lag.add(other.loop_lag)
        for name in ("in_flight", "waiting", "held_output_tokens", "journal_backlog", "journal_dropped", "ledger_down", "workers"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Counts).decode


class Metrics:
    """The integers of this worker.

    `in_flight`, `waiting`, `held_output_tokens` and `ledger_up` are set by whoever knows: as they change, or in `refresh`, which is called before
    they are read, also when a sibling asks. `journal` is asked then for (backlog, dropped).
    """

    def __init__(self, models: Callable[[str], bool], *, series_max: int = SERIES_MAX) -> None:
        """models: whether a model is configured, by the policy of the moment."""
        self._known = models
        self._series_max = series_max
        self._rows: dict[tuple[str, str, int], Row] = {}
        self._upstreams: dict[str, Upstream] = {}
        self._refusals: dict[str, int] = {}
        self._truncations: dict[str, int] = {}
        self._overruns: dict[str, int] = {}
        self._shadow_refusals: dict[str, int] = {}
        self._limit_warnings: dict[str, int] = {}
        self._waits: dict[str, Histogram] = {}
        self._ledger: dict[str, Histogram] = {}
        self._overhead = Histogram.over(FAST_US)
        self._loop_lag = Histogram.over(FAST_US)
        self._uncounted: list[Record] = []
        self.in_flight = 0
        self.waiting = 0
        self.held_output_tokens = 0
        self.ledger_up = True
        self.journal: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.refresh: Callable[[], object] = lambda: None

    def observe(self, record: Record) -> None:
        """Counts one finished request: some at a time, since a loop over records costs a third of as many single calls."""
        self._uncounted.append(record)
        if len(self._uncounted) >= AT_ONCE:
            self._count_all()

    def _count_all(self) -> None:
        for record in self._uncounted:
            self._count_one(record)
        self._uncounted.clear()

    def _count_one(self, record: Record) -> None:
        row = self._rows.get((record.model, record.deployment, record.status))
        if row is None:
            row = self._new_row(record)
        row.requests += 1
        if record.input_tokens or record.output_tokens:
            row.input_tokens += record.input_tokens
            row.output_tokens += record.output_tokens
            row.cached_tokens += record.cached_tokens
            row.reasoning_tokens += record.reasoning_tokens
            row.cost_nano_usd += record.cost_nano_usd
        if record.refusal:
            self._count(self._refusals, record.refusal)
        if record.truncated:
            self._count(self._truncations, record.truncated)
        if record.attempts:
            self._overhead.observe(record.overhead_us)
            for attempt in record.attempts:
                self._upstream(attempt.deployment).total.observe(attempt.duration_us)
            if record.first_byte_us:
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


# -- all workers --------------------------------------------------------------------------------------------------------------------------


class Siblings:
    """This worker's socket `worker-<pid>.sock` in a directory that all workers share, and the way to the others'."""

    def __init__(self, directory: str | Path, metrics: Metrics) -> None:
        self._directory = Path(directory)
        self._metrics = metrics
        self._path = self._directory / f"worker-{os.getpid()}.sock"
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Serves our counts. Raises OSError if the directory cannot be used or its path is too long for a socket."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(os.fsencode(self._path)) > SOCKET_PATH_MAX:
            raise OSError(f"path too long for a Unix socket ({SOCKET_PATH_MAX} bytes): {self._path}")
        self._path.unlink(missing_ok=True)  # of a dead worker with our pid
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        await asyncio.gather(*map(_ask, self._others()))  # removes the sockets of workers that were killed

    async def stop(self) -> None:
        """Closes and removes our socket."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def scrape(self) -> bytes:
        """The text of all workers together."""
        total = _decode(_encode(self._metrics.counts()))  # a copy, to add to
        for counts in await asyncio.gather(*map(_ask, self._others())):
            if counts is not None:
                total.add(counts)
        return render(total)

    def _others(self) -> list[Path]:
        return [path for path in self._directory.glob("worker-*.sock") if path != self._path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_encode(self._metrics.counts()))
        writer.close()
        try:
            async with asyncio.timeout(ASK_S):
                await writer.wait_closed()
        except (OSError, TimeoutError):
            writer.transport.abort()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _ask(path: Path) -> Counts | None:
    """One sibling's counts; None if it does not answer in time. The socket of a dead one is removed."""
    writer = None
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_unix_connection(path)
            return _decode(await reader.read(-1))
    except ConnectionRefusedError:
        _remove(path)
    except (OSError, TimeoutError, msgspec.DecodeError):
        pass
    finally:
        if writer is not None:
            writer.close()
    return None


# -- Prometheus ---------------------------------------------------------------------------------------------------------------------------


def render(counts: Counts) -> bytes:
    """Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(counts))
    return generate_latest(registry)


class _Collector:
    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        yield from _requests(counts.rows)
        yield _counter("sluicegate_refusals", "Requests refused by a limit.", "reason", counts.refusals)
        yield _counter("sluicegate_truncations", "Streams ended before their end.", "why", counts.truncations)
        yield _counter("sluicegate_meter_overruns", "Answers that were billed at more output than was metered.", "deployment", counts.overruns)
        shadow = "Requests that a limit in mode shadow would have refused."
        yield _counter("sluicegate_shadow_refusals", shadow, "limit", counts.shadow_refusals)
        yield _counter("sluicegate_limit_warnings", "Warning marks that were reached.", "limit", counts.limit_warnings)
        yield _histogram("sluicegate_wait_seconds", "Waits for a limit that was refusing (budget.queue).", "outcome", counts.waits)
        yield _histogram("sluicegate_ledger_seconds", "Time of ledger calls.", "verb", counts.ledger)
        firsts = {name: upstream.first_byte for name, upstream in counts.upstreams.items()}
        yield _histogram("sluicegate_upstream_first_byte_seconds", "Time until an upstream's first byte.", "deployment", firsts)
        totals = {name: upstream.total for name, upstream in counts.upstreams.items()}
        yield _histogram("sluicegate_upstream_seconds", "Time of upstream calls.", "deployment", totals)
        yield _histogram("sluicegate_overhead_seconds", "Time that the gateway itself added to a request.", "", {"": counts.overhead})
        lag = "By how much timers of the event loop were late, looked at ten times a second."
        yield _histogram("sluicegate_loop_lag_seconds", lag, "", {"": counts.loop_lag})
        yield GaugeMetricFamily("sluicegate_in_flight", "Requests in progress.", counts.in_flight)
        yield GaugeMetricFamily("sluicegate_waiting", "Requests that wait for a limit (budget.queue).", counts.waiting)
        yield GaugeMetricFamily("sluicegate_held_output_tokens", "Output tokens granted to requests in progress.", counts.held_output_tokens)
        yield GaugeMetricFamily("sluicegate_journal_backlog", "Settlements that the ledger has not acknowledged.", counts.journal_backlog)
        yield CounterMetricFamily("sluicegate_journal_dropped", "Settlements lost because neither disk nor memory took them.", counts.journal_dropped)
        yield GaugeMetricFamily("sluicegate_ledger_up", "1 if every worker reaches the ledger.", 0 if counts.ledger_down else 1)
        yield GaugeMetricFamily("sluicegate_workers", "Workers that answered this scrape.", counts.workers)


def _requests(rows: dict[str, Row]) -> Iterator[Metric]:
    requests = CounterMetricFamily("sluicegate_requests", "Requests, by what the client was told.", labels=("model", "deployment", "status"))
    models: dict[str, Row] = {}
    for key, row in rows.items():
        requests.add_metric(key.split("\n", 2), row.requests)
        model = models.setdefault(key.partition("\n")[0], Row())
        for name in Row.__struct_fields__:
            setattr(model, name, getattr(model, name) + getattr(row, name))
    yield requests
    tokens = CounterMetricFamily("sluicegate_tokens", "Tokens charged; input includes cached, output reasoning.", labels=("direction", "model"))
    cost = CounterMetricFamily("sluicegate_cost_usd", "Cost charged.", labels=("model",))
    for name, row in models.items():
        for direction in ("input", "output", "cached", "reasoning"):
            tokens.add_metric((direction, name), getattr(row, f"{direction}_tokens"))
        cost.add_metric((name,), row.cost_nano_usd / 1e9)
    yield tokens
    yield cost


def _counter(name: str, text: str, label: str, table: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in table.items():
        family.add_metric((value,), count)
    return family


def _histogram(name: str, text: str, label: str, table: dict[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=(label,) if label else ())
    for value, histogram in table.items():
        buckets, total = [], 0
        for bound_us, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound_us is None else str(bound_us / 1e6), total))
        family.add_metric((value,) if label else (), buckets, histogram.sum_us / 1e6)
    return family
