"""Plots of what bench/overshoot.py measured: overshoot and utilisation by concurrency, capped and extended beside the baseline.

    python bench/plot.py bench/results/overshoot-2026-11-30.json     writes overshoot.svg and utilisation.svg beside it, prints a table for the docs

Needs matplotlib (the dependency group `bench`).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot

STYLES = {  # mode -> colour (told apart by colour-blind readers, too), marker
    "capped": ("#0072b2", "o"),
    "extended": ("#009e73", "s"),
    "posthoc": ("#d55e00", "^"),
}
TITLES = {"base": "at a pace that the machine keeps", "starved": "faster than the machine can keep up"}


def series(rows: Sequence[dict[str, Any]], cell: str, mode: str, field: str) -> tuple[list[int], list[float]]:
    """A field of one cell and mode, by concurrency. Void rows are left out."""
    points = sorted((row["concurrency"], row[field]) for row in rows if row["cell"] == cell and row["mode"] == mode and not row["void"])
    return [concurrency for concurrency, _ in points], [value for _, value in points]


def figure(rows: Sequence[dict[str, Any]], field: str, label: str, file: Path, *, limit: float | None) -> None:
    """Both paces side by side."""
    cells = [cell for cell in TITLES if any(row["cell"] == cell for row in rows)]
    canvas, axes = pyplot.subplots(1, len(cells), figsize=(5.2 * len(cells), 3.6), sharey=True, squeeze=False)
    for axis, cell in zip(axes[0], cells, strict=True):
        for mode, (colour, marker) in STYLES.items():
            concurrency, values = series(rows, cell, mode, field)
            axis.plot(concurrency, values, color=colour, marker=marker, label=mode, clip_on=False)
        axis.set_xscale("log", base=2)
        axis.set_xticks([1, 4, 16, 64, 128], labels=["1", "4", "16", "64", "128"])
        axis.set_xlabel("streams per tenant")
        axis.set_title(TITLES[cell], fontsize=10)
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if limit is not None:
            axis.axhline(limit, color="black", linewidth=0.8, linestyle=":")
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel(label)
    axes[0][0].legend(frameon=False)
    canvas.tight_layout()
    canvas.savefig(file, format="svg", metadata={"Date": None})


def table(rows: Sequence[dict[str, Any]]) -> str:
    """All rows in Markdown. Dollars are micro-dollars there."""
    lines = [
        "| cell | mode | streams | overshoot, at most | used | ended early | refused as busy | ledger - truth | loop late, p99 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        dollars = "overshoot_max_nano_usd" in row
        suffix, unit, by = ("nano_usd", " µ$", 1000) if dollars else ("tokens", "", 1)
        over, least, most = (row[f"{name}_{suffix}"] / by for name in ("overshoot_max", "ledger_minus_truth_min", "ledger_minus_truth_max"))
        late = "void, " if row["void"] else ""
        lag_ms = row["loop_lag_p99_ms"]  # null: later than the histogram reaches
        late += "-" if row["mode"] == "posthoc" else "> 1 s" if lag_ms is None else f"{lag_ms:g} ms"
        lines.append(
            f"| {row['cell']} | {row['mode']} | {row['concurrency']} | {over:.0f}{unit} | {row['utilization_mean_pct']:.2f} %"
            f" | {row['truncated_mean']:.1f} | {row['busy_mean']:.1f} | {least:.0f} to {most:.0f}{unit} | {late} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.json.read_text())["rows"]
    home = options.json.parent
    pyplot.rcParams["svg.hashsalt"] = "sluicegate"  # the same figures give the same file
    figure(rows, "overshoot_max_tokens", "tokens beyond a budget of 20,000, at most", home / "overshoot.svg", limit=None)
    print(table(rows))
    figure(rows, "utilization_mean_pct", "budget used, %", home / "utilisation.svg", limit=100.0)


if __name__ == "__main__":
    main()
