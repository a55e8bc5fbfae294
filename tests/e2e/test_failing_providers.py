"""bench/outage.py and bench/limited_key.py themselves, small: what they check holds, and they would say so if it did not."""

import json
from pathlib import Path

import limited_key
import outage


def test_an_outage_is_seen_as_it_was(tmp_path: Path) -> None:
    """200 throughout, the breaker opens on the 5th failure, nobody calls the dead one but one probe per pause, and a second one closes it."""
    file = tmp_path / "report.json"
    assert outage.main(["--pause", "1", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert all(report["checks"].values()) and report["machine"]["cores"]
    rows = report["rows"]
    assert [line["to"] for row in rows for line in row["log"]] == ["open", "probing", "open", "probing", "closed"]
    rows[7]["calls_of_primary"] += 1  # had the mock been called once more
    assert not outage.checked(rows)["no further call reaches the dead one"]


def test_nobody_is_refused_what_a_fallback_could_answer(tmp_path: Path) -> None:
    """A key of 20 requests a minute, three times as many in a second: the rest is answered by the other, whether the limit is known or only told."""
    file = tmp_path / "report.json"
    assert limited_key.main(["--variants", "configured,openai", "--count", "60", "--seconds", "1", "--rpm", "20", "--json", str(file)]) == 0
    for row in json.loads(file.read_text())["rows"]:
        assert row["outcomes"] == {"ok": 60}
        assert 20 <= row["answered_by_paid"] <= 21 and row["answered_by_local"] == 60 - row["answered_by_paid"]
        assert row["ledger_minus_produced_tokens"] == 0
        assert row["refused_by_paid"] == 0 or row["variant"] == "openai"
