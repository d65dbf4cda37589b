# SPDX-License-Identifier: Apache-2.0
"""Answers of group members are converted to the table `holder` and to files with thread dumps."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ProcessQueueInfo
from cometmq.remoting.errors import CometError
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.lag.columns import REPORT_TABLES, Report
from cometmq.spark.lag.members import (
    GROUPS_MAX,
    GroupAnswers,
    query_members,
    with_holders,
    worst_groups,
    write_stacks,
)

QUEUE = MessageQueue("T", "b", 0)
STATE = ProcessQueueInfo(
    cached_msg_count=12,
    cached_msg_size_in_mib=3,
    last_pull_timestamp=1_800_000_000_000,
    locked=True,
)


def report_of(**tables: list[dict[str, Any]]) -> Report:
    return Report(None, {name: pa.Table.from_pylist(rows) for name, rows in tables.items()})  # type: ignore[arg-type]


def group(name: str, severity: str = "error", *, online: bool = True) -> dict[str, Any]:
    return {"cluster": "c", "group": name, "severity": severity, "online": online}


def queue(name: str, queue_id: int, lag: int = 5) -> dict[str, Any]:
    place = {"topic": "T", "broker_name": "b", "queue_id": queue_id}
    return {"cluster": "c", "group": name, **place, "lag": lag}


def test_worst_groups_with_members_are_queried() -> None:
    groups = [group("off", online=False), group("fine", "ok"), group("slow", "warn")]
    assert worst_groups(report_of(group=groups)) == [("c", "slow")]
    many = [group(f"g{number}") for number in range(3 * GROUPS_MAX)]
    assert len(worst_groups(report_of(group=many))) == GROUPS_MAX


def test_each_queue_has_its_reader_or_none() -> None:
    report = report_of(group=[], queue=[queue("G", 0), queue("G", 1, 7), queue("silent", 0)])
    found = [GroupAnswers("c", "G", {QUEUE: ("member", STATE)}), GroupAnswers("c", "silent")]

    table = with_holders(report, found).table("holder")

    assert table.schema.names == [column.name for column in REPORT_TABLES["holder"]]
    first, second = table.to_pylist()
    assert (first["client_id"], first["cached_count"], first["cached_mib"]) == ("member", 12, 3)
    assert first["last_pull_ts"].timestamp() == 1_800_000_000
    assert (first["last_consume_ts"], first["locked"]) == (None, True)
    assert (second["queue_id"], second["lag"], second["client_id"]) == (1, 7, None)


def test_thread_files_cannot_escape_their_folder(tmp_path: Path) -> None:
    found = [
        GroupAnswers("c", "../G", stacks={"10.0.0.1@1": "main: asleep"}),
        GroupAnswers("c", "H"),
    ]
    (path,) = write_stacks(tmp_path, found)
    assert path.parent == tmp_path / "threads"
    assert path.read_text().endswith("main: asleep")


async def test_unreachable_cluster_is_a_one_line_error() -> None:
    with pytest.raises(CometError, match=r"127\.0\.0\.1:1\b"):
        await query_members(report_of(group=[group("G")]), CollectSettings(namesrv="127.0.0.1:1"))
