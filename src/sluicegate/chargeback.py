"""Figures of usage as people and spreadsheets are shown them: the columns of a report, and a report as CSV."""

import csv
import io
import re
from collections.abc import Sequence

from sluicegate.records.queries import Figures, Group

COLUMNS = {
    "requests": "requests",
    "429s": "throttled",
    "errors": "errors",
    "cache hits": "cache_hits",
    "fallbacks": "fallbacks",
    "input tokens": "input_tokens",
    "cached": "cached_tokens",
    "output tokens": "output_tokens",
}
HEADS = (*COLUMNS, "USD", "saved USD", "p50 ms", "p95 ms")


def cells(figures: Figures) -> list[str]:
    """By HEADS. Money is exact."""
    money = _usd(figures.cost_nano_usd), _usd(figures.saved_nano_usd)
    return [*(str(getattr(figures, field)) for field in COLUMNS.values()), *money, _ms(figures.p50_us), _ms(figures.p95_us)]


def as_csv(names: Sequence[str], groups: Sequence[Group]) -> str:
    """One line a group; without the total, which whoever reads it can add up. names: what was grouped by."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([*names, *(re.sub(r"\W+", "_", head.lower()) for head in HEADS)])
    for group in groups:
        out.writerow([*(_cell(group.group[name]) for name in names), *cells(group.figures)])
    return text.getvalue()


def _usd(nano_usd: int) -> str:
    return f"{nano_usd // 10**9}.{nano_usd % 10**9:09d}"


def _ms(latency_us: int | None) -> str:
    return "" if latency_us is None else f"{latency_us / 1000:.0f}"


def _cell(text: str) -> str:
    """No spreadsheet takes it for a formula: labels are whatever a client has sent."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
