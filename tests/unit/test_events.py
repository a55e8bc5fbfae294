"""Events: what they say of an entry, and which are asked for."""

import re
import time
from pathlib import Path
from typing import Any

import msgspec

from sluicegate import events
from sluicegate.core.happening import PATTERNS, TYPES, wanted
from sluicegate.events import Event
from sluicegate.records.audit import Entry
from sluicegate.webhooks import signature

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()


def test_an_event_says_what_its_entry_does() -> None:
    """Dollars as dollars, times as people read them, a path from the top; nothing of a change's values, and nothing that is empty."""
    entry = Entry(
        event_id="evt_1",
        time_ms=1_764_514_790_007,
        action="budget.exceeded",
        subject="acme/team/@k",
        tenant="acme/team",
        key_id="acme/team/@k",
        before={"a": 1},
        limit="key k usd/month",
        unit="usd",
        window="month",
        amount=5 * 10**9,
        percent=100,
        used=4_990_000_000,
        resets_ms=1_764_547_200_000,
    )
    assert msgspec.json.decode(msgspec.json.encode(events.of_entry(entry))) == {
        "event_id": "evt_1",
        "type": "budget.exceeded",
        "time": "2025-11-30T14:59:50.007Z",
        "subject": "acme/team/@k",
        "tenant": ["acme", "acme/team"],
        "key_id": "acme/team/@k",
        "limit": "key k usd/month",
        "unit": "usd",
        "window": "month",
        "threshold_percent": 100,
        "amount": 5.0,
        "used": 4.99,
        "held": 0.0,
        "resets_at": "2025-12-01T00:00:00Z",
    }


def test_a_change_has_no_figures() -> None:
    """Who did what to whom."""
    entry = Entry(event_id="evt_1", time_ms=0, action="key.blocked", actor="ops", subject="acme/@k", after={"blocked": True})
    assert set(msgspec.to_builtins(events.of_entry(entry))) == {"event_id", "type", "time", "subject", "actor"}


def test_a_configuration_is_known_by_its_versions() -> None:
    """Those of its text, before and after."""
    entry = Entry(event_id="evt_1", time_ms=0, action="config.reloaded", subject="f", before={"version": "a"}, after={"version": "b"})
    told = events.of_entry(entry)
    assert (told.before, told.after) == ("a", "b")


def test_types_are_asked_for_by_name_or_group() -> None:
    """Nothing asked for means all of them; a group is what stands before the dot, and no other."""
    assert [one for one in TYPES if wanted(one, ("budget.*", "key.created"))] == [
        "budget.warning",
        "budget.exceeded",
        "budget.reset",
        "key.created",
    ]
    assert all(wanted(one, ()) for one in TYPES)
    assert {"budget.*", "budget.reset", "chaos.*"} < set(PATTERNS)


def test_every_type_and_field_is_explained() -> None:
    """On the page on events: types by their names, or below the group that they are of."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    for type_ in TYPES:
        group, _, what = type_.partition(".")
        assert any(f"`{type_}`" in row or (f"`{group}." in row and f"`.{what}`" in row) for row in rows), type_
    assert [name for name in Event.__struct_fields__ if f"`{name}`" not in PAGE] == []


def test_the_check_of_a_signature_on_the_page_works() -> None:
    """It takes what is ours, and neither another body, nor another secret, nor what is old."""
    [code] = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def is_ours" in block]
    named: dict[str, Any] = {}
    exec(code, named)
    is_ours, now_s = named["is_ours"], int(time.time())
    made = signature(b"secret", now_s, b"{}").decode()
    assert is_ours(b"secret", made, b"{}")
    assert not is_ours(b"other", made, b"{}")
    assert not is_ours(b"secret", made, b"[]")
    assert not is_ours(b"secret", signature(b"secret", now_s - 301, b"{}").decode(), b"{}")
