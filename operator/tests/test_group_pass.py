# SPDX-License-Identifier: Apache-2.0
"""Passes over a group whose elector knows less than the last operator did."""

from typing import Any
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest

from cometmq.ha.actions import Status
from cometmq.ha.record import Copy, Record
from cometmq.ha.role import Role
from cometmq.operator.api_types.broker_group import KIND
from cometmq.operator.broker_groups.group_elector import GroupElector
from cometmq.operator.broker_groups.group_pass import GroupPass
from cometmq.operator.broker_groups.live import REVISION
from cometmq.operator.broker_groups.seen import Backlog, Election
from cometmq.remoting.errors import RequestTimeout
from cometmq.testing.operator.api import MemoryApi, context_of
from cometmq.testing.operator.states import group
from cometmq.testing.runtime.clock import FakeClock

QUIET_MS = 60_000
RECORD = Record(
    uid="r", group="orders", epoch=4, holder=Copy(0, "a"), in_sync=(Copy(0, "a"),), copies=2
)


def pod(ordinal, *, is_ready):
    labels = {**group().labels, REVISION: "old"}
    ready = {"type": "Ready", "status": str(is_ready)}
    return {
        "metadata": {"uid": f"p{ordinal}", "labels": labels},
        "status": {"conditions": [ready]},
    }


class World:
    """A group of two brokers on an API server in memory; the latest template is `new`."""

    def __init__(self):
        self.api = MemoryApi()
        self.group = self.api.put_group()
        self.api.put_stateful_set()
        for ordinal in (0, 1):
            self.api.put("Pod", f"orders-{ordinal}", **pod(ordinal, is_ready=False))
        self.clock = FakeClock()
        status = Status(copy=Copy(0, "a"), role=Role.MASTER, promised=4, epoch=4, max_offset=5)
        self.elector = Mock(
            spec=GroupElector, links={}, open_master=None,
            election=Election(
                record=RECORD, statuses=(status,), asked=(0, 1), fault=None, has_looked=True,
                is_record_known=True,
            ),
        )  # fmt: skip
        context = context_of(self.api, quiet_ms=QUIET_MS, clock=self.clock, secrets=AsyncMock())
        self.work = GroupPass((KIND, "mq", "orders"), context, self.elector)
        owned: Any = self.work._owned
        owned.apply = AsyncMock(return_value=False)
        self.work._group_key = AsyncMock(keys=())
        drain: Any = self.work._drain
        drain.refuse_sends = AsyncMock()
        drain.backlog = AsyncMock(return_value=Backlog({}, end=5))
        self.drain = drain

    def knows(self, **facts):
        """Change what the elector knows."""
        self.elector.election = msgspec.structs.replace(self.elector.election, **facts)

    async def reason(self):
        """Make a pass; return why a change waits, or an empty text."""
        await self.work.run()
        (found,) = (
            one for one in self.group["status"]["conditions"] if one["type"] == "Progressing"
        )
        return found["reason"]

    @property
    def restarted(self):
        return [name for _, name in self.api.made("delete")]


@pytest.fixture
def world():
    return World()


async def test_an_operator_that_has_just_started_restarts_no_pod(world):
    """The master has too few copies, so it is not ready; its slave crashes with a bad image."""
    world.knows(record=None, statuses=(), has_looked=False, is_record_known=False)
    assert await world.reason() == "NoRecord"
    world.knows(is_record_known=True)  # the record is missing; the brokers have yet to answer
    world.group["status"].pop("epoch", None)
    assert await world.reason() == "NoRecord"
    assert world.restarted == []
    world.knows(record=RECORD, has_looked=True)
    await world.reason()
    assert world.restarted == ["orders-1"]


async def test_pods_of_a_group_that_never_had_a_master_are_replaced(world):
    world.knows(record=None, statuses=())
    await world.reason()
    assert world.restarted == ["orders-1"]


async def test_the_quiet_time_starts_once_every_broker_refuses_sends(world):
    """Until then, name servers offer the group to producers."""
    world.api.delete_as_user(KIND, "orders")
    world.drain.refuse_sends.side_effect = RequestTimeout("orders-1 does not answer")
    assert await world.reason() == "BacklogUnknown"
    world.clock.advance(QUIET_MS)
    assert await world.reason() == "BacklogUnknown"
    world.drain.refuse_sends.side_effect = None
    assert await world.reason() == "SendsGoOn"
    world.clock.advance(QUIET_MS - 1)
    assert await world.reason() == "SendsGoOn"
    world.clock.advance(1)
    await world.work.run()
    assert world.work.let_go.is_set()
