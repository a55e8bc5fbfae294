"""Commands of the Redis ledger that are no scripts: looking at keys, and wiping them. Each looks at one key after another, so figures may differ by a
moment.
"""

from typing import Any

from sluicegate.core.claims import HoldView
from sluicegate.ledger.link import pack, raw
from sluicegate.ledger.redis_scripts import read_hold
from sluicegate.ledger.topology import Caller
from sluicegate.ledger.views import hold_view

SCAN_COUNT = 1_000


async def command(link: Caller, *args: str | bytes | int) -> Any:
    return await link.call(raw(str(args[0])), pack(*args))


async def hashes(link: Caller, keys: list[str]) -> list[tuple[str, dict[bytes, bytes]]]:
    found = []
    for start in range(0, len(keys), SCAN_COUNT):
        some = keys[start : start + SCAN_COUNT]
        calls = [link.call(raw("HGETALL"), pack("HGETALL", key)) for key in some]
        for key, call in zip(some, calls, strict=True):
            fields = await call
            found.append((key, dict(zip(fields[::2], fields[1::2], strict=True))))
    return found


async def unlink(link: Caller, keys: set[str]) -> None:
    some = list(keys)
    for start in range(0, len(some), SCAN_COUNT):
        await command(link, "UNLINK", *some[start : start + SCAN_COUNT])


async def scan(link: Caller, pattern: str) -> set[str]:
    found: set[str] = set()
    cursor = b"0"
    while True:
        cursor, keys = await command(link, "SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        found.update(key.decode() for key in keys)
        if cursor == b"0":
            return found


async def holds(link: Caller, of_tree: str, after: tuple[int, str], limit: int) -> list[HoldView]:
    """The records of a tree's holds by expiry and id, behind one of these."""
    places: list[tuple[int, str]] = []
    offset = 0
    while len(places) < limit:  # of those that expire at the same time some are before the place
        some = await command(link, "ZRANGEBYSCORE", f"{of_tree}expiry", after[0], "+inf", "WITHSCORES", "LIMIT", offset, limit)
        places += [place for id_, ms in zip(some[::2], some[1::2], strict=True) if (place := (int(ms), id_.decode())) > after]
        if len(some) < 2 * limit:
            break
        offset += limit
    places = places[:limit]
    records = await command(link, "HMGET", f"{of_tree}holds", *(hold_id for _, hold_id in places)) if places else []
    found = zip(places, records, strict=True)
    return [hold_view(hold_id, read_hold(record), expires_ms) for (expires_ms, hold_id), record in found if record is not None]


async def hold(link: Caller, of_tree: str, hold_id: str) -> HoldView | None:
    """One of them, if it is there."""
    (record,) = await command(link, "HMGET", f"{of_tree}holds", hold_id)
    expires_ms = await command(link, "ZSCORE", f"{of_tree}expiry", hold_id)
    return hold_view(hold_id, read_hold(record), int(expires_ms)) if hold_id and record is not None and expires_ms is not None else None
