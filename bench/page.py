# SPDX-License-Identifier: Apache-2.0
"""Puts a result into docs/performance.md."""

from pathlib import Path
from typing import Final

import report

PAGE: Final = report.BENCH.parent / "docs" / "performance.md"
TABLE_START: Final = "<!-- the table of make bench: begin -->"
TABLE_END: Final = "<!-- the table of make bench: end -->"


def markdown(result: report.Result) -> str:
    """The table of docs/performance.md."""
    lines = [
        "| workload | figure | CometMQ | Java | ratio | aim | |",
        "|---|---|---|---|---|---|---|",
    ]
    title = ""
    for row in report.rows(result["samples"]):
        if row.metric == "others_cpus":
            continue
        name = "" if row.workload.title == title else row.workload.title
        title = row.workload.title
        label, unit, divisor = report.UNITS[row.metric]
        values = [report.cell(value, divisor).strip() for value in (row.comet, row.java)]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        verdicts = [report.verdict(row, aim).rpartition(" ") for aim in row.aims]
        bounds = ", ".join(bound for bound, _, _ in verdicts)
        words = ", ".join(dict.fromkeys(word.lower() for _, _, word in verdicts))
        lines.append(
            f"| {name} | {label} [{unit}] | {' | '.join(values)} | {ratio} | {bounds} | {words} |"
        )
    options = result["options"]
    return "\n".join(lines) + (
        f"\n\nMeasured {result['measured_at'][:10]} on {result['machine']['cpu']}, "
        f"{options['rounds']} rounds of {options['seconds']:g} s; other programs used up to "
        f"{report.others_cpus(result):.2f} processors meanwhile."
    )


def publish_table(result: report.Result, path: Path = PAGE) -> None:
    """Put the table into its page, between the marks."""
    text = path.read_text(encoding="utf-8")
    before, start, rest = text.partition(TABLE_START)
    _, end, after = rest.partition(TABLE_END)
    if not start or not end:
        raise ValueError(f"{path} lacks the marks {TABLE_START} and {TABLE_END}")
    page = f"{before}{start}\n{markdown(result)}\n{end}{after}"
    path.write_text(page, encoding="utf-8")
