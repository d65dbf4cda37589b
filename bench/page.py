# SPDX-License-Identifier: Apache-2.0
"""Write tables of benchmark results into the README and the pages of docs/."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import report
from macro.workloads import MORE_IS_BETTER

QUIET_CPUS_MAX: Final = report.OTHERS_CPUS_MAX
PAGE: Final = report.BENCH.parent / "docs" / "performance.md"
README: Final = report.BENCH.parent / "README.md"
EQUAL_MAX: Final = 0.03
"""Ratios closer to 1 than this count as equal: two runs on one machine differ by more."""
HEADLINES: Final = (
    "messages_per_s", "pairs_per_s", "delivered_per_s", "anonymous_bytes", "idle_cpus",
    "disk_bytes", "recovery_s", "start_s", "catch_up_bytes_per_s", "slave_anonymous_bytes",
)  # fmt: skip


def markdown(result: report.Result) -> str:
    """Return the table for docs/performance.md."""
    names = report.rivals_of(result["samples"])
    rivals = "".join(f" {report.TITLES[name]} |" for name in names)
    lines = [
        f"| workload | figure | CometMQ | Java | ratio |{rivals} target | |",
        "|---|---|---|---|---|---|---|" + "---|" * len(names),
    ]
    title = ""
    for row in report.rows(result["samples"]):
        used = [value or 0 for value in (row.comet, row.java, *row.rivals)]
        if row.metric == "others_cpus" and max(used) <= QUIET_CPUS_MAX:
            continue
        name = "" if row.workload.title == title else row.workload.title
        title = row.workload.title
        label, unit, divisor = report.UNITS[row.metric]
        values = [report.cell(value, divisor).strip() for value in (row.comet, row.java)]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        verdicts = [report.verdict(row, target).rpartition(" ") for target in row.targets]
        bounds = ", ".join(bound for bound, _, _ in verdicts)
        words = ", ".join(dict.fromkeys(word.lower() for _, _, word in verdicts))
        others = _cells(row.rivals, divisor)
        lines.append(
            f"| {name} | {label} [{unit}] | {' | '.join(values)} | {ratio} |{others}"
            f" {bounds} | {words} |"
        )
    options = result["options"]
    return "\n".join(lines) + (
        f"\n\nThe last run was made on {result['measured_at'][:10]} on "
        f"{result['machine']['cpu']}, {options['rounds']} rounds of {options['seconds']:g} s."
    )


def _cells(values: Sequence[float | None], divisor: float) -> str:
    return "".join(
        f" {'' if value is None else report.cell(value, divisor).strip()} |" for value in values
    )


def summary(result: report.Result) -> str:
    """Return the table for the README; it includes workloads in which CometMQ is worse."""
    names = report.rivals_of(result["samples"])
    rivals = "".join(f" {report.TITLES[name]} |" for name in names)
    lines = [
        f"| workload | figure | CometMQ | Java | ratio | |{rivals}",
        "|---|---|---|---|---|---|" + "---|" * len(names),
    ]
    for row in report.rows(result["samples"]):
        if row.metric not in HEADLINES or row.ratio is None:
            continue
        label, unit, divisor = report.UNITS[row.metric]
        values = [report.cell(value, divisor).strip() for value in (row.comet, row.java)]
        others = _cells(row.rivals, divisor)
        lines.append(
            f"| {row.workload.title} | {label} [{unit}] | {' | '.join(values)} | {row.ratio:.2f} |"
            f" {_judged(row.metric, row.ratio)} |{others}"
        )
    return "\n".join(lines)


def _judged(metric: str, ratio: float) -> str:
    if abs(ratio - 1) <= EQUAL_MAX:
        return "equal"
    is_better = ratio > 1 if metric in MORE_IS_BETTER else ratio < 1
    return "better" if is_better else "worse"


def publish_table(result: report.Result, path: Path = PAGE, readme: Path = README) -> None:
    """Write a result's tables into docs/performance.md and the README."""
    replace(path, "make bench", markdown(result))
    replace(readme, "make bench", summary(result))


def replace(path: Path, command: str, text: str) -> None:
    """Replace the text between a command's two marks in a page."""
    start_mark, end_mark = (f"<!-- the table of {command}: {side} -->" for side in ("begin", "end"))
    before, start, rest = path.read_text(encoding="utf-8").partition(start_mark)
    _, end, after = rest.partition(end_mark)
    if not start or not end:
        raise ValueError(f"{path} lacks the marks {start_mark} and {end_mark}")
    path.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")
