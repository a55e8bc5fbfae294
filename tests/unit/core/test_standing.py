"""When a deployment may be called: cooldowns and the breaker."""

import pytest

from sluicegate.core.standing import Permit, Report, Standing


class Stage:
    """A deployment that opens after three failures in a row and pauses ten seconds."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, ...]] = []
        self.standing = Standing("p/m", 3, 10.0, lambda *change: self.changes.append(change))
        self.now_s = 0.0

    def permit(self) -> Permit | None:
        return self.standing.permit(self.now_s)

    def call(self, *reports: Report) -> None:
        for report in reports:
            permit = self.permit()
            assert permit is not None
            self.standing.report(permit, report, self.now_s)

    def open(self) -> None:
        self.call("failed", "failed", "failed")


def test_it_opens_on_exactly_the_nth_failure_in_a_row() -> None:
    """A success in between begins the count anew; what says nothing of the deployment does not."""
    stage = Stage()
    stage.call("failed", "failed", "ok", "failed", "void", "failed")
    assert stage.standing.state == "closed"
    stage.call("failed")
    assert stage.standing.state == "open"
    assert stage.permit() is None
    assert stage.changes == [("p/m", "breaker", "closed", "open", "3 failures in a row")]


def test_one_probe_after_the_pause() -> None:
    """Exactly one; its success closes the breaker, and everybody may call again."""
    stage = Stage()
    stage.open()
    stage.now_s = 9.9
    assert stage.permit() is None
    stage.now_s = 10.0
    probe = stage.permit()
    assert probe is not None and probe.probe
    assert stage.permit() is None
    stage.standing.report(probe, "ok", 11.0)
    assert stage.standing.state == "closed"
    first, second = stage.permit(), stage.permit()
    assert first is not None and second is not None and not first.probe
    stage.standing.report(first, "failed", 11.0)
    assert stage.standing.failures == 1  # counted from nothing


def test_a_probe_that_fails_opens_it_for_another_pause() -> None:
    """One failure is enough then."""
    stage = Stage()
    stage.open()
    stage.now_s = 10.0
    stage.call("failed")
    stage.now_s = 19.9
    assert stage.permit() is None
    stage.now_s = 20.0
    assert stage.permit() is not None
    assert [change[2:4] for change in stage.changes] == [("closed", "open"), ("open", "probing"), ("probing", "open"), ("open", "probing")]


def test_a_probe_that_says_nothing_returns_its_place() -> None:
    """Refused, cancelled, answered 400: the next request is the probe, at once (case 43)."""
    stage = Stage()
    stage.open()
    stage.now_s = 10.0
    stage.call("void")
    again = stage.permit()
    assert again is not None and again.probe


def test_a_probe_that_hangs_loses_its_place() -> None:
    """After a pause another one may try, and that the first fails at last changes nothing (case 43)."""
    stage = Stage()
    stage.open()
    stage.now_s = 10.0
    hung = stage.permit()
    assert hung is not None
    stage.now_s = 20.0
    second = stage.permit()
    assert second is not None and second.probe
    stage.standing.report(hung, "failed", 20.0)
    assert stage.standing.state == "probing"
    stage.standing.report(second, "ok", 20.0)
    assert stage.standing.state == "closed"


def test_a_probe_that_takes_longer_than_a_pause_still_closes_it() -> None:
    """Whole answers may: with a new probe each pause, and only the last one's word counting, a deployment that is well would stay out for ever."""
    stage = Stage()
    stage.open()
    stage.now_s = 10.0
    slow = stage.permit()
    assert slow is not None
    stage.now_s = 20.0
    second = stage.permit()
    assert second is not None
    stage.standing.report(slow, "ok", 25.0)
    assert (stage.standing.state, stage.standing.failures) == ("closed", 0)
    stage.standing.report(second, "failed", 26.0)  # of a time that is over
    assert (stage.standing.state, stage.standing.failures) == ("closed", 0)


@pytest.mark.parametrize("later", ["a probe failed", "it has closed and opened"])
def test_a_slow_probe_says_nothing_of_what_came_after_it(later: str) -> None:
    """What has been seen to fail since its call is not closed by its success."""
    stage = Stage()
    stage.open()
    stage.now_s = 10.0
    slow = stage.permit()
    stage.now_s = 20.0
    if later == "a probe failed":
        stage.call("failed")
    else:
        stage.call("ok")
        stage.open()
    stage.now_s = 30.0
    probe = stage.permit()
    assert slow is not None and probe is not None
    stage.standing.report(slow, "ok", 30.0)
    assert stage.standing.state == "probing"


