"""What goes into the scripts of the Redis ledger and comes out of them, and what their keys and records look like (docs/redis-keys.md)."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from sluicegate.core.book import Counter, Hold, HoldClaim, HoldState
from sluicegate.core.claims import CounterView, Kind, Ref, Swept
from sluicegate.ledger.link import Command, pack
from sluicegate.ledger.views import counter_view

NO_MARK = 2**53  # above every amount

encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode

# What the numbers and letters of the scripts stand for.
REPLIES: tuple[Literal["granted", "refused", "stale_window", "cancelled", "gone"], ...] = ("granted", "refused", "stale_window", "cancelled", "gone")
SETTLED: tuple[Literal["settled", "already", "late", "forced", "cancelled"], ...] = ("settled", "already", "late", "forced", "cancelled")
LOST = 5
STATES: dict[str, HoldState] = {"o": "open", "h": "expired_held", "s": "expired_seen", "f": "forced", "c": "cancelled"}
SCRIPTS = ("admit", "extend", "settle", "peek", "renew", "sweep", "warn", "fill", "announce", "learned")


def bare(values: Sequence[Any]) -> bytes:
    """Values in MessagePack, one behind the other without an array around them: Lua makes a list of them at its size, which costs half as much."""
    return encode(values)[bare_at(len(values)) :]


def bare_at(count: int) -> int:
    """Behind the head of an array of so many values."""
    return 1 if count < 16 else 3


def figures(refs: tuple[Ref, ...], expired_state: str, admitting: bool = False) -> bytes:
    """State of expired holds; the time when all windows run, end 0 for ever; then kind, ceiling, a, b of each counter.

    a, b: of a bucket gain and per_ms, of a sliding window the length of a slice, of a window its end and its first mark.
    An admission meets no marks, and a ceiling without what is reserved.
    """
    start_ms = max((ref.start_ms for ref in refs if ref.kind == "w"), default=0)
    end_ms = min((ref.end_ms for ref in refs if ref.kind == "w" and ref.end_ms), default=0)
    flat: list[str | int] = [expired_state, start_ms, end_ms]
    for ref in refs:
        mark = ref.marks[0] if ref.marks and not admitting else NO_MARK
        a, b = {"b": (ref.gain, ref.per_ms), "s": (ref.per_ms, 0), "w": (ref.end_ms, mark), "o": (0, 0)}[ref.kind]
        flat += (ref.kind, ref.ceiling - ref.reserved if admitting else ref.ceiling, a, b)
    return bare(flat)


def marks(refs: tuple[Ref, ...]) -> bytes:
    return encode([ref.marks if ref.kind == "w" else () for ref in refs])


def head(script: Command, keys: tuple[str, ...], arguments: tuple[bytes, ...], more: int) -> bytes:
    """An EVALSHA in the Redis protocol, up to the last `more` arguments."""
    whole = pack("EVALSHA", script.sha, len(keys), *keys, *arguments)
    count, _, rest = whole.partition(b"\r\n")
    return b"*%d\r\n%b" % (int(count[1:]) + more, rest)


def whole(head: bytes, last: bytes) -> bytes:
    """A command with its last argument."""
    return b"".join((head, b"$%d\r\n" % len(last), last, b"\r\n"))


def load_scripts() -> dict[str, Command]:
    """The scripts beside this module by verb. Scripts cannot import: a line `--@name` in one stands for the text of steps/name.lua."""
    folder = Path(__file__).parent / "lua"

    def read(name: str) -> bytes:
        return re.sub(rb"--@(\w+)\n", lambda step: read(f"steps/{step[1].decode()}"), (folder / f"{name}.lua").read_bytes())

    scripts = {}
    for verb in SCRIPTS:
        text = read(verb)
        scripts[verb] = Command(verb, lambda reply: reply, text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())
    return scripts


def escaped(text: str) -> str:
    """As it stands in a pattern for SCAN."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", text)


def read_swept(entry: list[Any]) -> Swept:
    hold_id, tag, g, seen, *charged = entry
    charges = tuple((key.decode(), n) for key, n in zip(charged[::2], charged[1::2], strict=True))
    return Swept(hold_id.decode(), tag.decode(), g, seen, charges)


def read_hold(record: bytes) -> Hold:
    version, state, g, seen, tag, *claims = decode(record)
    return Hold(version, STATES[state], g, seen, tag, [HoldClaim(*claims[at : at + 5]) for at in range(0, len(claims), 5)])


def view_counter(key: str, fields: dict[bytes, bytes]) -> CounterView:
    """A counter's kind shows in its fields (docs/redis-keys.md)."""
    state: Counter
    kind: Kind
    if b"d" in fields:
        kind, state = "b", [int(fields[b"d"]), int(fields[b"r"]), int(fields[b"t"])]
    elif b"u" in fields:
        kind, state = "w", [int(fields[b"u"]), int(fields[b"h"])]
    elif b"h" in fields:
        kind, state = "o", [0, int(fields[b"h"])]
    else:
        kind, state = "s", {int(slot): int(n) for slot, n in fields.items()}
    return counter_view(key, kind, state)
