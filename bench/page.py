# SPDX-License-Identifier: Apache-2.0
"""Write tables of benchmark results into the README and the pages of docs/."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import report
from macro.workloads import LOADS, MIXED, MORE_IS_BETTER, REPLICATED

QUIET_CPUS_MAX: Final = report.OTHERS_CPUS_MAX
PAGE: Final = report.BENCH.parent / "docs" / "performance.md"
README: Final = report.BENCH.parent / "README.md"
EQUAL_MAX: Final = 0.03
"""Ratios closer to 1 than this count as equal: two runs on one machine differ by more."""
HEADLINES: Final = (
    "messages_per_s", "pairs_per_s", "delivered_per_s", "anonymous_bytes", "idle_cpus",
    "disk_bytes", "recovery_s", "start_s", "catch_up_bytes_per_s", "slave_anonymous_bytes",
)  # fmt: skip


COLUMNS: Final = (
    ("messages/s", ("messages_per_s", "pairs_per_s")), ("p50 [us]", ("p50_us",)),
    ("p99 [us]", ("p99_us",)), ("p99.9 [us]", ("p999_us",)), ("p99.99 [us]", ("p9999_us",)),
    ("CPU [s per million]", ("cpu_seconds_per_million",)),
)  # fmt: skip
"""The columns of the first table of docs/performance.md, and the metric in each."""


def markdown(result: report.Result) -> str:
    """Return the tables for docs/performance.md: rates and latencies, and all other figures."""
    servers = [
        "CometMQ",
        "Java",
        *(report.TITLES[it] for it in report.rivals_of(result["samples"])),
    ]
    metrics = {metric: index for index, (_, names) in enumerate(COLUMNS) for metric in names}
    loads: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for row in report.rows(result["samples"]):
        if row.metric in metrics:
            cells = loads.setdefault(row.workload.title, [""] * len(COLUMNS))
            cells[metrics[row.metric]] = _of_all_servers(row)
        elif _is_told(row):
            others.setdefault(row.workload.title, []).append(_other_figure(row))
    options = result["options"]
    made = (
        f"Measured on {result['measured_at'][:10]} on {result['machine']['cpu']}, "
        f"{_rounds(options['rounds'])} of {options['seconds']:g} s."
    )
    lines = [
        f"Each cell: {' · '.join(servers)}, and a target if it was missed.",
        "",
        f"| workload | {' | '.join(title for title, _ in COLUMNS)} |",
        "|---|" + "---|" * len(COLUMNS),
        *(f"| {title} | {' | '.join(cells)} |" for title, cells in loads.items()),
        "",
        "| workload | other figures: CometMQ · Java (target) |",
        "|---|---|",
        *(f"| {title} | {'; '.join(figures)} |" for title, figures in others.items()),
        "",
        made,
    ]
    return "\n".join(lines)


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _is_told(row: report.Row) -> bool:
    """Return whether the second table shows a figure.

    It omits the processor use of other programs if this is low, and the shares of the plain rate
    that have no target, because the README shows these.
    """
    if row.metric == "others_cpus":
        return _is_disturbed(row)
    return row.metric != "share_of_plain" or bool(row.targets)


def _is_disturbed(row: report.Row) -> bool:
    """Return whether other programs took so much of the machine that a row is not conclusive."""
    return max(row.comet or 0, row.java or 0) > QUIET_CPUS_MAX


def _of_all_servers(row: report.Row) -> str:
    divisor = report.UNITS[row.metric][2]
    values = [value for value in (row.comet, row.java, *row.rivals) if value is not None]
    verdicts = [report.verdict(row, target) for target in row.targets]
    missed = "".join(
        f" (missed {bound})"
        for bound, _, word in (verdict.rpartition(" ") for verdict in verdicts)
        if word == "MISSED"
    )
    return " · ".join(report.cell(value, divisor).strip() for value in values) + missed


def _other_figure(row: report.Row) -> str:
    label, unit, divisor = report.UNITS[row.metric]
    values = [report.cell(it, divisor).strip() for it in (row.comet, row.java) if it is not None]
    verdicts = [report.verdict(row, target).rpartition(" ") for target in row.targets]
    targets = ", ".join(f"{word.lower()} {bound}" for bound, _, word in verdicts)
    return f"{label} {' · '.join(values)} {unit}" + (f" ({targets})" if targets else "")


def _cells(values: Sequence[float | None], divisor: float) -> str:
    return "".join(
        f" {'' if value is None else report.cell(value, divisor).strip()} |" for value in values
    )


CONTROLS: Final = {"others_cpus", "p99_growth_of_copy"}
"""Metrics of a run's conditions, not of a server."""
CONFIGURATION: Final = (
    "with the native path, ASYNC_FLUSH, IPv4 and {headers} headers, without accounts and TLS"
)
"""The configuration of the servers in all rows that name no other."""
EXCEPTION: Final = "; rows that name another configuration have it on both servers"


