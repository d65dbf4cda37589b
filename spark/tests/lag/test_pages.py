# SPDX-License-Identifier: Apache-2.0
"""No sentence of a report contradicts the figures on its page, on histories from Hypothesis."""

import re
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from cometmq.insight.judge import BAD, SEVERITIES
from cometmq.insight.words import NOTHING, lasting, rate
from cometmq.spark.lag.analysis.report import build
from cometmq.spark.lag.columns import STATUSES, Report
from cometmq.spark.lag.history.snapshots import History as Folder
from cometmq.spark.lag.output.findings import findings, time_left, verdict
from cometmq.spark.lag.output.page import html_report
from cometmq.spark.lag.rules import Rules

from .drawn_histories import drawn
from .page_histories import (
    BROKERS,
    MINUTES,
    NEVER,
    QUEUES,
    Disk,
    Group,
    History,
    Queue,
    Reader,
    histories,
    offset_at,
    write,
)
from .random_histories import moment

END = moment("2027-05-12T10:06")
RULES = Rules(long_window_s=1800)
DRAWN = 300
FORCED = 0.85
RISK_S = RULES.risk_hours * 3600
SAFE = "no unread data is in danger"

AT_END = Reader(0, 9, NEVER, NEVER)
STOPPED = Reader(5000, 0, NEVER, NEVER)
FLAT = Disk(0.3, NEVER, 0.0, NEVER, by_log=False)
BUSY = Queue(600, 20_000, NEVER, 0)
UP = [(NEVER, NEVER)] * 2


def of_group(*readers: Reader, members_until: int = NEVER, disk: Disk = FLAT) -> History:
    return History([disk, FLAT], [BUSY] * QUEUES, [Group(members_until, list(readers))], UP)


CASES = {
    "late growth": of_group(*[STOPPED] * 4, disk=Disk(0.7, 25, 0.02, NEVER, by_log=False)),
    "growth in the last minute": of_group(
        *[STOPPED] * 4, disk=Disk(0.6, MINUTES - 2, 0.02, NEVER, by_log=False)
    ),
    "fills in 8 h": of_group(*[STOPPED] * 4, disk=Disk(0.6, 0, 0.0003, NEVER, by_log=False)),
    "one of four hangs": of_group(AT_END, AT_END, STOPPED, AT_END),
    "one of four is slow": of_group(AT_END, AT_END, Reader(5000, 0.5, NEVER, NEVER), AT_END),
    "reads more than arrives": of_group(*[Reader(18_000, 1.3, NEVER, 20)] * 4),
    "finished query": of_group(*[Reader(5000, 0.9, 24, NEVER)] * 4, members_until=0),
    "kept for a year": of_group(*[Reader(5000, 0.9, NEVER, NEVER)] * 4)._replace(kept_hours=9000),
    "just finished": of_group(*[Reader(5000, 0.9, 27, NEVER)] * 4, members_until=0),
}


@pytest.fixture(scope="module")
def all_of() -> list[History]:
    return [*CASES.values(), *drawn(histories, DRAWN)]


@pytest.fixture(scope="module")
def whole(
    spark: SparkSession, all_of: list[History], tmp_path_factory: pytest.TempPathFactory
) -> Report:
    root = tmp_path_factory.mktemp("pages")
    write(root, all_of, END)
    return build(spark, Folder(root), RULES)


@pytest.fixture(scope="module")
def pages(whole: Report, all_of: list[History]) -> list[tuple[History, Report]]:
    """The report of each cluster alone: a page is about one cluster."""
    return [(it, _of_cluster(whole, f"p{index:03d}")) for index, it in enumerate(all_of)]


def _of_cluster(whole: Report, cluster: str) -> Report:
    tables = {
        name: table.filter(pc.equal(table["cluster"], cluster))
        for name, table in whole.tables.items()
    }
    statuses = tables["group"]["status"].to_pylist()
    severities = tables["group"]["severity"].to_pylist()
    brokers = tables["broker"].to_pylist()
    header = msgspec.structs.replace(
        whole.header,
        unreachable=tuple(it["broker_name"] for it in brokers if not it["reachable"]),
        severity=max(severities, key=SEVERITIES.index, default="ok"),
        status_counts={name: statuses.count(name) for name in STATUSES},
    )
    return Report(header, tables)


def _case(pages: list[tuple[History, Report]], name: str) -> Report:
    return pages[list(CASES).index(name)][1]


def test_histories_cover_the_statuses_and_verdicts(pages: list[tuple[History, Report]]) -> None:
    statuses = Counter(status for _, it in pages for status in it.tables["group"]["status"])
    found = {str(status) for status in statuses}
    assert found == set(STATUSES) - {"BROADCAST"}
    assert verdict(_case(pages, "kept for a year")).endswith(f"; {SAFE}.")
    assert sum("disk of" in verdict(report) for _, report in pages) > 2
    models = {str(it) for _, report in pages for it in report.tables["group"]["ttl_model"]}
    assert models == {"time", "disk", "lost", "none"}


