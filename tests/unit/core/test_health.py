"""How healthy a deployment is, by the results of its probes."""

from sluicegate.core.health import RECENT, Condition


class Patient:
    """A deployment that is slow beyond 1,000 ms and down after 3 failures."""

    def __init__(self) -> None:
        self.condition = Condition()

    def noted(self, *results: str | int) -> str:
        """Each is a latency, or why it failed. What it is in the end."""
        for result in results:
            failure, latency_ms = (result, 0) if isinstance(result, str) else ("", result)
            self.condition.note(failure, latency_ms, 1000, 3)
        return self.condition.state


def test_it_is_unknown_until_a_probe_was_made() -> None:
    """And healthy after the first that is answered in time, with its latency."""
    patient = Patient()
    assert (patient.condition.state, patient.condition.latency_ms) == ("unknown", None)
    assert patient.noted(100) == "healthy"
    assert (patient.condition.latency_ms, patient.condition.reason) == (100, "probes are answered in 100 ms")


def test_failures_degrade_it_and_so_many_in_a_row_bring_it_down() -> None:
    """One success in between begins the count anew; the reason says how many and why."""
    patient = Patient()
    assert [patient.noted("timeout"), patient.noted("timeout"), patient.noted(10)] == ["degraded"] * 3
    assert [patient.noted("connect"), patient.noted("connect"), patient.noted("it answered 503")] == ["degraded", "degraded", "down"]
    assert patient.condition.reason == "3 probes in a row failed: it answered 503"


def test_it_is_well_again_when_none_of_the_last_has_failed() -> None:
    """A deployment that was down is degraded first."""
    patient = Patient()
    assert patient.noted("timeout", "timeout", "timeout") == "down"
    assert [patient.noted(10) for _ in range(RECENT)] == ["degraded"] * (RECENT - 1) + ["healthy"]
    assert patient.noted("timeout") == "degraded"


def test_slow_is_judged_on_the_average() -> None:
    """One late answer among quick ones is nothing; several are, and it takes several quick ones to make up for them."""
    patient = Patient()
    assert patient.noted(100, 2000) == "healthy"
    assert patient.noted(2000, 2000) == "degraded"
    assert patient.condition.reason.startswith("probes are answered in 1")
    assert patient.noted(100, 100) == "healthy"


def test_failures_do_not_count_for_the_latency() -> None:
    """What was not answered took no time that says anything."""
    patient = Patient()
    patient.noted(100, "timeout", "timeout")
    assert patient.condition.latency_ms == 100
