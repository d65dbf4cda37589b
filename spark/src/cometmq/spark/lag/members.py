# SPDX-License-Identifier: Apache-2.0
"""Queries the members of the worst groups for the queues they read and their thread dumps.

This is the only part of a report that queries consumers. Brokers relay the request (code 307), and
a member that hangs may never answer.
"""

import asyncio
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.client import ClientOptions
from cometmq.client.admin import AdminClient
from cometmq.insight.judge import BAD
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ProcessQueueInfo
from cometmq.remoting.errors import CometError, CommandError
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.lag.columns import REPORT_TABLES, Report, Row
from cometmq.spark.tables.arrow import table_of
from cometmq.spark.tables.files import write_bytes
from cometmq.spark.tables.rows import micros

GROUPS_MAX: Final = 10
MEMBERS_MAX: Final = 50
"""Members queried per group."""
FOLDER: Final = "threads"

Held = dict[MessageQueue, tuple[str, ProcessQueueInfo]]


class GroupAnswers(msgspec.Struct):
    """The answers of one group's members."""

    cluster: str
    group: str
    held: Held = {}
    stacks: dict[str, str] = {}
    """Thread dumps by client id."""
    silent: dict[str, str] = {}
    """Reason why a member did not answer, by client id."""


def worst_groups(report: Report) -> list[tuple[str, str]]:
    """List (cluster, group) of the worst groups that are online, in the report's order."""
    rows = report.rows("group")
    bad = [row for row in rows if row["online"] and row["severity"] in BAD]
    return [(row["cluster"], row["group"]) for row in bad[:GROUPS_MAX]]


async def query_members(report: Report, settings: CollectSettings) -> list[GroupAnswers]:
    """Query the members of the worst groups; the result for a deleted group is empty."""
    options = ClientOptions(credentials=settings.credentials, tls=settings.tls)
    groups = worst_groups(report)
    try:
        async with (
            AdminClient(settings.namesrv, options=options) as admin,
            asyncio.TaskGroup() as tasks,
        ):
            asked = [tasks.create_task(_query_group(admin, *names)) for names in groups]
    except* CometError as failures:
        raise failures.exceptions[0] from failures
    return [it.result() for it in asked]


async def _query_group(admin: AdminClient, cluster: str, group: str) -> GroupAnswers:
    found = GroupAnswers(cluster, group)
    try:
        members = (await admin.consumer_connections(group)).connection_set[:MEMBERS_MAX]
    except CommandError:
        return found
    async with asyncio.TaskGroup() as tasks:
        for client_id in sorted(it.client_id for it in members):
            tasks.create_task(_query_member(admin, found, client_id))
    return found


async def _query_member(admin: AdminClient, found: GroupAnswers, client_id: str) -> None:
    try:
        info = await admin.running_info(found.group, client_id, with_stacks=True)
    except CometError as error:
        found.silent[client_id] = str(error)
        return
    found.held.update(
        (queue, (client_id, state)) for queue, state in info.mq_table.items() if not state.droped
    )
    if info.jstack:
        found.stacks[client_id] = info.jstack


def with_holders(report: Report, asked: Iterable[GroupAnswers]) -> Report:
    queues: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows("queue"):
        queues.setdefault((row["cluster"], row["group"]), []).append(row)
    rows = [
        _row(found, queue)
        for found in asked
        if found.held or found.silent
        for queue in queues.get((found.cluster, found.group), [])
    ]
    tables = report.tables | {"holder": table_of(REPORT_TABLES["holder"], rows)}
    return Report(report.header, tables)


def _row(found: GroupAnswers, row: Row) -> tuple[Any, ...]:
    queue = MessageQueue(row["topic"], row["broker_name"], row["queue_id"])
    place = (found.cluster, found.group, queue.topic, queue.broker_name, queue.queue_id, row["lag"])
    held = found.held.get(queue)
    if held is None:
        return (*place, None, None, None, None, None, None)
    client_id, state = held
    return (
        *place,
        client_id,
        state.cached_msg_count,
        state.cached_msg_size_in_mib,
        micros(state.last_pull_timestamp),
        micros(state.last_consume_timestamp),
        state.locked,
    )


def write_stacks(folder: Path, asked: Iterable[GroupAnswers]) -> list[Path]:
    """Write one file per member with its thread dump; return the paths."""
    paths = []
    for found in asked:
        for client_id, text in sorted(found.stacks.items()):
            name = re.sub(r"[^\w.@-]", "_", f"{found.group}-{client_id}")[:200]
            path = folder / FOLDER / f"{name}.txt"
            now = datetime.now(UTC)
            write_bytes(
                path, f"{found.group} {client_id} {now:%Y-%m-%d %H:%M:%S} UTC\n{text}".encode()
            )
            paths.append(path)
    return paths
