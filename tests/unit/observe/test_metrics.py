"""Metrics of one worker and of several: what is counted, that labels are bounded, and that dead or silent siblings do no harm."""

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluicegate.core.record import Attempt, Record
from sluicegate.core.usage import Usage
from sluicegate.observe import siblings as module
from sluicegate.observe.exposition import render
from sluicegate.observe.metrics import FAST_US, Counts, Histogram, Metrics
from sluicegate.observe.siblings import Siblings

MODELS = {"chat", "small"}


def record(**fields: object) -> Record:
    values: dict[str, object] = {"request_id": "r", "time_ms": 1, "model": "chat", "deployment": "a/b", "status": 200}
    return Record(**(values | fields))  # type: ignore[arg-type]


def served(**fields: object) -> Record:
    values: dict[str, object] = {
        "attempts": (Attempt("a/b", "200", 40_000, "yes"),),
        "input_tokens": 10,
        "output_tokens": 5,
        "cached_tokens": 4,
        "reasoning_tokens": 2,
        "cost_nano_usd": 1_500_000_000,
        "first_byte_us": 9_000,
        "overhead_us": 60,
    }
    return record(**(values | fields))


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Every sample of the text, by its name and its label values in order of their names."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found[(sample.name, *(value for _, value in sorted(sample.labels.items())))] = sample.value
    return found


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(MODELS.__contains__)


