"""Ids of requests: `req_`, when it came (milliseconds, 11 hex digits), `_`, what tells it from all others.

The records keep requests in the order of time, so an id that tells the time finds its row without an index of ids. Older ids do not tell it.
"""

from functools import lru_cache

_TIME = len("0123456789a")


def request_id(time_ms: int, worker: str, number: int) -> str:
    """worker: an id that no other has had. number: how many requests it has had."""
    return f"{_start(time_ms, worker)}{number:x}"


@lru_cache(1)  # requests that come at once come in one millisecond
def _start(time_ms: int, worker: str) -> str:
    return f"req_{time_ms:011x}_{worker}"


def time_ms_of(request_id: str) -> int | None:
    """When it came; None if the id does not tell."""
    start, _, rest = request_id.partition("_")
    time, _, rest = rest.partition("_")
    if start != "req" or not rest or len(time) != _TIME:
        return None
    try:
        return int(time, 16)
    except ValueError:
        return None
