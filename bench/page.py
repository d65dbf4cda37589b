# SPDX-License-Identifier: Apache-2.0
"""Write tables of benchmark results into the README and the pages of docs/."""

import math
from collections.abc import Collection, Sequence
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
    ("pull", "messages_per_s"), ("send-8x32", "messages_per_s"), ("send-1x1", "messages_per_s"),
    ("million", "anonymous_bytes"), ("start", "start_s"),
)  # fmt: skip
"""The workloads and metrics that the README shows; the greatest loss replaces the last one."""
COLUMNS: Final = (
    ("messages/s", ("messages_per_s", "pairs_per_s")), ("p50 [us]", ("p50_us",)),
    ("p99 [us]", ("p99_us",)), ("p99.9 [us]", ("p999_us",)), ("p99.99 [us]", ("p9999_us",)),
    ("CPU [s per million]", ("cpu_seconds_per_million",)),
)  # fmt: skip
"""The columns of the first table of docs/performance.md, and the metric in each."""


def markdown(result: report.Result) -> str:
    """Return the tables for docs/performance.md: rates and latencies, and all other figures."""
    names = report.rivals_of(result["samples"])
    servers = ["CometMQ", "Java", *(report.TITLES[it] for it in names)]
    metrics = {metric: index for index, (_, them) in enumerate(COLUMNS) for metric in them}
    loads: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for row in report.rows(result["samples"]):
        if row.metric in metrics:
            cells = loads.setdefault(row.workload.title, [""] * len(COLUMNS))
            cells[metrics[row.metric]] = _of_all_servers(row, names)
        elif _is_told(row):
            others.setdefault(row.workload.title, []).append(_other_figure(row))
    options = result["options"]
    measured = _measured(result)
    legend = (
        f"Each cell: {' · '.join(servers)}; in brackets the ratio to Java's rate, a target that"
        " was missed, and the servers that are ahead of CometMQ."
    )
    made = f"{result['machine']['cpu']}, {_rounds(options['rounds'])} of {options['seconds']:g} s."
    disturbed = _not_conclusive([row.workload.title for row in measured], result)
    lines = [
        legend,
        "",
        f"| workload | {' | '.join(title for title, _ in COLUMNS)} |",
        "|---|" + "---|" * len(COLUMNS),
        *(f"| {title} | {' | '.join(cells)} |" for title, cells in loads.items()),
        "",
        "| workload | other figures: CometMQ · Java (target) |",
        "|---|---|",
        *(f"| {title} | {'; '.join(figures)} |" for title, figures in others.items()),
        "",
        f"{_tally(measured, names, result)} {made} {disturbed}".rstrip(),
    ]
    return "\n".join(lines)


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _is_told(row: report.Row) -> bool:
    """Return whether the second table shows a figure: not a low processor use of other programs."""
    return row.metric != "others_cpus" or _is_disturbed(row)


def _is_disturbed(row: report.Row) -> bool:
    """Return whether other programs took so much of the machine that a row is not conclusive."""
    return max(row.comet or 0, row.java or 0) > QUIET_CPUS_MAX


def _of_all_servers(row: report.Row, names: Sequence[str]) -> str:
    divisor = report.UNITS[row.metric][2]
    values = [value for value in (row.comet, row.java, *row.rivals) if value is not None]
    notes = [f"{row.ratio:.2f} x"] if row.metric in COLUMNS[0][1] and row.ratio else []
    verdicts = [report.verdict(row, target).rpartition(" ") for target in row.targets]
    notes += [f"missed {bound}" for bound, _, word in verdicts if word == "MISSED"]
    if behind := _behind(row, names):
        notes.append(f"behind {behind}")
    cell = " · ".join(report.cell(value, divisor).strip() for value in values)
    return f"{cell} ({', '.join(notes)})" if notes else cell


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


def _measured(result: report.Result) -> list[report.Row]:
    """Return the figures that compare CometMQ with Java."""
    return [
        row for row in report.rows(result["samples"])
        if row.ratio is not None and row.metric not in CONTROLS
    ]  # fmt: skip


def summary(result: report.Result) -> str:
    """Return the table for the README: five rows, with the greatest loss if there is one.

    Each row names the servers that are ahead of CometMQ, and the last line counts all losses.
    """
    names = report.rivals_of(result["samples"])
    measured = _measured(result)
    chosen = [row for row in measured if (row.workload.name, row.metric) in HEADLINES]
    losses = [row for row in measured if _judged(row.metric, row.ratio or 1) == "worse"]
    if losses:
        worst = max(losses, key=lambda row: abs(math.log(row.ratio or 1)))
        chosen = [*[row for row in chosen if row is not worst][: len(HEADLINES) - 1], worst]
    rivals = "".join(f" {report.TITLES[name]} |" for name in names)
    lines = [
        f"| workload | figure | CometMQ | Java | ratio | behind |{rivals}",
        "|---|---|---|---|---|---|" + "---|" * len(names),
    ]
    for row in chosen:
        label, unit, divisor = report.UNITS[row.metric]
        values = [report.cell(value, divisor).strip() for value in (row.comet, row.java)]
        lines.append(
            f"| {row.workload.title} | {label} [{unit}] | {' | '.join(values)} | {row.ratio:.2f} |"
            f" {_behind(row, names)} |{_cells(row.rivals, divisor)}"
        )
    disturbed = _not_conclusive([row.workload.title for row in chosen], result)
    return "\n".join([*lines, "", f"{_tally(measured, names, result)} {disturbed}".rstrip()])


def _behind(row: report.Row, names: Sequence[str]) -> str:
    """Return the servers whose figure is better than CometMQ's, Java first."""
    is_worse = row.ratio is not None and _judged(row.metric, row.ratio) == "worse"
    return ", ".join(["Java"] * is_worse + [report.TITLES[name] for name in _ahead(row, names)])


def _tally(measured: Sequence[report.Row], names: Sequence[str], result: report.Result) -> str:
    verdicts = [_judged(row.metric, row.ratio or 1) for row in measured]
    sentences = [
        f"Measured on {result['measured_at'][:10]} "
        + CONFIGURATION.format(headers=result["options"].get("serialization", "json").upper())
        + f". Of {len(verdicts)} figures, latencies and processor time included, CometMQ is better"
        f" than Java in {verdicts.count('better')} and worse in {verdicts.count('worse')}."
    ]
    for index, name in enumerate(names):
        shared = [row for row in measured if row.rivals[index] is not None]
        lost = sum(name in _ahead(row, names) for row in shared)
        sentences.append(f"{report.TITLES[name]} is ahead in {lost} of {len(shared)}.")
    return " ".join(sentences)


def _not_conclusive(titles: Collection[str], result: report.Result) -> str:
    disturbed = [
        row.workload.title for row in report.rows(result["samples"])
        if row.metric == "others_cpus" and _is_disturbed(row) and row.workload.title in titles
    ]  # fmt: skip
    if not disturbed:
        return ""
    return (
        "Not conclusive, because other programs used more than"
        f" {QUIET_CPUS_MAX:g} CPUs beside them: {'; '.join(disturbed)}."
    )


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