def shown(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return samples(render(metrics.counts()))


def test_requests_tokens_and_cost(metrics: Metrics) -> None:
    """A finished request counts by model, deployment and status, its tokens and cost by model."""
    metrics.observe(served())
    metrics.observe(served(deployment="c/d"))
    found = shown(metrics)
    assert found["sluicegate_requests_total", "a/b", "chat", "200"] == 1
    assert found["sluicegate_requests_total", "c/d", "chat", "200"] == 1
    assert [found["sluicegate_tokens_total", direction, "chat"] for direction in ("input", "output", "cached", "reasoning")] == [20, 10, 8, 4]
    assert found["sluicegate_cost_usd_total", "chat"] == 3.0


def test_refusals_truncations_and_overruns(metrics: Metrics) -> None:
    """Refusals count by reason, truncations by why, overruns of the meter by deployment."""
    metrics.observe(record(status=429, refusal="rate", deployment=""))
    metrics.observe(served(truncated="budget"))
    metrics.overrun("a/b")
    metrics.shadow_refusal("key tokens/day")
    metrics.limit_warning("team usd/month")
    found = shown(metrics)
    assert found["sluicegate_refusals_total", "rate"] == 1
    assert found["sluicegate_truncations_total", "budget"] == 1
    assert found["sluicegate_meter_overruns_total", "a/b"] == 1
    assert found["sluicegate_shadow_refusals_total", "key tokens/day"] == 1
    assert found["sluicegate_limit_warnings_total", "team usd/month"] == 1
    assert found["sluicegate_requests_total", "", "chat", "429"] == 1


def test_content_rules(metrics: Metrics) -> None:
    """Each rule that found something in a request counts, and workers' counts add up."""
    metrics.observe(served(rules="a, b"))
    metrics.observe(served(rules="a"))
    assert [shown(metrics)["sluicegate_content_rules_total", rule] for rule in ("a", "b")] == [2, 1]
    counts = metrics.counts()
    counts.add(msgspec.convert(msgspec.to_builtins(counts), Counts))
    assert counts.rules == {"a": 4, "b": 2}


def test_waits(metrics: Metrics) -> None:
    """Waits for a limit by how they ended, with their length; how many wait now; all workers together."""
    metrics.waited("served", 40_000)
    metrics.waited("served", 2_000)
    metrics.waited("full", 0)
    metrics.waiting = 3
    total = metrics.counts()
    total.add(metrics.counts())
    found = samples(render(total))
    assert found["sluicegate_wait_seconds_count", "served"] == 4
    assert found["sluicegate_wait_seconds_sum", "served"] == pytest.approx(0.084)
    assert found["sluicegate_wait_seconds_count", "full"] == 2
    assert found["sluicegate_waiting",] == 6


def test_latencies(metrics: Metrics) -> None:
    """Each attempt's time counts for its deployment, the first byte for the one that answered, overhead and ledger calls in microseconds."""
    metrics.observe(served(attempts=(Attempt("x/y", "429", 3_000), Attempt("a/b", "200", 40_000, "yes"))))
    metrics.ledger("admit", 80)
    metrics.ledger("admit", 25)
    found = shown(metrics)
    assert found["sluicegate_upstream_seconds_count", "x/y"] == found["sluicegate_upstream_seconds_count", "a/b"] == 1
    assert found["sluicegate_upstream_seconds_sum", "a/b"] == pytest.approx(0.04)
    assert found["sluicegate_upstream_first_byte_seconds_count", "a/b"] == 1
    assert found["sluicegate_upstream_first_byte_seconds_count", "x/y"] == 0
    assert found["sluicegate_overhead_seconds_bucket", "5e-05"] == 0 and found["sluicegate_overhead_seconds_bucket", "7.5e-05"] == 1
    assert [found["sluicegate_ledger_seconds_bucket", le, "admit"] for le in ("2.5e-05", "7.5e-05", "0.0001", "+Inf")] == [1, 1, 2, 2]
    assert found["sluicegate_ledger_seconds_sum", "admit"] == pytest.approx(105e-6)
    metrics.loop_lag(1_500)
    found = shown(metrics)
    assert found["sluicegate_loop_lag_seconds_bucket", "0.001"] == 0 and found["sluicegate_loop_lag_seconds_bucket", "0.0025"] == 1


def test_deployments_that_are_not_well_and_what_probes_used(metrics: Metrics) -> None:
    """How many workers see a deployment in which state, and the tokens of probes by direction: all workers together."""
    metrics.deployments = {"a/b\ncooling": 1, "c/d\ndown": 1}
    metrics.probed("a/b", Usage(input_tokens=9, output_tokens=1))
    metrics.probed("a/b", Usage(input_tokens=None, output_tokens=1))
    total = metrics.counts()
    other = Metrics(MODELS.__contains__)
    other.deployments = {"a/b\ncooling": 1, "a/b\nopen": 1}
    total.add(other.counts())
    found = samples(render(total))
    assert [found["sluicegate_deployment_workers", *labels] for labels in (("a/b", "cooling"), ("a/b", "open"), ("c/d", "down"))] == [2, 1, 1]
    assert [found["sluicegate_probe_tokens_total", "a/b", direction] for direction in ("input", "output")] == [9, 2]


def test_refused_requests_have_no_upstream_latency(metrics: Metrics) -> None:
    """What never reached an upstream does not make upstreams or overhead look fast."""
    metrics.observe(record(status=429, refusal="rate", overhead_us=5))
    found = shown(metrics)
    assert found["sluicegate_overhead_seconds_count",] == 0
    assert not any(key[0].startswith("sluicegate_upstream") for key in found)


def test_histogram_counts_every_value() -> None:
    """A bound counts as inside its bucket, and what is above all bounds is not lost."""
    histogram = Histogram.over(FAST_US)
    values = [0, 25, 26, 1_000_000, 1_000_001, 10**12]
    for value in values:
        histogram.observe(value)
    assert histogram.counts[:2] == [2, 1] and histogram.counts[-2:] == [1, 2]
    assert (sum(histogram.counts), histogram.sum_us) == (len(values), sum(values))


def test_gauges(metrics: Metrics) -> None:
    """What is going on now is read when it is shown."""
    metrics.in_flight, metrics.held_output_tokens, metrics.ledger_up = 3, 700, False
    metrics.journal = lambda: (4, 2)
    found = shown(metrics)
    assert found["sluicegate_in_flight",] == 3 and found["sluicegate_held_output_tokens",] == 700
    assert found["sluicegate_journal_backlog",] == 4 and found["sluicegate_journal_dropped_total",] == 2
    assert found["sluicegate_ledger_up",] == 0 and found["sluicegate_workers",] == 1


async def test_gauges_of_siblings_are_fresh(siblings: Callable[..., "asyncio.Future[Siblings]"]) -> None:
    """What is worked out at the scrape is worked out on every worker, not only on the one that is scraped."""
    first, second = Metrics(MODELS.__contains__), Metrics(MODELS.__contains__)
    worker = await siblings(first)
    await siblings(second)
    second.refresh = lambda: setattr(second, "in_flight", second.in_flight + 5)
    assert [samples(await worker.scrape())["sluicegate_in_flight",] for _ in range(2)] == [5, 10]


def test_names_from_clients_are_one_series(metrics: Metrics) -> None:
    """A thousand made-up models are one series, whatever they contain."""
    for number in range(1_000):
        metrics.observe(record(model=f'junk-{number}"\n\\', deployment="", status=404))
    assert [key for key in shown(metrics) if key[0] == "sluicegate_requests_total"] == [("sluicegate_requests_total", "", "unknown", "404")]
    assert shown(metrics)["sluicegate_requests_total", "", "unknown", "404"] == 1_000


def test_models_of_a_new_policy_are_known() -> None:
    """Which models are known is asked each time, so that a reload needs no new metrics."""
    names = {"chat"}
    metrics = Metrics(lambda model: model in names)
    metrics.observe(record(model="late"))
    metrics.counts()
    names.add("late")
    metrics.observe(record(model="late"))
    found = shown(metrics)
    assert found["sluicegate_requests_total", "a/b", "unknown", "200"] == found["sluicegate_requests_total", "a/b", "late", "200"] == 1


def test_tables_are_bounded() -> None:
    """Beyond the bound new series count under "other"; none is lost."""
    metrics = Metrics(lambda model: True, series_max=3)
    for number in range(10):
        metrics.observe(served(model=f"m{number}", attempts=(Attempt(f"d{number}", "200", 1),), deployment=f"d{number}", refusal=f"r{number}"))
        metrics.overrun(f"d{number}")
    found = shown(metrics)
    assert found["sluicegate_requests_total", "other", "other", "200"] == 7
    assert found["sluicegate_refusals_total", "other"] == found["sluicegate_meter_overruns_total", "other"] == 7
    assert found["sluicegate_upstream_seconds_count", "other"] == found["sluicegate_upstream_first_byte_seconds_count", "other"] == 7
    assert sum(value for key, value in found.items() if key[0] == "sluicegate_requests_total") == 10


# -- several workers ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a path short enough for sockets, wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
async def siblings(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., "asyncio.Future[Siblings]"]]:
    """Starts workers in one process, each with a pid of its own."""
    started: list[Siblings] = []

    async def start(metrics: Metrics) -> Siblings:
        monkeypatch.setattr(module.os, "getpid", lambda: 1_000 + len(started))
        worker = Siblings(directory, metrics)
        await worker.start()
        started.append(worker)
        return worker

    yield start  # type: ignore[misc]
    for worker in started:
        await worker.stop()


