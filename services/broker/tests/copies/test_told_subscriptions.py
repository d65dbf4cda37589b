# SPDX-License-Identifier: Apache-2.0
"""A new master serves consumers whose heartbeats it has not had yet: it asks them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat, SubscriptionData
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call, Reply, Response
from cometmq.remoting.commands.clients import UnregisterClient
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.errors import ServerError
from cometmq.remoting.message.flags import tag_code
from cometmq.remoting.message.record import decode_records
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock
from cometmq.testing.broker.broker_groups import BrokerGroup, running_group
from cometmq.testing.broker.clients import SUSPEND, TIMEOUT_MS

TAGGED = SubscriptionData(
    topic="T", sub_string="a", tags_set=["a"], code_set=[tag_code("a")], sub_version=5
)


class Consumer:
    """A consumer of group G that pulls as Java's does: without its subscription."""

    def __init__(self, address: str, told: Callable[[], Reply]) -> None:
        self.asked_count = 0
        self._address, self._told = address, told
        self.remoting = RemotingClient(
            ClientSettings(),
            clock_ms=SystemClock().monotonic_ms,
            handlers={RequestCode.GET_CONSUMER_RUNNING_INFO: self._answer},
        )

    def _answer(self, _context: Any, call: Call[Any]) -> Reply:
        assert call.header.consumer_group == "G"
        self.asked_count += 1
        return self._told()

    async def invoke(self, code: int, header: Any = None, body: bytes = b"") -> Response:
        return await self.remoting.invoke(
            self._address, code, header, body, timeout_ms=TIMEOUT_MS, ok=range(100)
        )

    async def pull(self, queue_id: int = 0) -> Response:
        header = PullMessage("G", "T", queue_id, 0, 32, SUSPEND, 0, 100, 5)
        return await self.invoke(RequestCode.PULL_MESSAGE, header)


@asynccontextmanager
async def consumer(group: BrokerGroup, told: Callable[[], Reply]) -> AsyncIterator[Consumer]:
    async with group.client(group.open_master) as client:
        await client.send(b"wanted", properties="TAGS\x01a\x02")
        await client.send(b"other", properties="TAGS\x01b\x02")
    subject = Consumer(group.address(group.open_master), told)
    try:
        yield subject
    finally:
        await subject.remoting.close()


def tells() -> Reply:
    return Reply(body=encode_json(ConsumerRunningInfo(subscription_set=[TAGGED])))


async def test_a_member_asks_the_client_of_a_pull_what_it_subscribes_to(tmp_path: Path) -> None:
    async with running_group(tmp_path, 1) as group, consumer(group, tells) as subject:
        async with asyncio.TaskGroup() as pulls:
            tasks = [pulls.create_task(subject.pull(n % 4)) for n in range(8)]
        first, *_ = answers = [task.result() for task in tasks]
        assert {one.code for one in answers} <= {0, ResponseCode.PULL_NOT_FOUND}
        assert [record.body for record in decode_records(first.body)] == [b"wanted"]
        assert subject.asked_count == 1
        broker = group.apps[0].broker
        assert broker.clients.registered.count == 1
        assert broker.clients.consumers.group("G") is None  # it is no member before its heartbeat

        data = ConsumerData(group_name="G", subscription_data_set=[TAGGED])
        beat = encode_json(Heartbeat(client_id="c", consumer_data_set=[data]))
        await subject.invoke(RequestCode.HEART_BEAT, None, beat)
        assert (await subject.pull()).code == 0
        assert subject.asked_count == 1
        left = UnregisterClient("c", consumer_group="G")
        await subject.invoke(RequestCode.UNREGISTER_CLIENT, left)
        assert broker.clients.registered.count == 0


def refuses() -> Reply:
    raise ServerError("no such group")


@pytest.mark.parametrize("told", [refuses, lambda: Reply(body=b"{")])
async def test_a_pull_whose_client_cannot_tell_is_refused_as_in_rocketmq(
    tmp_path: Path, told: Callable[[], Reply]
) -> None:
    async with running_group(tmp_path, 1) as group, consumer(group, told) as subject:
        for count in (1, 2):
            assert (await subject.pull()).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            assert subject.asked_count == count


async def test_an_answer_counts_for_its_connection_only(tmp_path: Path) -> None:
    async with running_group(tmp_path, 1) as group, consumer(group, tells) as subject:
        assert (await subject.pull()).code == 0
        async with consumer(group, refuses) as other:
            assert (await other.pull()).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        broker = group.apps[0].broker
        await subject.remoting.close()
        await group.until(lambda: not broker.clients.registered.count)
        assert not broker.clients.told._groups