@pytest.mark.parametrize("name", ["late growth", "growth in the last minute"])
def test_disk_model_counts_from_the_first_snapshot_with_growth(
    pages: list[tuple[History, Report]], name: str
) -> None:
    report = _case(pages, name)
    (group,) = report.rows("group")
    disk = CASES[name].disks[0]
    left_s = (FORCED - disk.ratio_at(MINUTES - 1)) / disk.growth * 60
    assert group["status"] == "AT_RISK"
    assert group["ttl_model"] == "disk"
    assert group["time_to_loss_s"] == pytest.approx(left_s, rel=0.01)
    assert "the broker's disk is filling" in findings(report)[0].why


def test_verdict_names_a_disk_that_fills_within_the_time_at_risk(
    pages: list[tuple[History, Report]],
) -> None:
    report = _case(pages, "fills in 8 h")
    assert SAFE not in verdict(report)


def test_sentence_about_one_queue_of_four(pages: list[tuple[History, Report]]) -> None:
    (hangs,) = findings(_case(pages, "one of four hangs"))
    assert hangs.why.startswith(
        "Members are connected, but nothing is consumed in 1 of 4 queues, and 10/s more arrive."
    )
    (slow,) = findings(_case(pages, "one of four is slow"))
    assert slow.why == (
        "Cannot keep up with its producers in 1 of 4 queues: it reads 5/s while 10/s arrive."
    )