def test_a_probe_whose_answer_dies_after_its_begin_opens_it_again() -> None:
    """That it began has let the others in; that it died takes it back, without as many failures as the first time."""
    stage = Stage()
    stage.open()
    stage.now_s = 10.0
    probe = stage.permit()
    assert probe is not None
    stage.standing.report(probe, "ok", 10.0)
    meanwhile = stage.permit()
    assert meanwhile is not None
    stage.standing.report(probe, "failed", 11.0)
    assert (stage.standing.state, stage.standing.ready_in_s(11.0)) == ("open", 10.0)
    stage.standing.report(meanwhile, "failed", 12.0)
    stage.standing.report(probe, "failed", 12.0)
    assert stage.standing.ready_in_s(11.0) == 10.0
    assert stage.changes[-1] == ("p/m", "breaker", "closed", "open", "the probe broke off")


def test_a_probe_that_breaks_off_long_after_it_closed_a_breaker_changes_nothing() -> None:
    """By then others are what the deployment is known by."""
    stage = Stage()
    stage.open()
    stage.now_s = 10.0
    probe = stage.permit()
    assert probe is not None
    stage.standing.report(probe, "ok", 10.0)
    stage.standing.report(probe, "failed", 20.0)
    assert (stage.standing.state, stage.standing.failures) == ("closed", 0)


@pytest.mark.parametrize("report", ["ok", "failed", "void"])
def test_reports_of_calls_from_before_change_nothing(report: Report) -> None:
    """A call that was under way when the breaker opened neither closes it nor extends its pause."""
    stage = Stage()
    early = stage.permit()
    assert early is not None
    stage.open()
    stage.now_s = 5.0
    stage.standing.report(early, report, 5.0)
    assert (stage.standing.state, stage.standing.ready_in_s(5.0)) == ("open", 5.0)


def test_of_two_deadlines_the_later_one_stands() -> None:
    """A shorter wait does not end a longer one early, a longer one extends it (case 45); one line tells of it."""
    stage = Stage()
    stage.standing.cool(60.0, 0.0, "429")
    stage.standing.cool(1.0, 0.0, "429")
    assert stage.standing.ready_in_s(0.0) == 60.0
    stage.standing.cool(70.0, 1.0, "429")
    assert stage.standing.ready_in_s(1.0) == 70.0
    stage.now_s = 70.9
    assert stage.permit() is None
    assert len(stage.changes) == 1
    stage.now_s = 71.0
    assert stage.permit() is not None
    assert stage.changes[1:] == [("p/m", "cooldown", "cooling", "none", "its time is over")]


def test_a_new_cooldown_follows_one_whose_end_nobody_saw() -> None:
    """Nobody asked in between; it is told as what it is, and its end once."""
    stage = Stage()
    stage.standing.cool(1.0, 0.0, "429")
    stage.standing.cool(1.0, 5.0, "402", False)
    stage.now_s = 6.0
    stage.call("ok", "ok")
    assert [change[2:] for change in stage.changes] == [
        ("none", "cooling", "429, for 1 s"),
        ("cooling", "cooling", "402, for 1 s"),
        ("cooling", "none", "its time is over"),
    ]


def test_other_figures_count_from_now_on() -> None:
    """A reload changes neither a count nor a pause that has begun."""
    stage = Stage()
    stage.call("failed", "failed")
    stage.standing.configure(2, 1.0)
    assert stage.standing.state == "closed"
    stage.call("failed")
    assert stage.standing.ready_in_s(0.0) == 1.0
    stage.standing.configure(2, 60.0)
    assert stage.standing.ready_in_s(0.0) == 1.0


def test_one_that_is_reset_begins_anew() -> None:
    """Open, probing or cooling: it may be called at once, and is counted from nothing; what was under way changes nothing."""
    for seconds in (0.0, 10.0):
        stage = Stage()
        stage.open()
        stage.now_s += seconds
        old = stage.permit()
        stage.standing.cool(60.0, stage.now_s, "429")
        stage.standing.reset("somebody said so")
        assert (stage.standing.state, stage.standing.failures, stage.standing.ready_in_s(stage.now_s)) == ("closed", 0, 0)
        assert stage.changes[-2:] == [
            ("p/m", "cooldown", "cooling", "none", "somebody said so"),
            ("p/m", "breaker", "open" if not seconds else "probing", "closed", "somebody said so"),
        ]
        if old is not None:
            stage.standing.report(old, "failed", stage.now_s)
        stage.call("failed", "failed")
        assert stage.standing.state == "closed"
        stage.call("failed")
        assert stage.standing.state == "open"


def test_a_reset_of_one_that_is_well_is_no_change() -> None:
    """Nothing is told of it."""
    stage = Stage()
    stage.standing.reset("somebody said so")
    assert stage.changes == [] and stage.permit() is not None
