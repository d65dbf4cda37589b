# SPDX-License-Identifier: Apache-2.0
"""`cometmq lag`: how far consumer groups are behind, in messages and in time."""

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask
from cometmq.cli.groups import is_ours, known_group, members_of
from cometmq.cli.output import AsJson, Cell, as_objects, print_facts, print_json, print_rows
from cometmq.client.admin import AdminClient, QueueLag
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import NoPermission, TopicNotExist
from cometmq.remoting.names import retry_topic

QUEUE_COLUMNS: Final = (
    "Topic", "Broker", "Queue", "Min", "Committed", "Max", "Lag", "Seconds behind",
)  # fmt: skip
GROUP_COLUMNS: Final = ("Group", "Members", "Topics", "Queues", "Lag", "Seconds behind")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class QueueState(msgspec.Struct, frozen=True):
    """How far a group is in one queue."""

    queue: MessageQueue
    min_offset: int
    committed: int
    max_offset: int
    lag: int
    behind_s: float | None
    """Age of the first message not consumed; 0 if there is none, None if it cannot be read."""

    def row(self) -> list[Cell]:
        """Return the cells of the table."""
        queue = self.queue
        offsets = [self.min_offset, self.committed, self.max_offset, self.lag, self.behind_s]
        return [queue.topic, queue.broker_name, queue.queue_id, *offsets]


@app.command()
def lag(
    group: Annotated[str | None, typer.Argument(help="Consumer group; by default all.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only this topic.")] = None,
    *,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", help="Write an HTML page of the groups, worst first.", dir_okay=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how far consumer groups are behind; a single group by queue, with its retry topic."""
    if report is not None:
        _write_report(report, namesrv, group, topic, as_json=as_json)
        return
    if group is None:
        _print_groups(namesrv, topic, as_json=as_json)
        return

    async def question(admin: AdminClient) -> list[QueueState]:
        await known_group(admin, group)
        return await queue_states(admin, group, topic)

    states = ask(namesrv, question)
    total, behind_s = _total(states)
    rows = [state.row() for state in states]
    if as_json:
        queues = as_objects(QUEUE_COLUMNS, rows)
        print_json({"group": group, "lag": total, "seconds_behind": behind_s, "queues": queues})
        return
    behind = "" if behind_s is None else f", {behind_s:,.1f} s behind"
    title = f"{group}: {total:,} messages in {len(states)} queues{behind}"
    print_rows(QUEUE_COLUMNS, rows, as_json=False, title=title)


def _write_report(
    file: Path, namesrv: str, group: str | None, topic: str | None, *, as_json: bool
) -> None:
    module = import_module("cometmq.cli.lag_report")  # imports this module
    found = ask(namesrv, lambda admin: module.collect(admin, namesrv, group, topic))
    module.write(found, file)
    facts: dict[str, Cell] = {
        "report": str(file), "groups": len(found.groups), "need_a_look": found.troubled,
    }  # fmt: skip
    print_facts(facts, as_json=as_json)


def _print_groups(namesrv: str, topic: str | None, *, as_json: bool) -> None:
    async def question(admin: AdminClient) -> list[list[Cell]]:
        rows: list[list[Cell]] = []
        for group, config in (await admin.groups()).items():
            states = await queue_states(admin, group, topic) if is_ours(group) else []
            if states:
                members = (await members_of(admin, group, config)).count
                topics = {state.queue.topic for state in states}
                rows.append([group, members, len(topics), len(states), *_total(states)])
        return rows

    print_rows(GROUP_COLUMNS, ask(namesrv, question), as_json=as_json)


def _total(states: list[QueueState]) -> tuple[int, float | None]:
    behind = [state.behind_s for state in states if state.behind_s is not None]
    return sum(state.lag for state in states), max(behind, default=None)


# -- queries ----------------------------------------------------------------------------------


async def queue_states(
    admin: AdminClient, group: str, topic: str | None = None
) -> list[QueueState]:
    """Return how far a group is in each of its queues.

    Brokers report the topics in which the group has an offset. The retry topic is added, since
    messages can wait there before the group has one.
    """
    lags = await admin.lag(group, topic)
    retry = retry_topic(group)
    if topic is None and retry not in {found.queue.topic for found in lags}:
        lags += await admin.lag(group, retry)
    masters = await admin.masters()
    async with asyncio.TaskGroup() as tasks:
        states = [
            tasks.create_task(_queue_state(masters[found.queue.broker_name], found))
            for found in lags
        ]
    return [state.result() for state in states]


async def _queue_state(master: BrokerAdmin, found: QueueLag) -> QueueState:
    queue = found.queue
    min_offset = await master.min_offset(queue.topic, queue.queue_id)
    first = max(min_offset, found.committed_offset)
    lag_count = max(0, found.max_offset - first)
    behind_s: float | None = 0.0
    if lag_count:
        stored_ms = await _stored_ms(master, queue, first)
        behind_s = None if stored_ms is None else max(0, wall_ms() - stored_ms) / 1000
    return QueueState(
        queue, min_offset, found.committed_offset, found.max_offset, lag_count, behind_s
    )


async def _stored_ms(master: BrokerAdmin, queue: MessageQueue, offset: int) -> int | None:
    """Return the store time of the message at an offset, None if it cannot be read."""
    try:
        pulled = await master.pull(queue.topic, queue.queue_id, offset, count_max=1)
    except NoPermission:
        return None  # the topic is not readable at the moment
    except TopicNotExist:
        return None  # deleted meanwhile
    return pulled.messages[0].store_timestamp if pulled.messages else None