def summary(result: report.Result) -> str:
    """Return the table for the README: the headlines, and every figure in which CometMQ is worse.

    Each row names the servers that are ahead of CometMQ, and the last line counts the losses. A
    workload is named in its first row only.
    """
    names = report.rivals_of(result["samples"])
    rivals = "".join(f" {report.TITLES[name]} |" for name in names)
    lines = [
        f"| workload | figure | CometMQ | Java | ratio | behind |{rivals}",
        "|---|---|---|---|---|---|" + "---|" * len(names),
    ]
    measured = [
        row for row in report.rows(result["samples"])
        if row.ratio is not None and row.metric not in CONTROLS
    ]  # fmt: skip
    title = ""
    for row in measured:
        verdict, ahead = _judged(row.metric, row.ratio or 1), _ahead(row, names)
        if not _is_headline(row) and verdict != "worse":
            continue
        label, unit, divisor = report.UNITS[row.metric]
        values = [report.cell(value, divisor).strip() for value in (row.comet, row.java)]
        behind = ["Java"] * (verdict == "worse") + [report.TITLES[name] for name in ahead]
        shown = "" if row.workload.title == title else row.workload.title
        title = row.workload.title
        lines.append(
            f"| {shown} | {label} [{unit}] | {' | '.join(values)} | {row.ratio:.2f} |"
            f" {', '.join(behind)} |{_cells(row.rivals, divisor)}"
        )
    parts = ["\n".join(lines), _tally(measured, names, result), secured(measured)]
    return "\n\n".join(part for part in parts if part)


def _is_headline(row: report.Row) -> bool:
    """Return whether the README's first table shows a row even if CometMQ is not worse.

    The second one has the rates of other configurations. The mixed load has a fixed rate, so its
    headline is the tail.
    """
    if row.workload == MIXED:
        return row.metric == "p999_us"
    return row.metric in HEADLINES and not getattr(row.workload, "plain", "")


def secured(rows: Sequence[report.Row]) -> str:
    """Return the table that shows each configuration beside the default; empty without one.

    A row is a workload; its cells are CometMQ's rates, how many times Java's they are, and which
    part of the plain rate.
    """
    rates = {row.workload.name: row for row in rows if row.metric == "messages_per_s"}
    loads = [load for load in (*LOADS, *REPLICATED) if load.plain and load.name in rates]
    plain = [name for name in dict.fromkeys(load.plain for load in loads) if name in rates]
    setups = list(dict.fromkeys(load.setup for load in loads))
    if not plain:
        return ""
    lines = [
        "| messages/s | plain | " + " | ".join(setup.title for setup in setups) + " |",
        "|---|---|" + "---|" * len(setups),
    ]
    for name in plain:
        names = {load.setup: load.name for load in loads if load.plain == name}
        cells = [_rate(rates.get(names.get(setup, "")), rates[name]) for setup in setups]
        title = rates[name].workload.title
        lines.append(f"| {title} | {_rate(rates[name], None)} | {' | '.join(cells)} |")
    caption = "The same workloads in other configurations: the rate, how many times Java's it is"
    return f"{caption}, and which part of the plain rate:\n\n" + "\n".join(lines)


def _rate(row: report.Row | None, plain: report.Row | None) -> str:
    if row is None or not row.comet:
        return ""
    share = f", {row.comet / plain.comet:.0%}" if plain and plain.comet else ""
    return f"{report.cell(row.comet, 1).strip()} ({row.ratio:.1f} x{share})"


def _tally(measured: Sequence[report.Row], names: Sequence[str], result: report.Result) -> str:
    verdicts = [_judged(row.metric, row.ratio or 1) for row in measured]
    sentences = [
        f"Measured on {result['measured_at'][:10]} "
        + CONFIGURATION.format(headers=result["options"].get("serialization", "json").upper())
        + (EXCEPTION if any(getattr(row.workload, "plain", "") for row in measured) else "")
        + f". Of {len(verdicts)} figures, latencies and processor time included, CometMQ is better"
        f" than Java in {verdicts.count('better')} and worse in {verdicts.count('worse')}."
    ]
    for index, name in enumerate(names):
        shared = [row for row in measured if row.rivals[index] is not None]
        lost = sum(name in _ahead(row, names) for row in shared)
        sentences.append(f"{report.TITLES[name]} is ahead in {lost} of {len(shared)}.")
    disturbed = [
        row.workload.title for row in report.rows(result["samples"])
        if row.metric == "others_cpus" and _is_disturbed(row)
    ]  # fmt: skip
    if disturbed:
        sentences.append(
            "Not conclusive, because other programs used more than"
            f" {QUIET_CPUS_MAX:g} CPUs beside them: {'; '.join(disturbed)}."
        )
    return " ".join(sentences)


def _ahead(row: report.Row, names: Sequence[str]) -> list[str]:
    """Return the servers other than Java whose figure is better than CometMQ's."""
    return [
        name for name, value in zip(names, row.rivals, strict=True)
        if value and row.comet and _judged(row.metric, row.comet / value) == "worse"
    ]  # fmt: skip


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