async def test_workers_add_up(siblings: Callable[..., "asyncio.Future[Siblings]"]) -> None:
    """Whichever worker is scraped, it answers for all; scraping changes nothing."""
    counts = []
    for number in range(3):
        metrics = Metrics(MODELS.__contains__)
        for _ in range(number + 1):
            metrics.observe(served(model="small" if number == 2 else "chat", truncated="budget"))
        metrics.in_flight, metrics.held_output_tokens, metrics.journal = number, 10, lambda: (1, 0)
        metrics.ledger("settle", 70)
        metrics.loop_lag(70)
        counts.append(await siblings(metrics))
    for worker in counts * 2:
        found = samples(await worker.scrape())
        assert found["sluicegate_requests_total", "a/b", "chat", "200"] == found["sluicegate_requests_total", "a/b", "small", "200"] == 3
        assert found["sluicegate_cost_usd_total", "chat"] == 4.5
        assert found["sluicegate_truncations_total", "budget"] == found["sluicegate_upstream_seconds_count", "a/b"] == 6
        assert found["sluicegate_overhead_seconds_bucket", "7.5e-05"] == 6
        assert found["sluicegate_loop_lag_seconds_sum",] == pytest.approx(210e-6)
        assert found["sluicegate_ledger_seconds_count", "settle"] == found["sluicegate_journal_backlog",] == 3
        assert found["sluicegate_in_flight",] == 3 and found["sluicegate_held_output_tokens",] == 30
        assert found["sluicegate_ledger_up",] == 1 and found["sluicegate_workers",] == 3


