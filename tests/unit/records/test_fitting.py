"""Which records a question is about, as the records' database says it."""

import pytest

from sluicegate.core.record import Record
from sluicegate.records.fitting import fits
from sluicegate.records.queries import Question

RECORD = Record("r", 1000, "acme/team/@k", "chat", "up/small", status=429, refusal="rate", error="e", client_user="ann", tags="app=search,env=prod")
FITS = {
    "tenant": "acme",
    "key": "acme/team/@k",
    "scope": "acme/team",
    "model": "chat",
    "deployment": "up/small",
    "provider": "up",
    "label": "ann",
    "status": "429",
    "refusal": "rate",
    "error": "e",
    "tag:app": "search",
}


@pytest.mark.parametrize(("name", "value"), FITS.items())
def test_each_filter(name: str, value: str) -> None:
    """The value fits among others, and no beginning or part of it does."""
    assert fits(RECORD, Question(filters={name: ["other", value]}))
    assert not fits(RECORD, Question(filters={name: ["other"]}))
    assert not fits(RECORD, Question(filters={name: [value[:-1]]}))


def test_all_filters_must_fit() -> None:
    """One that does not is enough; none at all lets all pass that have a key."""
    assert fits(RECORD, Question(filters={name: [value] for name, value in FITS.items()}))
    assert not fits(RECORD, Question(filters={"key": ["acme/team/@k"], "model": ["other"]}))
    assert fits(RECORD, Question()) and not fits(Record("r", 1000), Question())


def test_its_time() -> None:
    """From the first moment on, up to the one that does not count any more."""
    assert [fits(RECORD, Question(start_ms=start, end_ms=end)) for start, end in ((1000, 1001), (1001, 0), (0, 1000))] == [True, False, False]


def test_keys_that_begin_alike_are_others() -> None:
    """A path ends at a slash."""
    assert not fits(RECORD, Question(filters={"tenant": ["acme/te"]})) and not fits(RECORD, Question(filters={"scope": ["acme/te"]}))
    assert fits(Record("r", 1, "acme/@a/@b"), Question(filters={"scope": ["acme/@a"]}))


def test_a_model_that_does_not_exist_is_none() -> None:
    """Its name is only a client's word."""
    unknown = Record("r", 1, "acme/@k", "nothing", error="model_not_found")
    assert not fits(unknown, Question(filters={"model": ["nothing"]}))


def test_a_name_that_is_none() -> None:
    """Is refused."""
    with pytest.raises(ValueError, match="filters"):
        fits(RECORD, Question(filters={"colour": ["red"]}))
