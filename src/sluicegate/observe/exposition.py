"""Counts in Prometheus' text format. Only here durations become seconds and money USD."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from sluicegate.observe.metrics import Counts, Histogram, Row


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
        yield _counter("sluicegate_content_rules", "Requests in or for which a content rule has found something.", "rule", counts.rules)
        yield _counter("sluicegate_meter_overruns", "Answers that were billed at more output than was metered.", "deployment", counts.overruns)
        shadow = "Requests that a limit in mode shadow would have refused."
        yield _counter("sluicegate_shadow_refusals", shadow, "limit", counts.shadow_refusals)
        yield _counter("sluicegate_limit_warnings", "Warning marks that were reached.", "limit", counts.limit_warnings)
        yield _counter("sluicegate_events", "Events that were told.", "type", counts.events)
        yield _counter("sluicegate_webhooks", "Events sent to webhooks: delivered, failed (to be tried again), given_up.", "outcome", counts.webhooks)
        traced = "Spans of traces: sent, dropped (no room to wait), failed (the receiver did not take them)."
        yield _counter("sluicegate_spans", traced, "outcome", counts.spans)
        yield from _cache(counts)
        missing = "What is missing in the request log: lines, and prompts that were left out of theirs."
        yield _counter("sluicegate_request_log_lost", missing, "what", counts.request_log)
        yield _histogram("sluicegate_wait_seconds", "Waits for a limit that was refusing (budget.queue).", "outcome", counts.waits)
        yield _histogram("sluicegate_ledger_seconds", "Time of ledger calls.", "verb", counts.ledger)
        firsts = {name: upstream.first_byte for name, upstream in counts.upstreams.items()}
        yield _histogram("sluicegate_upstream_first_byte_seconds", "Time until an upstream's first byte.", "deployment", firsts)
        totals = {name: upstream.total for name, upstream in counts.upstreams.items()}
        yield _histogram("sluicegate_upstream_seconds", "Time of upstream calls.", "deployment", totals)
        yield _histogram("sluicegate_overhead_seconds", "Time that the gateway itself added to a request.", "", {"": counts.overhead})
        lag = "By how much timers of the event loop were late, looked at ten times a second."
        yield _histogram("sluicegate_loop_lag_seconds", lag, "", {"": counts.loop_lag})
        seen = "Workers that leave a deployment alone (cooling, open, probing) or find it degraded or down."
        yield _by_two(GaugeMetricFamily("sluicegate_deployment_workers", seen, labels=("deployment", "state")), counts.deployments)
        spent = "Tokens of health probes, which no tenant is charged."
        yield _by_two(CounterMetricFamily("sluicegate_probe_tokens", spent, labels=("deployment", "direction")), counts.probe_tokens)
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


def _cache(counts: Counts) -> Iterator[Metric]:
    looked = "Requests for models with a cache: hit, miss, skip:<why>."
    yield _counter("sluicegate_cache_requests", looked, "outcome", counts.cache_lookups)
    yield _counter("sluicegate_cache_answers", "Answers to requests that were no hits: kept, or why not.", "outcome", counts.cache_answers)
    figures = counts.cache.get
    yield GaugeMetricFamily("sluicegate_cache_bytes", "What is kept, about; in Redis, what these workers have put there.", figures("bytes", 0))
    yield GaugeMetricFamily("sluicegate_cache_entries", "Answers that are kept, likewise.", figures("entries", 0))
    yield CounterMetricFamily("sluicegate_cache_evictions", "Answers that made room for others.", figures("evicted", 0))
    yield CounterMetricFamily("sluicegate_cache_saved_usd", "What hits would have cost.", figures("saved_nano_usd", 0) / 1e9)


def _by_two(family: CounterMetricFamily | GaugeMetricFamily, table: dict[str, int]) -> Metric:
    """A table by two labels."""
    for key, value in table.items():
        family.add_metric(key.split("\n", 1), value)
    return family


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
