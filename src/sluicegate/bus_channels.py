"""Which channel a bus has: it goes with the ledger, which all workers share already."""

from sluicegate.bus import Channel
from sluicegate.bus_memory import MemoryChannel
from sluicegate.bus_sqlite import SqliteChannel


def channel_of(ledger: str, timeout_ms: int) -> Channel:
    """ledger: its URL. timeout_ms: of a call to a Redis."""
    if ledger.startswith("memory:"):
        return MemoryChannel()
    if ledger.startswith("sqlite:"):
        return SqliteChannel(ledger)
    from sluicegate.bus_redis import RedisChannel  # noqa: PLC0415  (redis-py costs a worker 10 MB)

    return RedisChannel(ledger, timeout_ms)