def test_curves_without_a_broker_that_has_all_committed_offsets(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The other broker has an empty queue that the group never committed."""
    queues = [BUSY, BUSY, Queue(0, 0, NEVER, 0), BUSY]
    group, down = Group(NEVER, [None, AT_END, None, AT_END]), [(NEVER, NEVER), (20, 23)]
    write(tmp_path, [History([FLAT, FLAT], queues, [group], down)], END)

    points = build(spark, Folder(tmp_path), RULES).rows("history")

    assert len(points) == MINUTES
    alone = [(it["consumer_offset"], it["lag"]) for it in points if it["max_offset"] < 100_000]
    assert (10_000, 0) in alone


@pytest.mark.parametrize("name", ["finished query", "just finished"])
def test_finished_query_is_not_slow(pages: list[tuple[History, Report]], name: str) -> None:
    (found,) = findings(_case(pages, name))
    assert found.row["status"] == ("STOPPED" if name == "finished query" else "UNKNOWN")
    assert found.why.startswith("No member is connected")


def test_figures_and_sentences_agree(pages: list[tuple[History, Report]]) -> None:
    wrong = [
        (index, problem)
        for index, (history, report) in enumerate(pages)
        for problem in (
            *_wrong_verdict(report),
            *_wrong_groups(history, report),
            *_missed(history, report),
        )
    ]
    assert not wrong, "\n".join(f"{index}: {problem}" for index, problem in wrong[:20])


def test_every_page_can_be_rendered(pages: list[tuple[History, Report]]) -> None:
    for _, report in pages[:20]:
        assert b"nan" not in html_report(report).lower().replace(b"financ", b"")


def _wrong_verdict(report: Report) -> Iterator[str]:
    words = verdict(report)
    groups = report.rows("group")
    if SAFE in words or " well." in words:
        for row in groups:
            left = row["time_to_loss_s"]
            is_bad = row["severity"] in BAD and time_left(left) != NOTHING
            if row["severity"] == "critical" or is_bad or (left is not None and left < RISK_S):
                yield f"{words!r}, but {row['group']} loses data in {row['time_to_loss_s']} s"
            if SAFE in words and row["status"] in ("UNKNOWN", "NEVER_COMMITTED"):
                yield f"{words!r}, but {row['group']} is {row['status']}"
        for row in report.rows("broker"):
            if row["disk_full_s"] is not None and row["disk_full_s"] <= RISK_S:
                yield f"{words!r}, but {row['broker_name']} is full in {row['disk_full_s']} s"
        if report.header.unreachable:
            yield f"{words!r}, but {report.header.unreachable} did not answer"
    if re.match(r"(All \d+ groups are|The only group is) well", words):
        yield from (f"{words!r}: {row['status']}" for row in groups if row["status"] != "OK")
    need = re.match(r"(\d+) of \d+ groups? need", words)
    if need:
        bad = sum(row["severity"] in BAD for row in groups)
        if bad != int(need[1]):
            yield f"{words!r}, but {bad} are bad"


def _wrong_groups(history: History, report: Report) -> Iterator[str]:
    queues = report.rows("queue")
    brokers = {row["broker_name"]: row for row in report.rows("broker")}
    for found in findings(report):
        row, why = found.row, found.why
        own = [it for it in queues if it["group"] == row["group"]]
        same = [it for it in own if it["status"] == row["status"]]
        yield from (f"{row['group']}: {it}: {why}" for it in _wrong_words(row, same, why))
        readers = history.groups[int(row["group"][1:])].readers
        if all(it is None or it.reset_at == NEVER for it in readers):
            yield from _wrong_since(row, same)
        if row["ttl_model"] == "disk" and not any(
            brokers[it["broker_name"]]["disk_full_s"] is not None for it in own
        ):
            yield f"{row['group']}: loss by disk, but no disk is filling"
        left = row["time_to_loss_s"]
        is_soon, is_told = left is not None and left < RISK_S, row["severity"] == "critical"
        is_known = row["status"] != "LOST" and all(it["status"] != "UNKNOWN" for it in own)
        if is_known and is_soon != is_told:
            yield f"{row['group']}: {row['status']}, lost in {left} s"


def _wrong_words(row: dict[str, Any], same: list[dict[str, Any]], why: str) -> Iterator[str]:
    speed = re.search(r"it reads (\S+(?: k)?)/s while (\S+(?: k)?)/s arrive", why)
    if "Cannot keep up" in why and (speed is None or _number(speed[1]) >= _number(speed[2])):
        yield "reads enough"
    if why.startswith("Catches up") and (
        NOTHING in why or (speed and _number(speed[1]) <= _number(speed[2]))
    ):
        yield "does not catch up"
    if re.search(r"nothing is consumed[,.]", why) and rate(row["rate_out"]) not in ("0/s", NOTHING):
        yield f"reads {row['rate_out']}"
    if "No member is connected" in why and row["online"]:
        yield "has members"
    if "Members are connected" in why and not row["online"]:
        yield "has no members"
    part = re.search(r"in (\d+) of (\d+) queues", why)
    if part and (int(part[1]), int(part[2])) != (len(same), row["queues"]):
        yield f"{len(same)} of {row['queues']} queues"
    if not part and len(same) < row["queues"] and ("nothing is cons" in why or "Cannot" in why):
        yield "only some queues"
    left = re.search(r"are deleted in ([^:]+):", why)
    if left and left[1] != lasting(row["time_to_loss_s"]):
        yield f"deleted in {row['time_to_loss_s']} s"
    if why.startswith("0 messages"):
        yield "nothing lost"
    if why == "Keeps up." and (row["lag_time_s"] or 0) > RULES.allowed_age_s:
        yield f"oldest {row['lag_time_s']} s"


def _wrong_since(row: dict[str, Any], same: list[dict[str, Any]]) -> Iterator[str]:
    """Check that the group is not said to be behind since later than its oldest message."""
    oldest = max((it["lag_time_s"] or 0 for it in same), default=0)
    first = min(it["read_ts"] for it in same) - timedelta(seconds=oldest)
    is_exact = row["since_ts"] is not None and not row["since_at_least"]
    allowed = timedelta(seconds=RULES.allowed_age_s + 90)  # in time until then, seen a minute later
    if oldest and is_exact and row["since_ts"] - first > allowed:
        yield f"{row['group']}: since {row['since_ts']}, but the oldest is from {first}"


def _number(text: str) -> float:
    return float(text.replace(",", "").replace(" k", "e3"))


def _missed(history: History, report: Report) -> Iterator[str]:
    """Yield groups with unread messages and a full disk soon that are not at risk."""
    for row in report.rows("group"):
        group = history.groups[int(row["group"][1:])]
        for queue_id, reader in enumerate(group.readers):
            index = queue_id % len(BROKERS)
            disk = history.disks[index]
            now, later = disk.ratio_at(MINUTES - 2), disk.ratio_at(MINUTES - 1)
            is_up = history.down[index] == (NEVER, NEVER)
            if not is_up or later <= now or disk.by_log or reader is None:
                continue
            queue = history.queues[queue_id]
            offsets = {
                offset_at(reader, queue, minute, group.members_until)
                for minute in range(MINUTES - 15, MINUTES)
            }
            (offset, *moved), end = sorted(map(_known, offsets)), queue.ends_at(MINUTES - 15)[1]
            left_s = max(0.0, (FORCED - later) / (later - now) * 60)
            is_unread = max(offset, queue.ends_at(MINUTES - 1)[0]) < end
            is_threatened = not moved and is_unread and left_s < RISK_S * 0.99
            if is_threatened and row["severity"] != "critical":
                yield f"{row['group']} queue {queue_id}: {row['status']}, full in {left_s:.0f} s"


def _known(offset: int | None) -> int:
    assert offset is not None
    return offset
