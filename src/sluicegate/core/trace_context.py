"""The context of a trace as requests carry it, `traceparent` and `tracestate`: https://www.w3.org/TR/trace-context/

Pure. What does not follow the letter of it is as if it had not been sent: a trace of our own begins, and nothing of it goes on.
"""

import re
from collections.abc import Mapping

import msgspec

PARENT, STATE = b"traceparent", b"tracestate"
STATE_BYTES_MAX = 512  # a longer one need not be passed on
MEMBERS_MAX = 32

# A later version may have more behind its first four fields, after another dash.
_PARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.{0,200})?")
_KEY = rb"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_MEMBER = re.compile(rb"(%b)=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]" % _KEY)


class Parent(msgspec.Struct, frozen=True):
    """Whose child a request is. state: for those behind us, as it came; empty if there is none."""

    trace_id: int
    span_id: int
    sampled: bool
    state: bytes = b""


def read(headers: Mapping[bytes, bytes]) -> Parent | None:
    """What a client says that its request belongs to. None: nothing, or nothing valid."""
    said = headers.get(PARENT)
    match = _PARENT.fullmatch(said) if said is not None else None
    if match is None or (match[1] == b"00" and match[5] is not None):
        return None
    state = headers.get(STATE, b"")
    return Parent(int(match[2], 16), int(match[3], 16), bool(int(match[4], 16) & 1), state if _valid(state) else b"")


def _valid(state: bytes) -> bool:
    """Whether it may be passed on: as a whole or not at all."""
    if len(state) > STATE_BYTES_MAX:
        return False
    members = [member for each in state.split(b",") if (member := each.strip(b" \t"))]
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in found if match is not None}
    return len(keys) == len(members) <= MEMBERS_MAX


def lines(trace_id: int, span_id: int, sampled: bool, state: bytes) -> bytes:
    """The header lines of a request that belongs to this span, each begun by CR LF."""
    line = b"\r\ntraceparent: 00-%032x-%016x-0%d" % (trace_id, span_id, sampled)
    return b"%b\r\ntracestate: %b" % (line, state) if state else line


def sampled(trace_id: int, share: float) -> bool:
    """Whether a trace is among that share of all: every gateway finds the same, and whoever keeps a smaller share keeps a part of ours."""
    return trace_id & 0xFFFF_FFFF_FFFF_FFFF < share * 2**64
