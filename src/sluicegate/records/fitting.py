"""Whether a request's record is one that a question asks about: for logs of requests, which no database looks through. As in queries.conditions."""

from collections.abc import Sequence

from sluicegate.core.labels import read_tags
from sluicegate.core.record import Record
from sluicegate.records.queries import TAG, Question
from sluicegate.records.requests import UNKNOWN_MODEL


def fits(record: Record, question: Question) -> bool:
    """It has a key, came in time, and every filter fits. Raises ValueError for a filter that is none."""
    if not record.key_id or record.time_ms < question.start_ms or (question.end_ms and record.time_ms >= question.end_ms):
        return False
    return all(_fits(record, name, values) for name, values in question.filters.items())


def _fits(record: Record, name: str, values: Sequence[str]) -> bool:
    if name in ("tenant", "provider", "scope"):
        path = record.deployment if name == "provider" else record.key_id
        return path.startswith(tuple(f"{value}/" for value in values)) or (name == "scope" and path in values)
    if name.startswith(TAG):
        return read_tags(record.tags).get(name.removeprefix(TAG)) in values
    exactly = {
        "key": record.key_id,
        "model": "" if record.error == UNKNOWN_MODEL else record.model,
        "deployment": record.deployment,
        "label": record.client_user,
        "status": str(record.status),
        "refusal": record.refusal,
        "error": record.error,
    }
    if name not in exactly:
        raise ValueError(f"filters: {name!r} is none")
    return exactly[name] in values