async def test_one_worker_without_its_ledger_shows(siblings: Callable[..., "asyncio.Future[Siblings]"]) -> None:
    """`ledger_up` is 0 as soon as one worker cannot reach the ledger."""
    first, second = Metrics(MODELS.__contains__), Metrics(MODELS.__contains__)
    worker = await siblings(first)
    await siblings(second)
    second.ledger_up = False
    assert samples(await worker.scrape())["sluicegate_ledger_up",] == 0


async def test_dead_sockets_are_removed(siblings: Callable[..., "asyncio.Future[Siblings]"], directory: Path) -> None:
    """The socket of a worker that died is ignored and removed."""
    worker = await siblings(Metrics(MODELS.__contains__))
    dead = directory / "worker-1.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    assert samples(await worker.scrape())["sluicegate_workers",] == 1
    assert not dead.exists()


async def test_silent_siblings_do_not_hold_up_a_scrape(
    siblings: Callable[..., "asyncio.Future[Siblings]"], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sibling that accepts and says nothing is left out after the bound, and its socket stays: it may only be slow."""
    monkeypatch.setattr(module, "ASK_S", 0.02)
    worker = await siblings(Metrics(MODELS.__contains__))
    silent = directory / "worker-1.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(silent))
        listener.listen()
        assert samples(await worker.scrape())["sluicegate_workers",] == 1
        assert silent.exists()


async def test_sibling_that_answers_nonsense(siblings: Callable[..., "asyncio.Future[Siblings]"], directory: Path) -> None:
    """An answer that cannot be read, of another release perhaps, is left out."""
    worker = await siblings(Metrics(MODELS.__contains__))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"nonsense")
        writer.close()

    server = await asyncio.start_unix_server(answer, directory / "worker-1.sock")
    assert samples(await worker.scrape())["sluicegate_workers",] == 1
    server.close()


async def test_stopped_worker_leaves_no_socket(directory: Path) -> None:
    """A worker that stops takes its socket with it."""
    worker = Siblings(directory, Metrics(MODELS.__contains__))
    await worker.start()
    assert len(os.listdir(directory)) == 1
    await worker.stop()
    assert os.listdir(directory) == []


async def test_path_too_long_for_a_socket(directory: Path) -> None:
    """A directory whose sockets could not be named is an error at the start that says so."""
    with pytest.raises(OSError, match="too long"):
        await Siblings(directory / ("x" * 120), Metrics(MODELS.__contains__)).start()


def test_histograms_of_other_bounds_are_left_out() -> None:
    """Workers of two releases may run side by side: what cannot be added is not."""
    ours, theirs = Histogram.over((1, 2)), Histogram.over((1, 3))
    theirs.observe(1)
    ours.add(theirs)
    assert sum(ours.counts) == 0


async def test_sockets_of_killed_workers_are_removed_at_the_next_start(tmp_path: Path) -> None:
    """A worker that was killed leaves its socket; whoever starts next removes it, and leaves those of the living."""
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "worker-1.sock"))
    dead.close()
    living = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), tmp_path / "worker-2.sock")
    siblings = Siblings(tmp_path, Metrics(lambda _model: True))
    await siblings.start()
    try:
        assert sorted(os.listdir(tmp_path)) == sorted([f"worker-{os.getpid()}.sock", "worker-2.sock"])
    finally:
        await siblings.stop()
        living.close()
