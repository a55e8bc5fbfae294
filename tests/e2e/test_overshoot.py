"""bench/overshoot.py itself: a small cell shows that the cap holds, and that the benchmark would notice if it did not."""

import json
from pathlib import Path

import overshoot


def test_a_quick_cell_of_each_mode(tmp_path: Path) -> None:
    """Gateways stay inside every budget and use it up; the baseline, which charges afterwards, does not, with the same clients and mock."""
    file = tmp_path / "rows.json"
    assert overshoot.main(["--quick", "--cells", "base/*", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    rows = {row["mode"]: row for row in report["rows"]}
    assert set(rows) == {"capped", "extended", "posthoc"}
    for mode in ("capped", "extended"):
        assert (rows[mode]["overshoot_max_tokens"], rows[mode]["holds_left"], rows[mode]["held_left"]) == (0, 0, 0)
        assert rows[mode]["utilization_mean_pct"] > 95 and rows[mode]["ledger_minus_truth_min_tokens"] >= 0
    assert rows["capped"]["ledger_minus_truth_max_tokens"] == 0
    assert rows["posthoc"]["overshoot_max_tokens"] > 0
    assert report["machine"]["cores"] and report["parameters"]["seed"] == 1
