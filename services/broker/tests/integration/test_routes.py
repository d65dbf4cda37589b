# SPDX-License-Identifier: Apache-2.0
"""A broker at a real name server whose routes a stranger changes."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.app import BrokerApp
from cometmq.broker.settings import BrokerSettings
from cometmq.namesrv.app import NamesrvApp
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.route import TopicRoute
from cometmq.remoting.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.commands import namesrv as commands
from cometmq.remoting.commands.topics import DeleteTopicInBroker, UpdateAndCreateTopic
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load

LOCAL = "127.0.0.1"
TIMEOUT_MS = 10_000
BACK_S_MAX = 15.0
"""Half a period of registrations, and more than ten times of what it takes on a quiet machine."""


class Stranger:
    """A client without an account, and the routes as all clients see them."""

    def __init__(self, namesrv: str, broker: str) -> None:
        self.namesrv = namesrv
        self.broker = broker
        self.remoting = RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms)

    async def ask(self, code: Code, header: msgspec.Struct, body: bytes = b"") -> bytes:
        """Ask the name server; return nothing if it does not know the topic."""
        answer = await self.remoting.invoke(
            self.namesrv, code, header, body, timeout_ms=TIMEOUT_MS,
            ok=(0, ResponseCode.TOPIC_NOT_EXIST),
        )  # fmt: skip
        return b"" if answer.code else bytes(answer.body or b"")

    async def queues(self, topic: str = "T") -> list[tuple[int, int]]:
        """Return the numbers of write queues and the permissions in a topic's route."""
        body = await self.ask(Code.GET_ROUTEINFO_BY_TOPIC, commands.GetRouteinfoByTopic(topic))
        route = decode_json(TopicRoute, body or b"{}")
        return [(queue.write_queue_nums, queue.perm) for queue in route.queue_datas]

    async def until(self, queues: list[tuple[int, int]], topic: str = "T") -> None:
        """Wait until the route of a topic has these queues."""
        deadline_s = time.monotonic() + BACK_S_MAX
        while (found := await self.queues(topic)) != queues:
            assert time.monotonic() < deadline_s, found
            await asyncio.sleep(0.02)

    async def at_broker(self, code: Code, header: msgspec.Struct) -> None:
        await self.remoting.invoke(self.broker, code, header, timeout_ms=TIMEOUT_MS)

    def removal(self) -> commands.UnregisterBroker:
        return commands.UnregisterBroker(
            broker_name="broker-a", broker_addr=self.broker, cluster_name="DefaultCluster",
            broker_id=0,
        )  # fmt: skip


def loaded(type_: Any, **given: str) -> Any:
    return load(type_, prefix="COMETMQ_TEST", env={}, cli=given)


@pytest.fixture
async def stranger(tmp_path: Path) -> AsyncIterator[Stranger]:
    clock = SystemClock()
    files = {"kvConfigPath": tmp_path / "kv.json", "configStorePath": tmp_path / "n.properties"}
    settings = {name: str(path) for name, path in files.items()}
    namesrv = NamesrvApp(
        loaded(NamesrvSettings, bindAddress=LOCAL, listenPort="0", **settings),
        log=NO_LOG, clock=clock,
    )  # fmt: skip
    await namesrv.start()
    broker = BrokerApp(
        loaded(
            BrokerSettings, bindAddress=LOCAL, brokerIP1=LOCAL, brokerName="broker-a",
            listenPort="0", adminHttpPort="-1", namesrvAddr=namesrv.addresses[0],
            registerNameServerPeriod="30000", storePathRootDir=str(tmp_path / "store"),
        ),
        log=NO_LOG, clock=clock,
    )  # fmt: skip
    await broker.start()
    one = Stranger(namesrv.addresses[0], broker.addresses[0])
    for topic in ("T", "U"):
        await one.at_broker(Code.UPDATE_AND_CREATE_TOPIC, UpdateAndCreateTopic(topic, 4, 4, 6))
    await one.until([(4, 6)])
    yield one
    await one.remoting.close()
    await broker.stop()
    await namesrv.stop()


async def test_a_broker_that_a_stranger_unregisters_is_back_at_once(stranger: Stranger) -> None:
    await stranger.ask(Code.UNREGISTER_BROKER, stranger.removal())
    await stranger.until([(4, 6)])


async def test_a_topic_that_a_stranger_deletes_from_the_routes_is_back_at_once(
    stranger: Stranger,
) -> None:
    await stranger.ask(Code.DELETE_TOPIC_IN_NAMESRV, commands.DeleteTopicInNamesrv("T"))
    await stranger.until([(4, 6)])
    # An operator deletes the topic at the broker first.
    await stranger.at_broker(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker("T"))
    for topic in ("T", "U"):
        await stranger.ask(Code.DELETE_TOPIC_IN_NAMESRV, commands.DeleteTopicInNamesrv(topic))
    await stranger.until([(4, 6)], "U")
    assert await stranger.queues("T") == []


async def test_topics_that_a_stranger_registers_in_a_brokers_name_are_replaced_at_once(
    stranger: Stranger,
) -> None:
    config = TopicConfig(topic_name="T", read_queue_nums=0, write_queue_nums=0, perm=0)
    table = TopicConfigTable(DataVersion(9, 9), {"T": config})
    body = encode_register_body(RegisterBrokerBody([], table), compressed=False)
    mine = stranger.removal()
    header = commands.RegisterBroker(
        broker_name=mine.broker_name, broker_addr=mine.broker_addr, broker_id=0,
        cluster_name=mine.cluster_name, ha_server_addr="",
    )  # fmt: skip
    await stranger.ask(Code.REGISTER_BROKER, header, body)
    await stranger.until([(4, 6)])
