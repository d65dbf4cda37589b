# SPDX-License-Identifier: Apache-2.0
"""Name servers whose answers a test sets, and a registration that uses them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from cometmq.broker.registration.identity import Identity
from cometmq.broker.registration.namesrv_addresses import NamesrvAddresses
from cometmq.broker.registration.registrant import Registrant
from cometmq.broker.registration.registration import Registration
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.tables.topics import Topics
from cometmq.ha.proof import Keys
from cometmq.remoting.bodies.codec import REGISTER
from cometmq.remoting.bodies.topic_config import RegisterBrokerBody, TopicConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.namesrv import RegisterBroker
from cometmq.remoting.errors import CometError, ConnectFailed, ConnectionLost
from cometmq.remoting.log import NO_LOG, Log

ME = Identity(
    cluster_name="C",
    broker_name="broker-a",
    broker_addr="10.0.0.9:10911",
    broker_id=0,
    ha_server_addr="10.0.0.9:10912",
)
NS1, NS2 = "10.0.0.1:9876", "10.0.0.2:9876"


class Request(NamedTuple):
    address: str
    code: int
    header: msgspec.Struct | None
    body: bytes


class ScriptedNamesrvs:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: dict[int, Response] = {}
        self.dead: set[str] = set()
        self.refusing: dict[str, CometError] = {}
        self.failing: dict[int, CometError] = {}
        """Errors by request code."""
        self.arrived = asyncio.Event()
        self.frozen: set[str] = set()
        """Addresses that do not answer until the connection is closed."""
        self.disconnected: list[str] = []
        self._closed = asyncio.Event()

    async def invoke(
        self,
        address: str,
        code: int,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int,
    ) -> Response:
        assert timeout_ms > 0
        self.arrived.set()
        if address in self.dead:
            raise ConnectFailed(address)
        if address in self.frozen:
            await self._closed.wait()
            raise ConnectionLost(address)
        if address in self.refusing:
            raise self.refusing[address]
        if int(code) in self.failing:
            raise self.failing[int(code)]
        if code not in {RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_BROKER_CONFIG}:
            self.requests.append(Request(address, int(code), header, body))
        return self.answers.get(int(code), Response(0, None, {}, b""))

    def disconnect(self, address: str, reason: str = "") -> None:
        self.disconnected.append(address)
        self.frozen.discard(address)
        self._closed.set()

    def topics_sent(self) -> list[set[str]]:
        return [
            set(sent.topic_config_serialize_wrapper.topic_config_table)
            for sent in self.registrations()
        ]

    def registrations(self) -> list[RegisterBrokerBody]:
        return [
            REGISTER.decode(request.body)
            for request in self.requests
            if isinstance(request.header, RegisterBroker)
        ]


def config(topic: str, perm: int = 6) -> TopicConfig:
    return TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4, perm=perm)


def registration(
    namesrvs: ScriptedNamesrvs,
    topics: Topics,
    text: str = NS1,
    *,
    keys: Keys = (),
    shared_address: str = "",
    log: Log = NO_LOG,
    **changes: object,
) -> Registration:
    settings = msgspec.structs.replace(BrokerSettings(), **changes)
    registrant = Registrant(
        ME,
        topics,
        namesrvs,
        settings=lambda: settings,
        keys=lambda: keys,
        shared_address=shared_address,
        log=log,
    )
    return Registration(registrant, NamesrvAddresses(text), settings=lambda: settings, log=log)


@asynccontextmanager
async def running(subject: Registration) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(subject.run())
        yield
        task.cancel()


async def until(namesrvs: ScriptedNamesrvs, count: int) -> None:
    """Wait until this many requests have arrived."""
    async with asyncio.timeout(60):
        while len(namesrvs.requests) < count:
            namesrvs.arrived.clear()
            await namesrvs.arrived.wait()
            await asyncio.sleep(0)
