# SPDX-License-Identifier: Apache-2.0
"""Registers odd names of topics, groups and clients by raw requests, as any peer can."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from cometmq.client.admin import AdminClient
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.settings import ClientOptions
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import (
    ConsumerData,
    Heartbeat,
    ProducerData,
    SubscriptionData,
)
from cometmq.remoting.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands.namesrv import RegisterBroker
from cometmq.remoting.commands.offsets import UpdateConsumerOffset
from cometmq.remoting.commands.topics import UpdateAndCreateTopic
from cometmq.remoting.errors import CommandError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.names import AUTO_CREATE_TOPIC, dead_letter_topic, retry_topic
from cometmq.remoting.signature import signing
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings

ODD_NAMES: Final = (
    "", " ", "%", "|", "-", "--yes", "-n", "*", "%RETRY%", "%DLQ%", "%RETRY%%RETRY%g", "%DLQ%%DLQ%",
    "rmq_sys_", "CID_RMQ_SYS_", "a b", "\x9b31m", "\x85", "\t", "\x1b[2J", "\u202egnp.exe",
    "\u2028", "\ufeff", "\ufffe", "\u65e5\u672c", "\U0001f4a9" * 60, "e\u0301", "x" * 127,
    "y" * 255, "NaN", "null", "{0}%s$(id)", "<script>alert(1)</script>", '"', "'", "[/]", "[red]",
    "a,b", "a=b", "a:b", "a;b", "a&b#c?d", "a@b", "#", "\\", "..", "../../x", ".", "0", "nul",
)  # fmt: skip
TIMEOUT_MS: Final = 60_000


class Stranger:
    """A peer that knows the protocol and obeys no client's rules."""

    def __init__(self, namesrv: str, broker: str, options: ClientOptions | None = None) -> None:
        self._namesrv = namesrv
        self._broker = broker
        self._options = ClientOptions() if options is None else options
        credentials = self._options.credentials
        self._before = () if credentials is None else (signing(credentials),)
        self._clients: list[RemotingClient] = []

    async def close(self) -> None:
        """End the connections, so that the members leave."""
        for client in self._clients:
            await client.close()

    async def register(self, names: Iterable[str], *, topic: str, group: str) -> None:
        """Register each name in all ways, some of which servers refuse.

        Members with these names also join `group`, which consumes `topic`, and both appear in the
        offsets.
        """
        for name in names:
            for code, header, body in _requests(name, topic, group):
                await self._invoke(self._broker, code, header, body)
        await self._route(names)

    async def _invoke(self, address: str, code: Code, header: Any, body: bytes) -> None:
        is_member = code == Code.HEART_BEAT  # one client has one connection
        if is_member or not self._clients:
            client = RemotingClient(ClientSettings(), clock_ms=monotonic_ms, before=self._before)
            self._clients.append(client)
        with suppress(CommandError):
            await self._clients[-1].invoke(address, code, header, body, timeout_ms=TIMEOUT_MS)

    async def _route(self, names: Iterable[str]) -> None:
        """Register the broker again, with topics of these names beside its own."""
        async with AdminClient(self._namesrv, options=self._options, log=NO_LOG) as admin:
            info = await admin.cluster()
            topics = await admin.broker(self._broker).topics()
        (data,) = info.broker_addr_table.values()
        table = {**topics, **{it: TopicConfig(topic_name=it) for it in names if _is_text(it)}}
        version = DataVersion(timestamp=wall_ms(), counter=1)
        body = RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigTable(version, table))
        header = RegisterBroker(data.broker_name, self._broker, data.cluster, "127.0.0.1:1", 0)
        await self._invoke(self._namesrv, Code.REGISTER_BROKER, header, encode_json(body))


def _is_text(name: str) -> bool:
    return name.encode("utf-8", "replace") == name.encode("utf-8", "surrogatepass")


def _requests(name: str, topic: str, group: str) -> Iterator[tuple[Code, Any, bytes]]:
    for client_id, joined, read in ((name, name, name), ("c", name, topic), (name, group, topic)):
        beat = Heartbeat(
            client_id=client_id,
            consumer_data_set=[
                ConsumerData(
                    group_name=joined,
                    subscription_data_set=[SubscriptionData(topic=read, sub_string="*")],
                )
            ],
            producer_data_set=[ProducerData(joined)],
        )
        yield Code.HEART_BEAT, None, encode_json(beat)
    for form in (name, retry_topic(name), dead_letter_topic(name)):
        yield (
            Code.UPDATE_AND_CREATE_TOPIC,
            UpdateAndCreateTopic(form, 1, 1, 6, AUTO_CREATE_TOPIC),
            b"",
        )
    config = SubscriptionGroupConfig(group_name=name)
    yield Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_json(config)
    for one, other in ((group, name), (name, topic), (name, name)):
        yield Code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(one, other, 0, 0), b""
