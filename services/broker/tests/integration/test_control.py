# SPDX-License-Identifier: Apache-2.0

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat, SubscriptionData
from cometmq.remoting.bodies.locks import LockBatch
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import TopicStats
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call, Response
from cometmq.remoting.commands.admin import GetConsumerConnectionList
from cometmq.remoting.commands.callbacks import NotifyConsumerIdsChanged
from cometmq.remoting.commands.clients import GetConsumerListByGroup, UnregisterClient
from cometmq.remoting.commands.topics import (
    DeleteTopicInBroker,
    GetTopicStatsInfo,
    UpdateAndCreateTopic,
)
from cometmq.remoting.errors import CommandError
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock
from cometmq.testing.broker.process import BrokerProcess, RecordingNamesrv

TIMEOUT_MS = 60_000


class Client:
    def __init__(self, address: str) -> None:
        self.notices: asyncio.Queue[str] = asyncio.Queue()
        self._address = address
        self._remoting = RemotingClient(
            ClientSettings(),
            clock_ms=SystemClock().monotonic_ms,
            handlers={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _noticed},
            context=self,
        )

    async def ask(
        self, code: RequestCode, header: msgspec.Struct | None = None, body: bytes = b""
    ) -> Response:
        """Return the answer to a request that succeeds; otherwise raise its error."""
        return await self._remoting.invoke(self._address, code, header, body, timeout_ms=TIMEOUT_MS)

    async def beat(self, client_id: str, group: str = "G", topic: str = "T") -> None:
        subscription = SubscriptionData(topic=topic, sub_string="*", sub_version=1)
        consumer = ConsumerData(group_name=group, subscription_data_set=[subscription])
        beat = Heartbeat(client_id=client_id, consumer_data_set=[consumer])
        await self.ask(RequestCode.HEART_BEAT, body=encode_json(beat))

    async def members(self, group: str = "G") -> list[str]:
        header = GetConsumerListByGroup(group)
        response = await self.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        ids: list[str] = json.loads(response.body)["consumerIdList"]
        return sorted(ids)

    async def topics(self) -> dict[str, Any]:
        response = await self.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        table: dict[str, Any] = json.loads(response.body)["topicConfigTable"]
        return table

    async def create_topic(self, topic: str, queues: int = 4) -> None:
        header = UpdateAndCreateTopic(
            topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=6
        )
        await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def noticed(self) -> str:
        """Wait for a notice that a group has changed; return the group's name."""
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            return await self.notices.get()

    async def close(self) -> None:
        await self._remoting.close()


def _noticed(client: Client, call: Call[NotifyConsumerIdsChanged]) -> None:
    client.notices.put_nowait(call.header.consumer_group)


@pytest.fixture
async def namesrv() -> AsyncIterator[RecordingNamesrv]:
    server = RecordingNamesrv()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def broker(tmp_path: Path, namesrv: RecordingNamesrv) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess(tmp_path, namesrvAddr=namesrv.address) as process:
        yield process


@asynccontextmanager
async def connected(broker: BrokerProcess) -> AsyncIterator[Client]:
    client = Client(broker.address)
    try:
        yield client
    finally:
        await client.close()


async def test_consumers_of_a_group_are_notified_of_each_other(broker: BrokerProcess) -> None:
    async with connected(broker) as one:
        async with connected(broker) as two:
            await one.beat("c1")
            assert await one.noticed() == "G"
            await two.beat("c2")
            assert await one.noticed() == "G"
            assert await two.members() == ["c1", "c2"]
        assert await one.noticed() == "G"
        assert await one.members() == ["c1"]

        header = GetConsumerConnectionList("G")
        response = await one.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        (connection,) = json.loads(response.body)["connectionSet"]
        assert (connection["clientId"], connection["language"]) == ("c1", "PYTHON")

        goodbye = UnregisterClient(client_id="c1", consumer_group="G")
        await one.ask(RequestCode.UNREGISTER_CLIENT, goodbye)
        with pytest.raises(CommandError, match="no consumer for this group, G"):
            await one.members()


async def test_a_created_topic_is_registered_before_the_answer(
    broker: BrokerProcess, namesrv: RecordingNamesrv
) -> None:
    await namesrv.wait_for(1)
    assert namesrv.topics["TBW102"].perm == 7
    async with connected(broker) as client:
        await client.create_topic("orders", queues=3)

        assert namesrv.topics["orders"].write_queue_nums == 3
        # A periodic registration of all topics may have followed.
        registered = [
            set(registration.topic_config_serialize_wrapper.topic_config_table)
            for registration in namesrv.registrations
        ]
        assert {"orders"} in registered
        assert (await client.topics())["orders"]["readQueueNums"] == 3

        response = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfo("orders"))
        assert len(decode_json(TopicStats, response.body).offset_table) == 3

        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker("orders"))
        with pytest.raises(CommandError, match="not exist"):
            await client.ask(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfo("orders"))


async def test_a_restarted_name_server_gets_a_full_registration(
    broker: BrokerProcess, namesrv: RecordingNamesrv
) -> None:
    await namesrv.wait_for(1)
    port = int(namesrv.address.rpartition(":")[2])
    await namesrv.stop()
    seen = len(namesrv.registrations)

    await namesrv.start(port)
    await namesrv.wait_for(seen + 1)

    last = namesrv.registrations[-1].topic_config_serialize_wrapper
    assert "TBW102" in last.topic_config_table
    assert "SELF_TEST_TOPIC" in last.topic_config_table


async def test_acknowledged_changes_survive_a_kill(
    broker: BrokerProcess, namesrv: RecordingNamesrv
) -> None:
    async with connected(broker) as client:
        await client.create_topic("orders")
        group = SubscriptionGroupConfig(group_name="shop", retry_max_times=3)
        await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_json(group))
        await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")
        assert namesrv.topics["orders"].perm == 4
        await broker.kill()

    await broker.start()

    async with connected(broker) as client:
        assert "orders" in await client.topics()
        groups = await client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = json.loads(groups.body)["subscriptionGroupTable"]
        assert table["shop"]["retryMaxTimes"] == 3
        config = await client.ask(RequestCode.GET_BROKER_CONFIG)
        assert "brokerPermission=4" in config.body.decode().splitlines()


async def test_a_stopping_broker_unregisters(
    broker: BrokerProcess, namesrv: RecordingNamesrv
) -> None:
    await namesrv.wait_for(1)

    assert await broker.stop() == 0

    assert [left.broker_name for left in namesrv.unregistered] == ["broker-a"]


async def test_orderly_locks_figures_and_unknown_codes(broker: BrokerProcess) -> None:
    queues = [MessageQueue("T", "broker-a", 0)]
    async with connected(broker) as client:
        granted = []
        for client_id in ("c1", "c2"):
            ask = LockBatch(client_id=client_id, consumer_group="G", mq_set=queues)
            response = await client.ask(RequestCode.LOCK_BATCH_MQ, body=encode_json(ask))
            granted.append(len(json.loads(response.body)["lockOKMQSet"]))
        assert granted == [1, 0]

        info = await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert json.loads(info.body)["table"]["brokerVersionDesc"] == "V4_9_4"

        with pytest.raises(CommandError, match="request type 322 not supported"):
            await client.ask(RequestCode.QUERY_DATA_VERSION)
        with pytest.raises(CommandError, match="storePathRootDir cannot be changed"):
            await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"storePathRootDir=/etc\n")
        with pytest.raises(CommandError) as refused:
            await client.ask(RequestCode.HEART_BEAT, body=b"{nonsense")
        assert refused.value.code == 1
        assert await client.topics()
