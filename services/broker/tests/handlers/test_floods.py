# SPDX-License-Identifier: Apache-2.0
"""A connection that floods the broker with expensive requests delays another one by one of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from cometmq.broker.filters.compiling import Compiler
from cometmq.broker.filters.sql import CHARS_MAX
from cometmq.broker.handlers import clients, overview, progress
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat, SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.admin import GetBrokerConsumeStats
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.errors import SystemBusy
from cometmq.testing.broker import FakePeer
from cometmq.testing.broker.stored import stored_broker

FLOOD = 40
REPORTS: dict[str, tuple[Callable[..., Awaitable[Any]], Any]] = {
    "30003": (overview.get_broker_overview, NoHeader()),
    "317": (progress.get_broker_consume_stats, GetBrokerConsumeStats(is_order=False)),
}


@pytest.mark.load
@pytest.mark.parametrize("name", REPORTS)
async def test_a_flood_of_reports_delays_another_connection_by_one(tmp_path, name):
    handle, header = REPORTS[name]
    flood, honest = FakePeer("10.0.0.1:1"), FakePeer("10.0.0.2:1")
    served: list[Any] = []
    async with stored_broker(tmp_path, readWaitMills="60000") as broker:
        for number in range(300):  # so that an answer takes several steps
            broker.tables.topics.create(f"T{number}", queue_nums=2)
            broker.group(f"G{number}")
            broker.tables.offsets.commit(f"G{number}", f"T{number}", 0, 1)

        async def ask(peer: FakePeer) -> None:
            await handle(broker, Call(0, header, peer=peer))
            served.append(peer)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(FLOOD):
                tasks.create_task(ask(flood))
            await asyncio.sleep(0)
            tasks.create_task(ask(honest))
    assert len(served) == FLOOD + 1
    assert served.index(honest) <= 3


async def test_a_report_that_takes_too_long_is_refused(tmp_path, monkeypatch):
    """A busy broker needed more than 15 s for the report on 5,000 groups."""
    monkeypatch.setattr(progress, "REPORT_MS_MIN", 1)
    monkeypatch.setattr(progress, "found", lambda *_: asyncio.Event().wait())
    async with asyncio.timeout(60), stored_broker(tmp_path, readWaitMills="50") as broker:
        broker.tables.topics.create("T", queue_nums=2)
        broker.group("G")
        broker.tables.offsets.commit("G", "T", 0, 1)
        with pytest.raises(SystemBusy):
            await progress.get_broker_consume_stats(
                broker, Call(317, GetBrokerConsumeStats(is_order=False), peer=FakePeer())
            )
        assert not broker.pending.reports.is_held


def heartbeat(peer: FakePeer, group: str, expressions: list[str], version: int) -> Any:
    wanted = [
        SubscriptionData(
            topic=f"T{at}", sub_string=text, expression_type="SQL92", sub_version=version
        )
        for at, text in enumerate(expressions)
    ]
    body = Heartbeat(
        client_id=group,
        consumer_data_set=[ConsumerData(group_name=group, subscription_data_set=wanted)],
    )
    encoded = msgspec.json.encode(body)
    return Call(RequestCode.HEART_BEAT, NoHeader(), body=encoded, peer=peer)


async def test_a_flood_of_filters_leaves_other_consumers_theirs(tmp_path):
    """The filter is there before most of those of the flood, which was first."""
    flood, honest = FakePeer("10.0.0.1:1"), FakePeer("10.0.0.2:1")
    turns: list[Callable[[], None]] = []
    async with stored_broker(tmp_path, enablePropertyFilter="true") as broker:
        broker.tables.filters.arriving.compiler = Compiler(broker.clock.now_ms, turns.append)
        for version in range(1, 11):
            texts = [f"a = 'flood {version} {at}'".ljust(CHARS_MAX) for at in range(3)]
            clients.heart_beat(broker, heartbeat(flood, "Flood", texts, version))
        turns.pop(0)()
        wanted = "color = 'red'".ljust(CHARS_MAX)
        clients.heart_beat(broker, heartbeat(honest, "Honest", [wanted], 1))
        while broker.tables.filters.get("T0", "Honest") is None:
            turns.pop(0)()  # IndexError: the filter was refused
        assert broker.tables.filters.get("T2", "Flood") is None
