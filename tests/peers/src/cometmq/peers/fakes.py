# SPDX-License-Identifier: Apache-2.0
"""A name server and brokers with the answers that a test gives them."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, Self

from cometmq.client.clock import wall_ms
from cometmq.remoting.bodies.connections import ProducerTable
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRoute
from cometmq.remoting.bodies.stats import TopicOffset, TopicStats
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.errors import ConsumerNotOnline, TopicNotExist
from cometmq.remoting.transport.dispatch import Handler
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ServerSettings

LOOPBACK: Final = "127.0.0.1"
TOPICS: Final = ("T", "%DLQ%G", "%RETRY%G")
"""The topics that name servers know."""


def body(value: Any) -> Handler[Any]:
    return lambda *_: Reply(body=value if isinstance(value, bytes) else encode_json(value))


async def hang(*_: Any) -> None:
    await asyncio.Event().wait()


def _stats(_broker: Any, call: Call[Any]) -> Reply:
    queue = MessageQueue(call.header.topic, "a", 0)
    return Reply(body=encode_json(TopicStats({queue: TopicOffset(5, 30, 10)})))


def _offline(_broker: Any, call: Call[Any]) -> Reply:
    raise ConsumerNotOnline(f"the consumer group[{call.header.consumer_group}] not online")


ANSWERS: Final[Mapping[int, Handler[Any]]] = {
    Code.GET_BROKER_RUNTIME_INFO: body(KVTable({"brokerVersionDesc": "V4_9_4"})),
    Code.GET_BROKER_CONFIG: body(b"brokerName=a\n"),
    Code.GET_ALL_TOPIC_CONFIG: body(TopicConfigTable(topic_config_table={"T": TopicConfig()})),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: body(SubscriptionGroupTable()),
    Code.GET_ALL_CONSUMER_OFFSET: body(ConsumerOffsetTable({"T@G": {0: 20}})),
    Code.GET_ALL_DELAY_OFFSET: body(DelayOffsetTable()),
    Code.GET_ALL_PRODUCER_INFO: body(ProducerTable()),
    Code.GET_TOPIC_STATS_INFO: _stats,
    Code.GET_CONSUMER_CONNECTION_LIST: _offline,
}


class Fakes:
    """Brokers by name; `start` one with handlers that replace those in `ANSWERS`."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self.namesrv = ""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        handlers: dict[int, Handler[Any]] = {
            Code.GET_BROKER_CLUSTER_INFO: lambda *_: Reply(body=encode_json(self._info())),
            Code.GET_ROUTEINFO_BY_TOPIC: self._route,
            Code.GET_KVLIST_BY_NAMESPACE: body(KVTable()),
        }
        self.namesrv = await self._serve(handlers)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def start(self, name: str, **answers: Handler[Any]) -> None:
        own: dict[int, Handler[Any]] = {
            Code[key.upper()]: answer for key, answer in answers.items()
        }
        self.addresses[name] = await self._serve({**ANSWERS, **own})

    async def _serve(self, handlers: Mapping[int, Handler[Any]]) -> str:
        server: Server[Any] = Server(handlers, self, ServerSettings(), clock_ms=wall_ms)
        port = await server.listen(LOOPBACK, 0)
        self._stack.push_async_callback(server.close, drain_ms=0)
        return f"{LOOPBACK}:{port}"

    def _route(self, _server: Any, call: Call[Any]) -> Reply:
        topic = call.header.topic
        if topic not in TOPICS:
            raise TopicNotExist(f"no topic {topic}")
        queues = [QueueData(name, 1, 1, 6) for name in self.addresses]
        brokers = list(self._info().broker_addr_table.values())
        return Reply(body=encode_json(TopicRoute(queue_datas=queues, broker_datas=brokers)))

    def _info(self) -> ClusterInfo:
        table = {name: BrokerData({0: at}, name, "C") for name, at in self.addresses.items()}
        return ClusterInfo(broker_addr_table=table, cluster_addr_table={"C": [*table]})
